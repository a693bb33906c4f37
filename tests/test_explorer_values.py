"""Numbers as a visitor reads them off the page equal the library's: layers, iterates, learned iterates.

The page shows a few digits and has the rest under the pointer. The scripts here move the page's own controls and read
its elements; they call none of its functions.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import problems
from nlaformer.compiler.library import program
from nlaformer.explorer.catalogue import SOLVERS, rounded_solver
from tests.explorer import SYSTEMS, largest_difference, link, system, texts, undecided

ITERATIONS = 5
STEPS = """([steps]) => steps.map((at) => {
  const step = document.querySelector("[aria-label=Step]");
  step.value = at;
  step.dispatchEvent(new Event("input"));
  const numbers = (text) => text.split(" ").map(Number);
  const named = (selector, pair) => Object.fromEntries([...document.querySelectorAll(selector)].map(pair));
  return {
    P: named("#panel-p [data-register]", ({ dataset }) => [dataset.register, numbers(dataset.numbers)]),
    values: named("#panel-values [data-value]", (row) =>
      [row.dataset.value, [...row.querySelectorAll("td[title]")].map((cell) => numbers(cell.title))]),
  };
})"""
LEARNED = """([count]) => Array.from({ length: count }, (_, t) => {
  const loop = document.getElementById("learned-t");
  loop.value = t;
  loop.dispatchEvent(new Event("input"));
  const x = document.querySelector("#panel-probes svg");
  return [...x.querySelectorAll("g > title")].map((entry) => Number(entry.textContent.split(",")[0]));
})"""


def test_layers_and_values_of_compiled_cg_on_the_page_are_the_librarys(visit):
    cg, opened, near = nf.algorithm("cg", n=8, verify=False), visit(), []
    ends = [len(cg.model.pre) + t * len(cg.model.loop) for t in range(ITERATIONS + 1)]
    layers = range(ends[1] + 1)  # each of them once; later passes of the loop have their values read
    for seed in range(SYSTEMS):
        given = system(8, seed)
        _open(opened.page, "watch", {"what": "algorithm cg", "at": 0, "texts": texts(given["A"], given["b"])})
        steps = opened.evaluate(STEPS, [*layers, *ends[2:]])
        _compare_layers(cg, given, [step["P"] for step in steps[: len(layers)]], seed)
        values = [steps[end]["values"] for end in ends[:2]] + [step["values"] for step in steps[len(layers) :]]
        near.append(_compare_values(cg, given, values, seed))
    # What the one may differ by is below.
    assert sum(difference < 1e-9 for difference in near) >= SYSTEMS - 1, near
    assert not opened.complaints


def _open(page, view, state):
    """Follow a link to a state with a system of its own, and wait until it has run."""
    page.evaluate("(hash) => { location.hash = hash; }", link(view=view, **{view: state}))
    there = "([view, b]) => document.querySelector(`.${view}[data-ready] textarea[id$='-b']`)?.value === b"
    page.wait_for_function(there, arg=[view, state["texts"]["b"]])


def _compare_layers(cg, given, shown, seed):
    """Each layer takes the P on the page to the next P on the page as the library's layer does."""
    matrices = [torch.from_numpy(_matrix(cg.layout, registers)) for registers in shown]
    assert np.array_equal(matrices[0], cg.prompt(**given))
    places = [(block, k) for block in ("pre", "loop") for k in range(len(getattr(cg.model, block)))]
    for (block, k), (before, after) in zip(places, itertools.pairwise(matrices), strict=True):
        expected = getattr(cg.model, block)[k](before.mT).mT
        rows = zip(after, expected, strict=True)  # each by itself: the signs of A are 200
        assert max(itertools.starmap(largest_difference, rows)) < 1e-9, (seed, block, k)


def _matrix(layout, registers):
    return np.concatenate([np.reshape(registers[name], (height, -1)) for name, height in layout.registers])


def _compare_values(cg, given, shown, seed):
    """Compare every value with the library's, and return the largest difference of an iterate."""
    run, plain = cg.run(**given, iterations=ITERATIONS), program("cg").run(**given, iterations=ITERATIONS)
    for t, values in enumerate(shown):
        assert set(values) == set(run.state)
        for name, (found, beside) in values.items():
            difference = largest_difference(found, run.state[name][t])
            assert difference < 1e-9 or difference < 3 * undecided(cg, given)[name][t], (seed, name, t)
            assert largest_difference(beside, plain.state[name][t]) < 1e-9, (seed, name, t)
    return largest_difference([values["x"][0] for values in shown], run.x)


@pytest.mark.parametrize(("name", "systems"), [("cg-accelerated", 14), ("cg-imitation", 6)])
def test_the_learned_iterates_on_the_page_are_the_librarys(visit, name, systems):
    assert name in SOLVERS
    opened, model = visit(), rounded_solver(name)
    A, b, _ = problems.SPD(n=20).sample(systems, seed=5)
    b = b * torch.logspace(-6, 6, systems, base=2, dtype=b.dtype)[:, None]  # some are scaled before the model sees them
    A = A * torch.tensor([1.0, 3.0, 2.0**12], dtype=A.dtype).repeat(systems)[:systems, None, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nf.errors.UnfamiliarWarning)
        expected = model.iterates(A, b)
    for k in range(systems):
        _open(opened.page, "learned", {"model": name, "t": 0, "texts": texts(A[k], b[k])})
        found, size = opened.evaluate(LEARNED, expected.shape[1]), float(expected[k].abs().max())
        assert largest_difference(np.asarray(found) / size, expected[k] / size) < 1e-5
    assert not opened.complaints
