"""Least squares to high precision, the task of arXiv:2503.12295: their figures, and ours on the same problems.

    python -m benchmarks.literature --out benchmarks/results/literature.json --into docs/tasks.md    # four minutes
    python -m benchmarks.literature --models runs/cgls --out benchmarks/results/literature.json --into docs/tasks.md

The task (Liu, Grogan, Dugan, Rao, Arora, Rudra and Re, ICLR 2025; code at github.com/AndPotap/precision-ls): A is
20 x 5 with independent standard normal entries, x in R^5 standard normal, b = A x without noise; given A and b, find x.
The error is the mean of (x' - x)^2 over all entries and problems. Ours are programs compiled to softmax transformers,
which no training has seen, in float64 and float32, and trained guided-cgls models, if there are any.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import nlaformer as nf
from benchmarks.command import read, write
from benchmarks.sections import deliver
from nlaformer.arrays import DTYPES
from nlaformer.compiler.library.krylov import LeastSquaresConjugateGradient
from nlaformer.problems import Family, LeastSquares, Rival, Systems
from nlaformer.problems.base import Draws
from nlaformer.provenance import in_words, provenance

HEADING = "## High-precision least squares, beside the literature"
SEED = 8_300_000
_TASK = """\
Liu et al. (2025, [arXiv:2503.12295](https://arxiv.org/abs/2503.12295)) ask whether sequence models can learn least
squares to machine precision. A is 20 x 5 with standard normal entries, x standard normal, b = A x; the error is the
mean of (x' - x)^2 over all entries and problems. The same problems, solved by programs compiled to softmax
transformers:"""
_NOT_COMPARED = """\
What this does not compare. Their networks are *trained*, ours are *constructed*: the table shows what softmax attention
can express, not that training finds it. They explain the plateau by the products that softmax attention computes; a
construction has them to as many digits as it likes, with a bound ([operations](operations.md)), so that is a matter of
training. Their iterated networks take steps of gradient descent, as the first program does; the others are better
algorithms, and CGLS ends after five steps in exact arithmetic. Their code works in float32, so our float32 rows are the
ones beside theirs. Sizes, costs and their tests on other distributions are not compared; their figures are quoted, not
measured again."""
_TRAINED = """\
The rows of guided-cgls are trained, but on another family: 40 equations for 20 unknowns, each in a unit of its own.
Their network proposes directions and the arithmetic around it is exact, so there is no plateau, and their errors are no
measure of what a network alone can reach. CGLS, which ends after five steps here, is ahead of them: where all columns
are alike there is little to learn."""
_NO_MODEL = """\
No trained model is in the table yet. `nlaformer train guided-cgls --out runs/cgls` makes one on a GPU, for another
family of regressions, with `--set family=benchmarks.literature:Gaussian --set n=20` for these problems; `--models
runs/cgls` adds it."""
THEIRS = (
    ("softmax transformers, trained end to end", "about 1e-5, a plateau", "the first author's abstract of 2024"),
    (
        "gated convolutions, trained to take steps of gradient descent, and iterated",
        "1e-13",
        "the README of their code",
    ),
)


@dataclass(frozen=True)
class Gaussian(Family):
    """Their problems, padded with zero columns to n x n; ``family=benchmarks.literature:Gaussian`` trains on them.

    >>> A, b, x = Gaussian(n=4, columns=2).sample(3, seed=0)
    >>> torch.allclose(torch.linalg.lstsq(A[..., :2], b[..., None]).solution[..., 0], x[..., :2])
    True
    """

    name: ClassVar[str] = "gaussian-least-squares"
    definite: ClassVar[bool] = False
    n: int = 20
    columns: int = 5

    def systems(self, draw: Draws, count: int) -> Systems:
        A, x = draw.normal("A", count, self.n, self.n), draw.normal("x", count, self.n)
        used = (torch.arange(self.n, device=A.device) < self.columns).to(A.dtype)
        A, x = A * used, x * used
        return Systems(A, (A @ x[..., None])[..., 0], x)

    def rivals(self) -> Mapping[str, Rival]:
        return LeastSquares(self.n, self.columns).rivals()

    def others(self) -> Mapping[str, Family]:
        return {"features in units of their own": LeastSquares(self.n, self.columns)}


class Descent(nf.Program):
    """Gradient descent with their step: x - 0.5 A^T (A x - b) / 20."""

    rectangular = True
    rate = 0.5 / 20

    def start(self, A: Any, b: Any, x0: Any) -> dict[str, Any]:
        return dict(x=x0)

    def step(self, A: Any, b: Any, x: Any) -> dict[str, Any]:
        return dict(x=x + self.rate * (A.T @ (b - A @ x)))

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (b - A @ x)


class Newton(nf.Program):
    """The pseudoinverse by the iteration of Newton and Schulz, X + X (1 - A X), and its product with b."""

    rectangular = True

    def start(self, A: Any, b: Any) -> dict[str, Any]:
        return dict(X=(1 / np.vdot(A, A)) * A.T)

    def step(self, A: Any, X: Any) -> dict[str, Any]:
        return dict(X=X + (X - X @ (A @ X)))

    def finish(self, b: Any, X: Any) -> Any:
        return X @ b

    def residual(self, A: Any, b: Any, x: Any) -> Any:
        return A.T @ (b - A @ x)


# Each with the loops after which its error is looked at.
METHODS: dict[str, tuple[nf.Program, tuple[int, ...]]] = {
    "gradient descent": (Descent(), (16, 64, 128, 256)),
    "Newton-Schulz": (Newton(), (4, 8, 12, 16)),
    "CGLS": (LeastSquaresConjugateGradient(), (2, 4, 5, 6)),
}
_GUIDED = (2, 4, 5, 6)


def error(x: Any, answer: Any) -> float:
    """The mean of the squared differences over all entries and problems."""
    return float(np.mean((np.asarray(x, dtype=np.float64)[..., : answer.shape[-1]] - answer) ** 2))


def measure(name: str, A: np.ndarray, b: np.ndarray, x: np.ndarray) -> list[dict[str, Any]]:
    """A program itself, and compiled in float64 and float32."""
    program, loops = METHODS[name]
    rows = [{"method": f"{name}, the program in NumPy"} | _errors(program, A, b, x, loops)]
    for dtype in ("float64", "float32"):
        compiled = nf.compile(program, n=A.shape[-2], dtype=DTYPES[dtype])
        given = A.astype(dtype), b.astype(dtype)
        about = {"method": f"{name}, compiled, {dtype}", "layers": compiled.cost.loop.layers}
        rows.append(about | _errors(compiled, *given, x, loops))
    return rows


def _errors(method: Any, A: np.ndarray, b: np.ndarray, x: np.ndarray, loops: Sequence[int]) -> dict[str, Any]:
    """The errors; how many runs say themselves that digits are lost, and the last error of the others."""
    run = method.run(A, b, iterations=loops[-1])
    lost = np.array([status.name == "INACCURATE" for status in np.ravel(run.status)])
    errors = {str(t): error(run.x[:, t], x) for t in loops}
    return {"errors": errors, "inaccurate": int(lost.sum()), "others": error(run.x[~lost, -1], x[~lost])}


def section(document: dict[str, Any]) -> str:
    """Their figures and ours, in Markdown."""
    lines = [HEADING, "", _TASK, "", "| method | layers in a loop | mean squared error |", "|:--|--:|:--|"]
    lines += [f"| theirs: {what} | - | {figure} ({source}) |" for what, figure, source in THEIRS]
    for row in document["rows"]:
        errors = ", ".join(f"{value:.0e} after {t}" for t, value in row["errors"].items())
        said = (
            f"; {row['inaccurate']} runs say INACCURATE, the others: {row['others']:.0e}" if row["inaccurate"] else ""
        )
        lines.append(f"| {row['method']} | {row.get('layers', '-')} | {errors}{said} |")
    how = f"`python -m benchmarks.literature`: {document['count']:,} problems; *after t* is after t loops."
    lines += ["", f"{how} {in_words(document['provenance'])}.", "", _NOT_COMPARED]
    learned = any(row["method"].startswith("guided-cgls") for row in document["rows"])
    return "\n".join([*lines, "", _TRAINED if learned else _NO_MODEL]) + "\n"


def main(given: Sequence[str] | None = None) -> None:
    """Measure or read, write, and print the section or put it in place."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.literature", description=__doc__)
    parser.add_argument("--models", nargs="*", type=Path, default=[], help="folders of trained guided-cgls models")
    parser.add_argument("--count", type=int, default=256, help="problems")
    parser.add_argument("--read", type=Path, help="measure nothing; read what was written before")
    parser.add_argument("--out", type=Path, help="write all figures to this file")
    parser.add_argument("--into", type=Path, help="the page whose section is replaced")
    parser.add_argument("--commit", help="the commit that is measured, where the files have no history with them")
    chosen = parser.parse_args(given)
    document = read(chosen.read) if chosen.read else _measured(chosen)
    if chosen.out:
        write(chosen.out, document)
    deliver(section(document), HEADING, chosen.into)


def _measured(chosen: argparse.Namespace) -> dict[str, Any]:
    problem = Gaussian()
    A, b, x = (part.numpy() for part in problem.sample(chosen.count, SEED))
    x = x[..., : problem.columns]
    rows = [row for name in METHODS for row in measure(name, A, b, x)]
    for folder in chosen.models:
        model: Any = nf.load(folder)
        about = f"guided-cgls, trained on {model.config.family}, {folder.name}"
        rows.append({"method": about} | _errors(model, A, b, x, _GUIDED))
    return {"provenance": provenance(chosen.commit), "seed": SEED, "count": chosen.count, "rows": rows}


if __name__ == "__main__":
    main()
