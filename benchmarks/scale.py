"""Bundled solvers called with their defaults, beside the networks as they are, and on multiples of their systems.

    python -m benchmarks.scale --out benchmarks/results/scale.json      # half an hour on one core; --count 256: less

4,096 systems at each of the paper's sigmas, from our generator and from scikit-learn's. *In the family*: how many are
scaled at all, and the largest ratio of an iterate's error to that of ``normalize=False``, on any system at any t.
*Multiples* of the first 512: how many systems have a squared relative error above 1e-4 at t = 8. A multiple that a
model is shown exactly as the system itself has its iterates, and is not solved twice.
*Other seeds*, 1,024 systems: nf.evaluate's mean, and the median and the 99.9% quantile, against the filed ones, over
sigma and t: the share within two standard errors, and the largest distance.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_spd_matrix
from torch import Tensor

import nlaformer as nf
from benchmarks.command import write
from nlaformer.learn.evaluate import squared_relative_errors
from nlaformer.learn.models import load_solver
from nlaformer.learn.scale import familiar, times_power
from nlaformer.problems import Systems
from nlaformer.provenance import in_words, provenance
from paper import bundled
from paper.results import Results

SIGMAS, SEED, COUNT = (1.0, 1.2, 1.4), 20_261_121, 4096  # fixed before any result was seen
OTHER_SEED = 20_261_122
MODELS = ("cg-imitation", "cg-joint", "cg-accelerated", "pcg-accelerated")
ACCELERATED = MODELS[2:]
FAR, T, FEWER, OTHERS = 1e-4, 8, 512, 1024
FACTORS = {f"A and b times 2^{k}": (2.0**k, 2.0**k) for k in range(-20, 21) if k} | {
    "A and b times 0.7": (0.7, 0.7),  # these four stay in the range of the training, and are not scaled
    "A and b times 0.8": (0.8, 0.8),
    "A and b times 0.9": (0.9, 0.9),
    "A and b times 1.2": (1.2, 1.2),
    "A and b times 3": (3.0, 3.0),
    "A and b times 1e6": (1e6, 1e6),
    "A times 8": (8.0, 1.0),
    "b times 4": (1.0, 4.0),
    "b times 1000": (1.0, 1e3),
}


def systems(generator: str, sigma: float, count: int) -> Systems:
    """Fresh systems: ours, or made by scikit-learn with NumPy's diagonal and solution."""
    if generator == "ours":
        return nf.problems.SPD(n=20, sigma=(sigma,)).sample(count, SEED)
    rng = np.random.default_rng([SEED, int(10 * sigma)])
    A = np.stack([make_spd_matrix(20, random_state=int(rng.integers(2**31))) for _ in range(count)])
    A += np.exp(sigma * rng.standard_normal((count, 20)))[:, :, None] * np.eye(20)
    given, x = torch.from_numpy(A), torch.from_numpy(rng.standard_normal((count, 20)))
    return Systems(given, (given @ x[..., None])[..., 0], x)


def in_the_family(model: nf.Solver, given: Systems) -> dict[str, Any]:
    """How many systems are scaled, and how much worse any of their iterates is than the network's own."""
    A, b, x = given
    e, f = _exponents(model, A, b)
    scaled = (e != 0) | (f != 0)
    if not scaled.any():
        return {"scaled": 0, "largest_ratio": 1.0}
    answers = (model.iterates(A[scaled], b[scaled], normalize=how) for how in (True, False))
    public, own = (squared_relative_errors(iterates, x[scaled]) for iterates in answers)
    return {"scaled": int(scaled.sum()), "largest_ratio": float((public / own).max())}


