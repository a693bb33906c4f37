"""What we promise of the bundled models, judged on fresh systems: goals we have set ourselves, beyond the paper.

The accelerated models are judged on the mean squared relative error at each sigma by itself, the imitating one at 1.2.
A method has the lead it promises where it needs no more than ceil(share * k) iterations to a threshold that its teacher
reaches in k. Where a curve stops, its plateau, is its last iterate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from nlaformer.learn import evaluate
from paper import fresh
from paper.artefact import BEYOND, Verdict, not_yet
from paper.filing import THRESHOLDS
from paper.fresh import Fresh
from paper.plan import SIGMAS
from paper.reading import at, bare, counted, iterations, listed, positive
from paper.results import Record, Results

FURTHER = evaluate.THRESHOLDS[len(THRESHOLDS) :]
LEADS = {"cg-accelerated": Fraction(1, 2), "pcg-accelerated": Fraction(2, 3)}
EARLY = {2: 1e-2, 4: 1e-3}  # the largest mean error of cg-accelerated at these iterates
IMITATION_SIGMA = 1.2
IMITATION_ERROR, FURTHEST, FAR_ON_AVERAGE = 5e-6, 5e-3, 1e-3
PLATEAU = 1e-7
TOLERANCE = 3.0  # combined standard errors by which two means may differ


IMITATES = (
    f"cg-imitation keeps to CG: at sigma {IMITATION_SIGMA:g} its last mean error is at most {bare(IMITATION_ERROR)}, "
    f"its mean squared distance from CG's own iterate at most {bare(FURTHEST)} at every t and "
    f"{bare(FAR_ON_AVERAGE)} on average."
)
LEADS_CG = (
    "cg-accelerated has a mean error of at most "
    + listed([f"{bare(bound)} at t = {t}" for t, bound in EARLY.items()])
    + " and needs at most ceil(k/2) iterations to 1e-1, ..., 1e-4 where CG needs k, at every sigma."
)
LEADS_PCG = (
    "pcg-accelerated needs at most ceil(2k/3) iterations to 1e-1, ..., 1e-4 where Jacobi-PCG needs k, at every sigma."
)
CONVERGES = (
    f"Our aim: the accelerated models go on to a plateau below {bare(PLATEAU)}, with the same lead at 1e-5 and 1e-6."
)
REPEATS = (
    "The numbers filed with the runs are those of fresh systems: mean errors at t = 2 and at the last iterate differ "
    f"by at most {TOLERANCE:g} combined standard errors."
)


def verdicts(results: Results) -> list[Verdict]:
    """The goals, the aim, and whether the numbers of the runs can be relied on."""
    measured = fresh.read(results)
    if measured is None:
        return [not_yet(claim, BEYOND) for claim in (IMITATES, LEADS_CG, LEADS_PCG, CONVERGES, REPEATS)]
    return [
        _imitates(measured),
        _leads_cg(measured),
        _leads_pcg(measured),
        _converges(measured),
        _repeats(measured, results),
    ]


def _imitates(measured: Fresh) -> Verdict:
    row = measured.at("cg-imitation", IMITATION_SIGMA)
    error, deviation = row["mean"][-1], row["deviation"]
    furthest, average = max(deviation), sum(deviation[1:]) / len(deviation[1:])
    found = (
        f"Last error {_exact(error)} +- {_exact(row['standard_error'][-1])}; distance at most {_exact(furthest)} (at "
        f"t = {deviation.index(furthest)}), {_exact(average)} on average over t = 1, ..., {len(deviation) - 1} "
        f"({measured.count:,} fresh systems)."
    )
    good = error <= IMITATION_ERROR and furthest <= FURTHEST and average <= FAR_ON_AVERAGE
    return _judged(IMITATES, found, good)


def _leads_cg(measured: Fresh) -> Verdict:
    name = "cg-accelerated"
    curves = [measured.at(name, sigma)["mean"] for sigma in SIGMAS]
    early = [f"{listed([_exact(curve[t]) for curve in curves])} at t = {t}" for t in EARLY]
    soon = all(curve[t] <= bound for curve in curves for t, bound in EARLY.items())
    missed = _missed(measured, name, THRESHOLDS)
    found = f"{_conditions(measured)} errors {'; '.join(early)}; {_iterations(measured, name, THRESHOLDS)}."
    return _judged(LEADS_CG, found + _too_many(missed), soon and not missed)


def _leads_pcg(measured: Fresh) -> Verdict:
    name = "pcg-accelerated"
    missed = _missed(measured, name, THRESHOLDS)
    found = f"{_conditions(measured)} {_iterations(measured, name, THRESHOLDS)}."
    return _judged(LEADS_PCG, found + _too_many(missed), not missed)


def _converges(measured: Fresh) -> Verdict:
    parts, good = [], True
    for name in LEADS:
        plateaus = [measured.at(name, sigma)["mean"][-1] for sigma in SIGMAS]
        missed = _missed(measured, name, FURTHER)
        parts.append(
            f"{name} comes down to {listed([_exact(plateau) for plateau in plateaus])}, "
            f"{_iterations(measured, name, FURTHER)}, too many or never there in {len(missed)} of "
            f"{len(SIGMAS) * len(FURTHER)}"
        )
        good &= max(plateaus) < PLATEAU and not missed
    return _judged(CONVERGES, f"{_conditions(measured)} {'; '.join(parts)}.", good)


def _conditions(measured: Fresh) -> str:
    return f"At sigma {listed([f'{sigma:g}' for sigma in SIGMAS])} ({measured.count:,} fresh systems each):"


def _iterations(measured: Fresh, name: str, bounds: Sequence[float]) -> str:
    """The iterations a model needs beside its teacher's, at every sigma."""
    teacher = measured.configs[name].teacher
    own, theirs = (
        listed([counted(measured.at(method, sigma)["mean"], bounds=bounds) for sigma in SIGMAS])
        for method in (name, teacher)
    )
    span = ", ".join(map(bare, bounds))
    return f"iterations to {span}: {own} for {teacher.upper()}'s {theirs}"


