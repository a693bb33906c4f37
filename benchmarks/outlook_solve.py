"""Trained models of the tasks behind the certified solvers: how every problem ends, with the model and without it.

    python -m benchmarks.outlook_solve runs/guided-*/seed=* --out benchmarks/results/outlook_solve.json

Problems of the family of the training and of each family that the model was not trained on are solved by ``nf.solve``,
``nf.solve_nonlinear`` or ``nf.eigenpair``, which fall back to the classical method where the model stalls, and once
more without the model. A problem is *lost* if it converges without the model and not with it. Every answer that is
called converged is judged again here, from its residual in plain float64. Exits with 1 on a loss or a wrong answer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nlaformer as nf
from benchmarks.command import write
from benchmarks.outlook import SEED
from nlaformer.learn.methods import method
from nlaformer.learn.programs import TrainedProgram
from nlaformer.problems import Family
from nlaformer.provenance import provenance

RTOL = 1e-9
_COMMON: dict[str, Any] = {"rtol": RTOL, "check": "ignore"}


@dataclass(frozen=True)
class Ends:
    """How problems ended, one after the other."""

    statuses: list[str]
    work: list[int]  # products with A, or values of F, outside the model
    calls: list[int]  # of the model
    used: list[bool]  # whether an answer of the model was used
    answers: Tensor  # (count, n)

    @property
    def converged(self) -> Tensor:
        return torch.tensor([status == "CONVERGED" for status in self.statuses])


@dataclass(frozen=True)
class Solver:
    """How problems of one kind are solved, with a model or with None, and judged: |residual| <= RTOL scale.

    The work outside the model is at least ``fixed``, for the start and the certificate, and ``each`` for every call of
    the model; 0 is one call before the first step. A call is one of the network, or, of a model that ``runs``, its
    whole method, with as many loops as in training.
    """

    solve: Callable[[Tensor, Tensor, Any], Ends]
    judge: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # A, b, x to the residual and the scale
    single: bool = False  # whether it takes one problem at a time
    fixed: int = 1
    each: int = 1
    runs: bool = False

    def most_calls(self, work: float) -> float:
        """The most calls of the model that there can be beside so much work outside it; of a median, the median."""
        return max(work - self.fixed, 0) / self.each if self.each else 1.0


def _together(result: Any) -> Ends:
    """The ends of a batch; a learned M has no account of its own."""
    count = len(result.x)
    calls, accepted = (
        np.zeros(count, dtype=int) if result.model is None else np.asarray(found)
        for found in ((result.model.applications, result.model.accepted) if result.model else (None, None))
    )
    statuses = [status.name for status in np.asarray(result.status, dtype=object).tolist()]
    return Ends(statuses, np.asarray(result.matvecs).tolist(), calls.tolist(), (accepted > 0).tolist(), result.x)


def _one_by_one(A: Tensor, b: Tensor, solve: Callable[[Tensor, Tensor], Any], answer: str) -> Ends:
    found = [solve(matrix, right) for matrix, right in zip(A, b, strict=True)]
    return Ends(
        [one.status.name for one in found],
        [int(one.evaluations) for one in found],
        [0 if one.model is None else int(one.model.applications) for one in found],
        [one.model is not None and int(one.model.accepted) > 0 for one in found],
        torch.stack([getattr(one, answer) for one in found]),
    )


def _nonlinear(A: Tensor, b: Tensor, model: Any) -> Ends:
    F = method("guided-nonlinear")

    def solve(matrix: Tensor, right: Tensor) -> Any:
        return nf.solve_nonlinear(F, torch.zeros_like(right), A=matrix, b=right, model=model, **_COMMON)

    return _one_by_one(A, b, solve, "x")


def _eigenpairs(A: Tensor, b: Tensor, model: Any) -> Ends:
    return _one_by_one(A, b, lambda matrix, right: nf.eigenpair(matrix, x0=right, model=model, **_COMMON), "vector")


def _image(A: Tensor, x: Tensor) -> Tensor:
    return (A @ x[..., None])[..., 0]


def _judge_eigenpairs(A: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """With the Rayleigh quotient of x, whose residual is the smallest that x has."""
    value = (x * _image(A, x)).sum(-1, keepdim=True) / x.square().sum(-1, keepdim=True)
    return _image(A, x) - value * x, torch.linalg.matrix_norm(A, 2) * x.norm(dim=-1)


LINEAR = Solver(
    lambda A, b, model: _together(nf.solve(A, b, model=model, **_COMMON)),
    lambda A, b, x: (b - _image(A, x), b.norm(dim=-1)),
)
PRECONDITIONED = replace(
    LINEAR,
    solve=lambda A, b, model: _together(nf.solve(A, b, M="jacobi" if model is None else model, **_COMMON)),
    each=0,
)
LEAST_SQUARES = Solver(
    lambda A, b, model: _together(nf.solve(A, b, model=model, method="cgls" if model is None else "auto", **_COMMON)),
    lambda A, b, x: (_image(A.mT, b - _image(A, x)), _image(A.mT, b).norm(dim=-1)),
    fixed=4,  # products with A and with A^T
    each=2,
    runs=True,
)
NONLINEAR = Solver(_nonlinear, lambda A, b, x: (b - _image(A, x) - x**3, b.norm(dim=-1)), True, 2, runs=True)
EIGENPAIR = Solver(_eigenpairs, _judge_eigenpairs, True, 2, runs=True)
SOLVERS = {  # of the methods, by name
    "guided-cg": LINEAR,
    "guided-gcr": LINEAR,
    "learned-pcg": PRECONDITIONED,
    "guided-cgls": LEAST_SQUARES,
    "guided-nonlinear": NONLINEAR,
    "guided-eigen": EIGENPAIR,
}


def measure(model: TrainedProgram, solver: Solver, family: Family, count: int) -> dict[str, Any]:
    """How the problems of a family end."""
    A, b, _ = family.sample(count, SEED)
    if solver is LEAST_SQUARES:
        A = A[:, :, (A != 0).any((0, 1))]  # without the columns of zeros that fill it up
    guided, plain = (solver.solve(A, b, given) for given in (model, None))
    named = {"with the model": guided, "without": plain}
    return {
        "problems": count,
        "statuses": {name: dict(Counter(ends.statuses)) for name, ends in named.items()},
        "lost": int((plain.converged & ~guided.converged).sum()),
        "wrong": sum(wrong(solver, A, b, ends) for ends in named.values()),
        "model used": sum(guided.used),
        "products or values outside the model, median": {name: median(ends.work) for name, ends in named.items()},
        "calls of the model, median": median(guided.calls) if solver.each else 1,
    }


def wrong(solver: Solver, A: Tensor, b: Tensor, ends: Ends) -> int:
    """How many are called converged whose residual is clearly above the tolerance."""
    residual, scale = solver.judge(A, b, ends.answers)
    within = residual.norm(dim=-1) <= (1 + 1e-3) * RTOL * scale
    return int((ends.converged & ~within).sum())


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outlook_solve", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs, or of saved models")
    parser.add_argument("--count", type=int, default=512, help="problems of each family")
    parser.add_argument("--single", type=int, default=64, help="the same, where problems are solved one by one")
    parser.add_argument("--out", type=Path, help="write all figures to this file, beside those of other models in it")
    parser.add_argument("--commit", help="the commit that is measured, where the files have no history with them")
    chosen = parser.parse_args(given)
    known = json.loads(chosen.out.read_text()) if chosen.out and chosen.out.exists() else {"models": {}}
    document: dict[str, Any] = known | {"provenance": provenance(chosen.commit), "seed": SEED, "rtol": RTOL}
    bad = 0
    for folder in chosen.folders:
        model = nf.load(folder)
        if not isinstance(model, TrainedProgram) or model.config.program not in SOLVERS:
            parser.error(f"{folder} holds none of {', '.join(SOLVERS)}")
        solver, own = SOLVERS[str(model.config.program)], model.config.make_family()
        name = f"{model.config.recipe}, n={model.config.n}, seed={model.config.seed}"
        rows = document["models"][name] = {}
        for label, family in {model.config.family: own, **own.others()}.items():
            rows[label] = row = measure(model, solver, family, chosen.single if solver.single else chosen.count)
            bad += row["lost"] + row["wrong"]
            print(f"{name}, {label}: {json.dumps(row)}", flush=True)
    if chosen.out:
        write(chosen.out, document)
    print(f"{bad} lost or wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
