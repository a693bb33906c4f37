"""benchmarks/worth.py and its page: what is measured, what is dropped, and that claims point to rows."""

from __future__ import annotations

import torch

import nlaformer as nf
from nlaformer import problems


def test_a_learned_preconditioner_reads_each_matrix_once_however_many_right_hand_sides() -> None:
    model = nf.load("learned-preconditioner")
    written, shown = model.preconditioner, []
    model.preconditioner = lambda A: shown.append(len(A)) or written(A)  # type: ignore[method-assign, func-returns-value]
    A = problems.SPD(n=20).sample(3, seed=1).A
    B = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = nf.solve(A, B, M=model, rtol=1e-8)
    assert shown == [3]
    for k in range(3):  # and each right-hand side gets the one of its own matrix
        alone = nf.solve(A[k], B[k], M=model, rtol=1e-8)
        assert alone.iterations.tolist() == together.iterations[k].tolist()