def _missed(measured: Fresh, name: str, bounds: Sequence[float]) -> list[str]:
    """In words, where a model has not the lead it should have; nothing is asked where its teacher never gets."""
    teacher, missed = measured.configs[name].teacher, []
    for sigma, bound in product(SIGMAS, bounds):
        own, theirs = (iterations(measured.at(method, sigma)["mean"], bound) for method in (name, teacher))
        if theirs is None:
            continue
        allowed = math.ceil(LEADS[name] * theirs)
        if own is None or own > allowed:
            missed.append(f"{'never' if own is None else own} for {allowed} to {bare(bound)} at sigma {sigma:g}")
    return missed


class Comparison(NamedTuple):
    """The mean error of a model at an iterate, on the systems of its run and on fresh ones."""

    name: str
    sigma: float
    t: int
    apart: float
    """The difference, in combined standard errors."""


def comparisons(measured: Fresh, name: str, record: Record) -> list[Comparison]:
    """A model's run beside the fresh systems, at t = 2 and at the last iterate, at every sigma."""
    found = []
    for sigma in SIGMAS:
        filed, new = at(record, sigma), measured.at(name, sigma)
        means, errors = filed["model"], filed["standard_error"]
        for t in (2, len(new["mean"]) - 1):
            combined = math.hypot(errors[t], new["standard_error"][t])
            difference = abs(means[t] - new["mean"][t])
            apart = difference / positive(combined) if math.isfinite(combined) else math.inf
            found.append(Comparison(name, sigma, t, apart))
    return found


def _repeats(measured: Fresh, results: Results) -> Verdict:
    """Whether run and fresh systems agree; a model's run is the one that has its config.

    The three sigmas share their random numbers, so that their comparisons tend to agree or differ together.
    """
    records = {name: results.of_config(f"bundled-{name}", config) for name, config in measured.configs.items()}
    if absent := [name for name, record in records.items() if record is None]:
        found = f"No run in results/runs has the config of {listed(absent)} as measured."
        return Verdict(REPEATS, BEYOND, found, "not yet run")
    pairs = [pair for name, record in records.items() if record for pair in comparisons(measured, name, record)]
    agreeing, worst = [pair for pair in pairs if pair.apart <= TOLERANCE], max(pairs, key=lambda pair: pair.apart)
    found = (
        f"{len(agreeing)} of {len(pairs)} agree (models, sigmas and iterates; {measured.count:,} fresh systems at each "
        f"sigma); furthest apart is {worst.name} at sigma {worst.sigma:g}, t = {worst.t}: {worst.apart:.2g} standard "
        "errors."
    )
    return _judged(REPEATS, found, len(agreeing) == len(pairs))


def _judged(claim: str, found: str, good: bool) -> Verdict:
    return Verdict(claim, BEYOND, found, "holds" if good else "differs")


def _too_many(missed: Sequence[str]) -> str:
    return f" Too many: {listed(missed)}." if missed else ""


def _exact(value: float) -> str:
    """Three digits: two may hide on which side of a goal a number is."""
    return f"{value:.3g}"
