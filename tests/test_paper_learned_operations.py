"""Learned operations: the same prompts, results and measure for what is learned and what is constructed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nlaformer.express import accuracy
from nlaformer.express.operation import operations
from nlaformer.learn.model import stack as as_stack
from nlaformer.report.figure import save
from paper import learned_operations
from paper.results import Results

TINY = learned_operations.Budget(n=2, steps=4, batch=8, warmup=2, tested=16, seeds=(0, 1), lrs=(1e-2,))


@pytest.fixture(scope="module")
def found():
    return learned_operations.study(TINY)


def test_a_layer_learns_an_easy_operation():
    budget = learned_operations.Budget(n=2, steps=300, seeds=(0, 1), lrs=(1e-2,), warmup=20)
    learned = learned_operations.learn("subtract", learned_operations.VARIANTS[0], budget)
    assert max(learned["errors"]) < 0.1 and len(learned["errors"]) == 2
    assert learned == learned_operations.learn("subtract", learned_operations.VARIANTS[0], budget)


@pytest.mark.parametrize("name", operations())
def test_the_answer_a_layer_is_taught_is_the_operations(name: str):
    """What is read out of P after the construction's own forward pass is what a learned layer is asked for."""
    op = learned_operations._build(name, 3, dtype=torch.float32)
    prompts, wanted = learned_operations._examples(op, (2, 5), np.random.default_rng(0))
    with torch.no_grad():
        result = learned_operations._entries(op.read(op.model(prompts.flatten(0, 1)).unflatten(0, (2, 5))))
    assert result.shape == wanted.shape
    torch.testing.assert_close(result, wanted, rtol=0, atol=2e-2)  # float32, the antisymmetric pair


def test_operands_lie_in_the_compact_set():
    a, b = learned_operations._draw("divide", 3, (1, 1000), np.random.default_rng(0))
    assert np.abs(a).max() <= 1 and np.abs(b).min() >= learned_operations.SMALLEST_DIVISOR and np.abs(b).max() <= 1
    assert (b < 0).any() and (b > 0).any()


def test_the_error_is_relative_to_all_results():
    """A stack that writes nothing has an error of one where the result starts at zero."""
    op = learned_operations._build("matmul", 2, dtype=torch.float32)
    stack = as_stack(
        [learned_operations._initial(op.layout.rows, learned_operations.VARIANTS[0], seed) for seed in (0, 1)]
    )
    for parameter in stack.parameters():
        parameter.data.zero_()
    assert learned_operations._errors(stack, op, TINY, learned_operations._TEST).tolist() == pytest.approx([1.0, 1.0])


def test_constructions_are_measured_on_the_same_inputs():
    errors = learned_operations.construct("matvec", TINY)["errors"]
    op = learned_operations._build("matvec", 2, dtype=torch.float64, order=3)
    rng = np.random.default_rng([learned_operations._TEST, 2])
    A, b = (operand.astype(float) for operand in learned_operations._draw("matvec", 2, (1, 16), rng))
    exact = accuracy.reference("matvec", A, b)
    by_hand = np.sqrt(((op(A, b) - exact) ** 2).sum() / (exact**2).sum())
    assert errors["order 3"] == pytest.approx(float(by_hand))
    assert errors["order 3"] < errors["order 1"] < errors["paper's pair"] < 1e-6


def test_tables_and_figure_come_from_the_file_alone(found, tmp_path: Path):
    results = Results(tmp_path)
    results.write(learned_operations.FILE, found)
    assert len(learned_operations.tables(results)[0].lines) == len(operations())
    files = [save(learned_operations.figure(results), tmp_path / name) for name in ("one.svg", "other.svg")]
    assert files[0].read_bytes() == files[1].read_bytes()
