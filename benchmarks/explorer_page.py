"""The explorer in a browser: how long it computes, and how near it comes to the library.

Times are those of the page's own thread, whatever else the machine does, with the weights unpacked. Differences are
the largest over the 20 systems of tests/test_explorer_values.py, relative to the largest entry where that is above 1
(learned iterates: to the largest entry), on the weights that the page holds. The page holds its digits where those
tests read them; here its functions are called, which is quicker.

``python -m benchmarks.explorer_page --out benchmarks/results/explorer.json`` takes half a minute and a browser.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import write
from nlaformer import problems
from nlaformer.compiler.library import algorithm
from nlaformer.errors import UnfamiliarWarning
from nlaformer.explorer import write_page
from nlaformer.explorer.catalogue import GUIDED, SOLVERS, rounded_solver
from nlaformer.provenance import in_words, provenance
from tests.browser import DESKTOP, Visit, executable
from tests.explorer import SYSTEMS, largest_difference, layer_differences, system

_TIMES, _ITERATIONS = 5, 5
_RUN = """async ([name, n, inputs, iterations]) => {
  const run = explorer.runAlgorithm(await explorer.openAlgorithm(name, n), inputs, iterations);
  return [...run].map((values) => values["finish()"].data);
}"""
_LEARNED = """async ([name, { A, b }]) =>
  [...explorer.runSolver(await explorer.openSolver(name), A, b)].map(({ x }) => x)"""


def _plain(inputs: dict[str, np.ndarray]) -> dict[str, list[float]]:
    return {name: value.ravel().tolist() for name, value in inputs.items()}


def seconds(page: Visit) -> dict[str, float]:
    """The median time of one iteration of a compiled algorithm, and of a whole call of a learned model."""

    def median(script: str, *given: Any) -> float:
        page.evaluate(script, *given)  # which unpacks the weights
        return statistics.median(page.processor_seconds(script, *given) for _ in range(_TIMES))

    twenty = _plain(system(20, 0))
    found = {"cg, n = 8, an iteration": median(_RUN, "cg", 8, _plain(system(8, 0)), 10) / 10}
    found["cg, n = 20, an iteration"] = median(_RUN, "cg", 20, twenty, 10) / 10
    found[f"{GUIDED}, n = 20, an iteration"] = median(_RUN, GUIDED, 20, twenty, 5) / 5
    return found | {f"{name}, a call": median(_LEARNED, name, twenty) for name in SOLVERS}


def differences(page: Visit) -> dict[str, list[float]]:
    """Page and library for each system: every layer from the library's P, the iterates, the learned iterates."""
    cg = algorithm("cg", n=8, verify=False)
    found: dict[str, list[float]] = {"layers of cg": [], "iterates of cg, t <= 5": []}
    for seed in range(SYSTEMS):
        inputs = system(8, seed)
        found["layers of cg"].append(max(layer_differences(page, cg, inputs).values()))
        x = page.evaluate(_RUN, "cg", 8, _plain(inputs), _ITERATIONS)
        found["iterates of cg, t <= 5"].append(largest_difference(x, cg.run(**inputs, iterations=_ITERATIONS).x))
    return found | {f"iterates of {name}": _learned(page, name) for name in SOLVERS}


def _learned(page: Visit, name: str) -> list[float]:
    model, found = rounded_solver(name), []
    A, b, _ = problems.SPD(n=20).sample(SYSTEMS, seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnfamiliarWarning)
        expected = model.iterates(A, b).numpy()
    for k in range(SYSTEMS):
        x = np.asarray(page.evaluate(_LEARNED, name, _plain({"A": A[k].numpy(), "b": b[k].numpy()})))
        found.append(largest_difference(x / np.abs(expected[k]).max(), expected[k] / np.abs(expected[k]).max()))
    return found


def _shown(measured: dict[str, Any]) -> None:
    print(f"{'the page':32}{measured['megabytes']:9.1f} MB")
    for name, value in measured["seconds"].items():
        print(f"{name:32}{1e3 * value:9.1f} ms")
    print(f"\nlargest difference from the library on {SYSTEMS} systems, and the next")
    for name, values in measured["differences"].items():
        first, second = sorted(values, reverse=True)[:2]
        print(f"{name:32}{first:9.1e} (system {values.index(first)}), {second:.1e}")


def main(given: Sequence[str] | None = None) -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(given)
    path = executable() or parser.error("no browser: install chromium, or name one by NLAFORMER_BROWSER")
    torch.set_num_threads(1)
    where = provenance()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = write_page(Path(folder) / "explorer.html")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        where["versions"]["chromium"] = browser.version
        page = Visit(browser, file, DESKTOP)
        size = round(file.stat().st_size / 1e6, 2)
        measured = {"megabytes": size, "seconds": seconds(page), "differences": differences(page)}
        browser.close()
    _shown(measured)
    print(in_words(where))
    if chosen.out:
        write(chosen.out, {"provenance": where, **measured}, digits=3)


if __name__ == "__main__":
    main()
