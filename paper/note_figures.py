"""The figures of note.md: heads over c, what the teacher contributes, and errors with and without a floor.

Heads: the sum over 20 tokens of v_i s_i, computed by softmax heads in float64 with the sink's score C that the library
chooses, for steps c from 1e-10 to 1; the error and the proven bound are those of the whole 20 x 20 result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nlaformer.console import Sheet
from nlaformer.express.linearize import Linearization, design
from nlaformer.learn.evaluate import squared_relative_errors
from nlaformer.report.figure import CURVES, curve, panels, reference, tidy
from paper import bundled, plan
from paper.curves import band, geometric_mean, span
from paper.hypotheses import DESCENT
from paper.quantities import crossing, errors, interval, lead, mean_error, typical
from paper.results import HOME, Record, Results
from paper.run import TEST_COUNT, TEST_SEED

HEADS, STEEPEST_DESCENT = "heads", "steepest-descent"
BENCHMARKS = HOME.parents[1] / "benchmarks" / "results"
SCHEMES = {"c and 0 (the paper)": ("paper", 1), "+c and -c": ("antisymmetric", 1), "+-c, +-2c": ("antisymmetric", 2)}
_SEED, _TOKENS, _SIGMA = 0, 20, "1.2"


# --- the error of a pair of heads over c ---


def measure_heads(results: Results, small: bool) -> None:
    """Error and bound of every scheme over c."""
    steps = np.logspace(-10, 0, 6 if small else 61).tolist()
    generator = torch.Generator().manual_seed(_SEED)
    V, S = (torch.randn(_TOKENS, _TOKENS, generator=generator, dtype=torch.float64) for _ in range(2))
    V, S = V / V.abs().max(), S / S.abs().max()
    found = {label: _over(steps, V, S, *scheme) for label, scheme in SCHEMES.items()}
    command = "python -m paper run fig-heads"
    results.write(HEADS, {"command": command, "tokens": _TOKENS, "seed": _SEED, "c": steps, "schemes": found})


def _over(steps: Sequence[float], V: Tensor, S: Tensor, scheme: str, order: int) -> dict[str, list[float]]:
    typical = design(_TOKENS, torch.float64, S.square().mean().sqrt().item(), order=order, scheme=scheme)
    exact = V.T @ S  # its rounding is far below every error here
    found: dict[str, list[float]] = {"chosen": [typical.c], "error": [], "bound": []}
    for c in steps:
        heads = replace(typical, c=c)
        # As in the operations, a key is a unit vector: its inner product with a query has one term.
        bound = heads.error_bound(V, S, S.abs(), _TOKENS, _TOKENS)
        for name, size in (("error", multiplied(heads, V, S) - exact), ("bound", bound)):
            found[name].append((size.norm() / exact.norm()).item())
    return found


def multiplied(heads: Linearization, V: Tensor, S: Tensor) -> Tensor:
    """V^T S by attention: every head has the scores t S of the tokens, and C of a sink whose value is 0.

    >>> V = S = torch.tensor([[0.5], [1.0]], dtype=torch.float64)
    >>> round(multiplied(design(2, torch.float64, 0.5), V, S).item(), 6)
    1.25
    """
    result = torch.zeros(V.shape[1], S.shape[1], dtype=V.dtype)
    for multiple, gain in heads.heads:
        sink = torch.full((1, S.shape[1]), heads.C, dtype=S.dtype)
        weights = torch.softmax(torch.cat([sink, multiple * heads.c * S]), 0)[1:]
        result += gain * (V.T @ weights)
    return result


def note_numbers(results: Results) -> dict[str, Any]:
    """The least error of every scheme, the largest share of a bound that an error has; floors; two clusters."""
    schemes = results.document(HEADS)["schemes"]
    names = zip(("paper", "pair", "two_pairs"), schemes.values(), strict=True)
    found: dict[str, Any] = {f"heads.{name}": min(row["error"]) for name, row in names}
    found["heads.share_of_bound"] = _share_of_bound(schemes)
    fresh = bundled.fresh(results)
    for teacher in ("cg", "pcg"):
        found[f"floor.{teacher}"] = fresh.at(f"{teacher}-accelerated", float(_SIGMA))["mean"][-1]
    iterations = _learned("two-clusters")["to_residual"]
    return found | {"two_clusters": [iterations["CG"], iterations["learned"]]} | _descent_numbers(results)


def _share_of_bound(schemes: dict[str, Any]) -> float:
    """The largest error in terms of its bound."""
    rows = schemes.values()
    return max(error / bound for row in rows for error, bound in zip(row["error"], row["bound"], strict=True))


def heads_figure(results: Results) -> Figure:
    """Error and bound of every scheme over c."""
    document = results.document(HEADS)
    figure, (axes,) = panels(1, width=6.4, height=3.6)
    for k, (label, found) in enumerate(document["schemes"].items()):
        axes.plot(document["c"], found["error"], color=CURVES[k], linewidth=1.6, label=label)
        axes.plot(document["c"], found["bound"], color=CURVES[k], linewidth=1.0, linestyle=":")
        axes.axvline(found["chosen"][0], color=CURVES[k], linewidth=0.6, alpha=0.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(1e-14, 10)
    least = ", ".join(f"{min(found['error']):.0e}" for found in document["schemes"].values())
    title = f"Least errors {least}; at most {_share_of_bound(document['schemes']):.2f} of the bound (dotted)"
    tidy(axes, f"{title}\nsums of {document['tokens']} products, float64", "c", "relative error")
    axes.legend(frameon=False, fontsize=8.5)
    return figure


# --- what the teacher contributes, on fresh seeds ---

_TAUGHT = {f"lambda = {weight}": f"cg-accelerated-lambda{weight}" for weight in (1, 7, 10, 13, 30)}
_TAUGHT |= {"solution only": "solution-only", "lambda = 10, steepest descent": DESCENT}
_TAUGHT |= {"lambda = 10, rotated": "cg-accelerated-lambda10-rotated"}
_DRAWN = ("lambda = 1", "lambda = 10", "lambda = 30", "solution only", "lambda = 10, steepest descent")
TEACHER_RUNS = tuple(name for kind in _TAUGHT.values() for name in plan.confirmatory_kinds()[kind])


def measure_descent(results: Results, small: bool) -> None:
    """The mean errors of the wrong teacher, steepest descent, on the test systems of protocol.md."""
    run = plan.confirmatory()[f"{DESCENT}-seed100"]
    config = (plan.small(run) if small else run).config
    A, b, x = config.make_family().sample(64 if small else TEST_COUNT, TEST_SEED)
    iterates, _ = config.make_teacher()(A, b, config.T)
    means = squared_relative_errors(iterates, x).mean(0).tolist()
    results.write(STEEPEST_DESCENT, {"command": "python -m paper run fig-teacher", "count": len(x), "mean": means})


def _descent_numbers(results: Results) -> dict[str, Any]:
    """How far steepest descent's pupils are ahead of it, over (1 + lambda)^2: over t = 2..6, and at t = 1, ..., T."""
    teacher, records = results.document(STEEPEST_DESCENT)["mean"], _seeds(results, "lambda = 10, steepest descent")
    law = (1 + records[0].config.lambda_) ** 2
    at = [geometric_mean([e / errors(r)[t] / law for r in records]) for t, e in enumerate(teacher)]
    return {
        "descent.end": teacher[-1],
        "descent.lead": interval([typical(teacher) / typical(errors(record)) / law for record in records]),
        "descent.first": at[1],
        "descent.iterates": [min(at[2:]), max(at[2:])],
    }


