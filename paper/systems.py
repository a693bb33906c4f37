"""The systems of section 4: how well conditioned the log-normal diagonal makes them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import SEED, plain_factor
from nlaformer.problems import SPD
from paper import plan
from paper.artefact import Artefact, Verdict, not_yet
from paper.reading import listed, short
from paper.results import Results

FILE = "systems.json"
COUNT, SMALL_COUNT = 4096, 64  # at each sigma
N = 20
ALONE = "without"
SIGMAS = listed([f"{sigma:g}" for sigma in plan.SIGMAS])
VARIED = 1.1  # the least factor between neighbouring medians
QUANTILES = (0.1, 0.5, 0.9)


def measure(results: Results, small: bool) -> None:
    """Condition numbers of scikit-learn's matrices, and of the paper's systems, which have a diagonal added to such."""
    count = SMALL_COUNT if small else COUNT
    spectra = {ALONE: torch.linalg.eigvalsh(_bare(count))}
    for sigma in plan.SIGMAS:
        spectra[f"{sigma:g}"] = torch.linalg.eigvalsh(SPD(n=N, sigma=(sigma,)).sample(count, SEED).A)
    conditions = {which: _quantiles(values[:, -1] / values[:, 0]) for which, values in spectra.items()}
    smallest = {which: float(values.min()) for which, values in spectra.items()}
    about = {"command": ARTEFACT.command(), "count": count, "n": N, "seed": SEED}
    results.write(FILE, about | {"condition": conditions, "smallest_eigenvalue": smallest})


def _bare(count: int) -> Tensor:
    """What the diagonal is added to, as scikit-learn makes it."""
    from sklearn.datasets import make_spd_matrix

    return torch.stack([torch.from_numpy(make_spd_matrix(N, random_state=SEED + k)) for k in range(count)])


def _quantiles(values: Tensor) -> list[float]:
    return torch.quantile(values, torch.tensor(QUANTILES, dtype=values.dtype)).tolist()


def sheets(results: Results) -> list[Sheet]:
    """A line for each diagonal."""
    if (measured := results.file(FILE)) is None:
        return []
    smallest = measured["smallest_eigenvalue"]
    lines = tuple(
        (_named(which), *map(plain_factor, row), short(smallest[which])) for which, row in measured["condition"].items()
    )
    headings = ("systems", *(f"{100 * quantile:g}% quantile" for quantile in QUANTILES), "smallest eigenvalue")
    return [Sheet(f"Condition numbers of {measured['count']:,} matrices each, n = {measured['n']}", headings, lines)]


def _named(which: str) -> str:
    return "make_spd_matrix alone" if which == ALONE else f"with the diagonal, sigma {which}"


def verdicts(results: Results) -> list[Verdict]:
    """Whether the diagonal does what it is there for."""
    eases = "The log-normal diagonal eases the ill-conditioning."
    varies = f"Sigma {SIGMAS} vary the condition numbers."
    definite = "The construction ensures positive definiteness."
    if (measured := results.file(FILE)) is None:
        return [not_yet(definite, "section 4.1"), not_yet(eases, "section 4.1"), not_yet(varies, "section 4.2")]
    alone_smallest, *smallest = measured["smallest_eigenvalue"].values()
    rows = [measured["condition"][f"{sigma:g}"] for sigma in plan.SIGMAS]
    alone, medians = measured["condition"][ALONE][1], [median for _, median, _ in rows]
    told = listed(list(map(plain_factor, medians)))
    spans = listed([f"{plain_factor(low)} to {plain_factor(high)}" for low, _, high in rows])
    overlap = max(low for low, _, _ in rows) < min(high for *_, high in rows)
    steps = [max(pair) / min(pair) for pair in pairwise(medians)]
    return [
        Verdict(
            definite, "section 4.1",
            f"The smallest eigenvalue of {measured['count']:,} matrices each is {listed(list(map(short, smallest)))} "
            f"at sigma {SIGMAS}; that of scikit-learn's matrices alone {short(alone_smallest)}.",
            "holds" if min(smallest) > 0 else "differs",
        ),
        Verdict(
            eases, "section 4.1",
            f"The median condition number is {plain_factor(alone)} without it and {told} with it, at sigma {SIGMAS} "
            f"({measured['count']:,} matrices each).",
            "holds" if max(medians) < alone else "differs",
        ),
        Verdict(
            varies, "section 4.2",
            f"The medians are {told}; four systems in five lie within {spans}"
            + (", which overlap." if overlap else "."),
            "holds" if min(steps) >= VARIED else "differs",
        ),
    ]  # fmt: skip


ARTEFACT = Artefact(
    name="table-systems",
    title="The systems: what the log-normal diagonal does to their condition",
    paper="sections 4.1 and 4.2",
    files=(FILE,),
    measure=measure,
    sheets=sheets,
    verdicts=verdicts,
)
