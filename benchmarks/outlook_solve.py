"""Trained models of the tasks behind the certified solvers: how every problem ends, with the model and without it.

    python -m benchmarks.outlook_solve runs/guided-gcr/seed=100 ... --out benchmarks/results/outlook_solve.json

Problems of the family of the training and of each family that the model was not trained on are solved by ``nf.solve``,
``nf.solve_nonlinear`` or ``nf.eigenpair``, which fall back to the classical method where the model stalls, and once
more without the model. A problem is *lost* if it converges without the model and not with it. Every answer that is
called converged is judged again here, from its residual in plain float64. Exits with 1 on a loss or a wrong answer.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nlaformer as nf
from benchmarks.outlook import ASKED, SEED
from nlaformer.learn.methods import method
from nlaformer.learn.programs import TrainedProgram
from nlaformer.problems import Family
from nlaformer.provenance import provenance

RTOL = 1e-9
_ONE_BY_ONE = ("guided-nonlinear", "guided-eigen")  # their solvers take one problem at a time


@dataclass(frozen=True)
class Ends:
    """How problems ended, one after the other."""

    statuses: list[str]
    work: list[int]  # products with A, or values of F, outside the model
    used: list[bool]  # whether an answer of the model was used
    answers: Tensor  # (count, n)
    values: list[float]  # of eigenpairs

    @property
    def converged(self) -> Tensor:
        return torch.tensor([status == "CONVERGED" for status in self.statuses])


def solve_all(program: str, A: Tensor, b: Tensor, model: Any) -> Ends:
    """All problems, with a model or without one."""
    common: dict[str, Any] = {"rtol": RTOL, "check": "ignore"}
    if program in _ONE_BY_ONE:
        found: list[Any] = []
        for matrix, right in zip(A, b, strict=True):
            if program == "guided-eigen":
                found.append(nf.eigenpair(matrix, x0=right, model=model, **common))
            else:
                start = torch.zeros_like(right)
                found.append(nf.solve_nonlinear(method(program), start, A=matrix, b=right, model=model, **common))
        return Ends(
            [one.status.name for one in found],
            [int(one.evaluations) for one in found],
            [one.model is not None and int(one.model.accepted) > 0 for one in found],
            torch.stack([one.vector if program == "guided-eigen" else one.x for one in found]),
            [float(getattr(one, "value", 0.0)) for one in found],
        )
    if program == "learned-pcg":
        result = nf.solve(A, b, M="jacobi" if model is None else model, **common)
    else:
        rival = "cgls" if model is None and program == "guided-cgls" else "auto"
        result = nf.solve(A, b, model=model, method=rival, **common)
    # A learned M has no account of its own.
    accepted = np.ones(len(b)) if result.model is None else np.asarray(result.model.accepted)
    statuses = [status.name for status in np.asarray(result.status, dtype=object).tolist()]
    return Ends(statuses, np.asarray(result.matvecs).tolist(), [bool(n > 0) for n in accepted], result.x, [])


def wrong(program: str, A: Tensor, b: Tensor, ends: Ends) -> int:
    """How many are called converged whose residual is clearly above the tolerance."""
    x = ends.answers
    image = (A @ x[..., None])[..., 0]
    residual, scale = b - image, b.norm(dim=-1)
    if program == "guided-eigen":
        residual = image - torch.tensor(ends.values, dtype=torch.float64)[:, None] * x
        scale = torch.linalg.matrix_norm(A, 2) * x.norm(dim=-1)
    if program == "guided-nonlinear":
        residual = residual - x**3
    if program == "guided-cgls":
        residual, scale = (A.mT @ residual[..., None])[..., 0], (A.mT @ b[..., None])[..., 0].norm(dim=-1)
    within = residual.norm(dim=-1) <= (1 + 1e-3) * RTOL * scale
    return int((ends.converged & ~within).sum())


def measure(model: TrainedProgram, family: Family, count: int) -> dict[str, Any]:
    """How the problems of a family end."""
    program = str(model.config.program)
    A, b, _ = family.sample(count, SEED)
    if program == "guided-cgls":
        A = A[:, :, (A != 0).any((0, 1))]  # without the columns of zeros that fill it up
    guided, plain = (solve_all(program, A, b, given) for given in (model, None))
    named = {"with the model": guided, "without": plain}
    return {
        "problems": count,
        "statuses": {name: dict(Counter(ends.statuses)) for name, ends in named.items()},
        "lost": int((plain.converged & ~guided.converged).sum()),
        "wrong": sum(wrong(program, A, b, ends) for ends in named.values()),
        "model used": sum(guided.used),
        "products or values outside the model, median": {name: median(ends.work) for name, ends in named.items()},
    }


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
        if not isinstance(model, TrainedProgram) or model.config.program not in ASKED:
            parser.error(f"{folder} holds none of {', '.join(ASKED)}")
        own = model.config.make_family()
        rows = document["models"][f"{model.config.recipe}, {folder.name}"] = {}
        for label, family in {model.config.family: own, **own.others()}.items():
            count = chosen.single if model.config.program in _ONE_BY_ONE else chosen.count
            rows[label] = row = measure(model, family, count)
            bad += row["lost"] + row["wrong"]
            print(f"{model.config.recipe} {folder.name}, {label}: {json.dumps(row)}", flush=True)
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{bad} lost or wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