def _seeds(results: Results, label: str) -> list[Record]:
    return [results.run(name) for name in plan.confirmatory_kinds()[_TAUGHT[label]]]


def teacher_figure(results: Results) -> Figure:
    """CG and steepest descent beside the models that they taught; rotated systems, means and medians."""
    figure, (axes, rotated) = panels(2, width=4.2, height=3.6)
    for k, label in enumerate(_DRAWN):
        records = _seeds(results, label)
        band(axes, [record.own["model"] for record in records], label, k)
    reference(axes, records[0].own["cg"], "CG")
    reference(axes, results.document(STEEPEST_DESCENT)["mean"], "steepest descent", ":")
    tidy(axes, "Taught by CG, or steepest descent\nmeans of the systems, one seed and the range", "iteration")
    for k, record in enumerate(_seeds(results, "lambda = 10, rotated")):
        curve(rotated, record.own["median"]["model"], f"seed {record.config.seed}", k)
        curve(rotated, record.own["model"], "", k, style=":")
    reference(rotated, record.own["median"]["cg"], "CG")
    tidy(rotated, "Rotated systems, lambda = 10\nmedians, and dotted the means", "iteration")
    axes.set_ylabel("squared relative error", fontsize=9)
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 50)
    for each in (axes, rotated):
        each.legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def teacher_table(results: Results) -> list[Sheet]:
    """G, the lead over CG, the lead over (1 + lambda)^2 and the iterations to 1e-4, with their intervals."""
    lines = []
    for label in _TAUGHT:
        records = _seeds(results, label)
        config, leads = records[0].config, list(map(lead, records))
        law = (1 + config.lambda_) ** 2
        lawful = config.supervision != "solution" and config.teacher == "cg"
        cells = (
            [mean_error(record) for record in records],
            leads,
            [each / law for each in leads] if lawful else None,
            [crossing(errors(record), 1e-4) for record in records],
        )
        written = ("-" if values is None else span(interval(values), ".3g") for values in cells)
        lines.append((label, str(len(records)), *written))
    headings = ("taught by CG, unless said", "seeds", "G", "lead over CG", "over (1 + lambda)^2", "iterations to 1e-4")
    note = "Intervals of protocol.md. Where 1e-4 is not reached, T = 20 counts."
    return [Sheet("The lead over CG by the weight of the solution, fresh seeds", headings, tuple(lines), note)]