def multiples(model: nf.Solver, given: Systems) -> Iterator[tuple[str, int]]:
    """For each factor, the systems with an error above 1e-4 at t = 8."""
    A, b, x = (part[:FEWER] for part in given)
    far = _errors(model, Systems(A, b, x)) > FAR
    yield "as they are", int(far.sum())
    for label, (of_A, of_b) in FACTORS.items():
        e, f = _exponents(model, A * of_A, b * of_b)
        shown = times_power(A * of_A, -e[:, None, None]), times_power(b * of_b, -(e + f)[:, None])
        other = (shown[0] != A).any((-2, -1)) | (shown[1] != b).any(-1)
        found = far.clone()
        if other.any():
            found[other] = _errors(model, Systems(A[other] * of_A, b[other] * of_b, x[other] * (of_b / of_A))) > FAR
        yield label, int(found.sum())


def _exponents(model: nf.Solver, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    known = familiar(model.config)
    assert known is not None  # the bundled models' family is the package's
    return known.scaling(A, b)


def _errors(model: nf.Solver, given: Systems) -> Tensor:
    """Of iterate 8, by the public call."""
    return squared_relative_errors(model.iterates(given.A, given.b), given.x)[:, T]


def other_seeds(name: str, count: int = OTHERS) -> dict[str, tuple[float, float]]:
    """How far nf.evaluate's figures are from the filed ones: the share within two standard errors, and the largest."""
    model, filed = load_solver(name), bundled.fresh(Results())
    apart: dict[str, list[Tensor]] = {"mean": [], "median": [], "extreme": []}
    for sigma in SIGMAS:
        family = nf.problems.SPD(n=20, sigma=(sigma,))
        row = {key: torch.tensor(curve, dtype=torch.float64) for key, curve in filed.at(name, sigma).items()}
        means = torch.tensor(nf.evaluate(model, family, count=count, seed=OTHER_SEED).mean["learned"]).double()
        A, b, x = family.sample(count, OTHER_SEED)
        errors = squared_relative_errors(model.iterates(A, b), x)
        both = torch.hypot(errors.std(0, correction=0) / count**0.5, row["standard_error"])
        apart["mean"].append((means - row["mean"]).abs() / both)
        for key, q in (("median", 0.5), ("extreme", 0.999)):
            apart[key].append((errors.quantile(q, 0) - row[key]).abs() / (2**0.5 * _bootstrap(errors, q)))
    every = {key: torch.stack(found)[:, 1:] for key, found in apart.items()}
    return {key: (float((found <= 2).double().mean()), float(found.max())) for key, found in every.items()}


def _bootstrap(errors: Tensor, q: float, draws: int = 200) -> Tensor:
    """The standard error of a quantile of every column."""
    generator = torch.Generator().manual_seed(SEED)
    again = (errors[torch.randint(len(errors), (len(errors),), generator=generator)] for _ in range(draws))
    return torch.stack([drawn.quantile(q, 0) for drawn in again]).std(0)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help="systems of each sigma and generator")
    parser.add_argument("--out", type=Path, help="write the figures to this file")
    chosen, where = parser.parse_args(given), provenance()
    found: dict[str, Any] = {}
    torch.set_num_threads(1)
    drawn = {(g, s): systems(g, s, chosen.count) for g in ("ours", "scikit-learn") for s in SIGMAS}
    for name in MODELS:
        model, rows = load_solver(name), {f"{g}, sigma {s:g}": each for (g, s), each in drawn.items()}
        family = {label: in_the_family(model, each) for label, each in rows.items()}
        apart = other_seeds(name, min(OTHERS, chosen.count))
        print(name, family, apart, flush=True)
        far = {label: dict(multiples(model, each)) for label, each in rows.items() if name in ACCELERATED}
        worst = max(((n, label, factor) for label, row in far.items() for factor, n in row.items()), default=None)
        print("  most systems above 1e-4 at t = 8:", worst, flush=True)
        found[name] = {"family": family, "other seeds": apart, "far": far}
    print(in_words(where))
    if chosen.out:
        write(chosen.out, {"provenance": where, "count": chosen.count, "seed": SEED, "models": found})


if __name__ == "__main__":
    main()
