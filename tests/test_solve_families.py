"""The tasks of the package solved with a network that has learned nothing: the fallback takes over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import nlaformer as nf
from nlaformer import problems
from nlaformer.learn.methods import method
from nlaformer.learn.programs import initial

N, COUNT = 6, 4


def solved(name: str, A: torch.Tensor, b: torch.Tensor, model: Any) -> Any:
    """One problem of a task, with or without a model."""
    if name == "cubic":
        return nf.solve_nonlinear(method("guided-nonlinear"), 0 * b, A=A, b=b, model=model, rtol=1e-9, check="ignore")
    if name == "smallest-eigenpair":
        return nf.eigenpair(A, x0=b, model=model, rtol=1e-9, check="ignore")
    return nf.solve(
        A,
        b,
        model=model,
        method="cgls" if model is None and name == "least-squares" else "auto",
        rtol=1e-9,
        check="ignore",
    )


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("nonsymmetric", "guided-gcr"),
        ("least-squares", "guided-cgls"),
        ("cubic", "guided-nonlinear"),
        ("smallest-eigenpair", "guided-eigen"),
    ],
)
def test_every_problem_of_a_task_ends_as_without_the_untrained_network(name: str, program: str) -> None:
    model = initial(nf.recipe("quickstart", n=N), method(program))
    family = problems.family(name, n=N)
    other = next(iter(family.others().values()))
    for own in (family, other):
        A, b, _ = own.sample(COUNT, seed=3)
        if name == "least-squares":
            A = A[:, :, (A != 0).any((0, 1))]  # without the columns of zeros that fill it up
        for k in range(COUNT):
            plain, guided = (solved(name, A[k], b[k], given) for given in (None, model))
            assert plain.converged and guided.converged and guided.model is not None