# --- with and without a floor ---


def floor_figure(results: Results) -> Figure:
    """Mean squared errors over the iterations: models that compute the iterates, and a program with a learned part."""
    fresh = bundled.fresh(results)
    learned = _learned(f"spd, sigma {_SIGMA}")
    means = learned["mean"]
    figure, (axes,) = panels(1, width=6.4, height=3.8)
    for k, name in enumerate(("cg-imitation", "cg-accelerated")):
        curve(axes, fresh.at(name, float(_SIGMA))["mean"], f"{name}: the network computes the iterates", k)
    curve(axes, _shown(means["learned"]), "learned-preconditioner: the network reads A once, then PCG", 2)
    reference(axes, _shown(means["CG"]), "CG")
    reference(axes, _shown(means["PCG, diagonal + rank 1 by hand"]), "PCG, diagonal + rank 1 by hand", ":")
    axes.set_yscale("log")
    axes.set_ylim(1e-26, 10)
    ends = fresh.at("cg-accelerated", float(_SIGMA))["mean"][20], means["learned"][20]
    title = "After 20 iterations: cg-accelerated {:.0e}, learned-preconditioner {:.0e}".format(*ends)
    about = f"means of {min(fresh.count, learned['count']):,} systems at sigma = {_SIGMA}"
    tidy(axes, f"{title}\n{about}", "iteration", "mean squared relative error")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _learned(family: str) -> dict[str, Any]:
    """The first of the three seeds of learned-preconditioner beside its rivals, on a family of systems."""
    first, *_ = Results(BENCHMARKS).document("learned-preconditioner")["models"].values()
    return first["families"][family]["comparison"]  # type: ignore[no-any-return]


def _shown(curve: Sequence[float], iterations: int = 20) -> list[float]:
    return [error if error > 0 else math.nan for error in curve[: iterations + 1]]
