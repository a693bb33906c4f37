"""Rules, the router and the machine: moves are exact, layers say what they do, every primitive has its rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import problems
from nlaformer.compiler.lower.blocks import lower
from nlaformer.compiler.lower.context import RULES
from nlaformer.compiler.machine.emit import emit
from nlaformer.compiler.machine.instructions import Instruction
from nlaformer.compiler.machine.rows import Target
from nlaformer.compiler.machine.schedule import schedule
from nlaformer.learn.methods import GuidedCG
from nlaformer.learn.programs import initial
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import Graph, Node
from nlaformer.program.primitives import CORE, apply
from tests.systems import ProposedCG

N = 6


def _answer(answer: Node, inputs: dict[str, Node], A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, int]:
    """What the weights of a program make that is this answer alone, and how many heads a layer has at most."""
    plan, _ = lower(ProgramGraph("answer", N, inputs, {}, {}, answer), Target(N, torch.float64, 3, 1024.0))
    layers = schedule(plan)
    weights = emit(plan, layers)
    P = weights.layout.empty((1,), torch.float64)
    weights.layout.write(P, "one", torch.ones(1, N, dtype=torch.float64))
    for name, value in (("A", A.T), ("b", b[None])):
        if name in weights.layout.names:
            weights.layout.write(P, name, torch.tensor(value))
    *_, last = weights.model.states(P, 0, post_each_pass=True)
    assert plan.answer is not None
    assert plan.answer.scale is None
    found = weights.layout.read(last.P, weights.names[plan.answer.row])[0].numpy()
    made = [*weights.model.pre, *weights.model.post]
    heads = [layer.heads.count for layer in made if layer.heads is not None]
    return found, max(heads, default=0)


def _graph() -> tuple[Graph, dict[str, Node]]:
    graph = Graph()
    return graph, {"A": graph.input("A", (N, N)), "b": graph.input("b", (N,))}


def _in_rows(value: np.ndarray) -> np.ndarray:
    """A value as it stands in P: token j has row j, a scalar stands in every token, and zeros elsewhere."""
    value = np.asarray(value)
    if not value.shape:
        return np.full((1, N), value)
    matrix = value.reshape(*value.shape, *(1,) * (2 - value.ndim))
    rows = np.zeros((matrix.shape[1], N))
    rows[:, : matrix.shape[0]] = matrix.T
    return rows


SHAPES = [(), (N,), (N, N), (3,), (4, 2), (1, N), (N, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", ["A", "b", "both"])
@pytest.mark.parametrize("kind", ["any", "part", "permutation"])
def test_a_move_is_exact_and_takes_n_heads_at_most(shape: tuple[int, ...], source: str, kind: str):
    rng = np.random.default_rng([len(shape), sum(shape), len(source), len(kind)])
    graph, inputs = _graph()
    sources = [inputs[name] for name in ("A", "b") if source in (name, "both")]
    A, b = rng.standard_normal((N, N)) / N, rng.standard_normal(N) / N
    entries = np.concatenate([{"A": A, "b": b}[node.extra].ravel() for node in sources])
    count = int(np.prod(shape, dtype=int))
    chosen = rng.permutation(len(entries))[:count] if kind == "permutation" else rng.integers(len(entries), size=count)
    positions = np.resize(chosen, count).reshape(shape)
    if kind == "part":
        positions = np.where(rng.random(shape) < 0.5, -1, positions)
    found, heads = _answer(graph.move(sources, positions), inputs, A, b)
    assert np.array_equal(found, _in_rows(np.append(entries, 0.0)[positions]))
    assert heads <= N * len(sources)


@pytest.mark.parametrize(
    ("move", "heads"),
    [
        (lambda v: v.T, N - 1),
        (lambda v: np.roll(v, 1, 0), 1),
        (lambda v: np.roll(v, 1, 1), 0),
        (np.tril, 0),
        (np.diag, 0),
        (lambda v: v[:, 2], 0),
        (lambda v: v[2], 1),
        (lambda v: v[1, 2], 1),
        (lambda v: v[::-1], 1),
    ],
    ids=["transpose", "roll", "roll of columns", "triangle", "diagonal", "column", "row", "entry", "flip"],
)
def test_a_common_move_takes_few_heads(move: Any, heads: int):
    graph, inputs = _graph()
    A = np.random.default_rng(0).standard_normal((N, N)) / N
    # Not of the input, whose transpose is there already.
    source = apply(graph, "relu", inputs["A"])
    positions = move(1 + np.arange(N * N).reshape(N, N)) - 1
    found, most = _answer(graph.move([source], positions), inputs, A, A[0])
    assert np.array_equal(found, _in_rows(move(np.maximum(A, 0))))
    assert most == heads


@pytest.mark.parametrize("kind", [ProposedCG, GuidedCG])
def test_a_trained_part_stands_beside_compiled_layers(kind: Any):
    sizes: dict[str, Any] = {"n": N, "d": 16, "heads": 2, "T": 4}
    model = initial(replace(nf.recipe("guided-quickstart"), **sizes), kind())
    compiled = nf.compile(model, verify=False)
    A, b, _ = problems.SPD(n=N, sigma=1.2).sample(4, seed=3)
    runs = [each.run(A.double(), b.double(), iterations=6).x for each in (model, compiled)]
    assert float((runs[0] - runs[1]).norm()) <= 1e-5 * float(runs[0].norm())


@pytest.mark.parametrize("name", ["cg", "gmres", "cholesky", "adam"])
def test_every_layer_says_what_it_does(name: str):
    algorithm = nf.algorithm(name, N, verify=False)
    for block in ("pre", "loop", "post"):
        layers = getattr(algorithm.model, block)
        assert [bool(words) for words in algorithm.config.schedule[block]] == [True] * len(layers)


def test_every_core_primitive_has_a_rule():
    assert set(CORE) == set(RULES)


def test_an_instruction_is_one_level_above_the_base():
    kinds = Instruction.__subclasses__()
    assert len(kinds) > 15
    assert not [kind for kind in kinds if kind.__subclasses__()]
