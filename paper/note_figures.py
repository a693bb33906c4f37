"""Two figures of note.md: heads over c, and errors with and without a floor.

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

from nlaformer.express.linearize import Linearization, design
from nlaformer.report.figure import CURVES, curve, panels, reference, tidy
from paper import bundled
from paper.results import BENCHMARKS, Results

HEADS = "heads"
LEARNED = "learned-preconditioner"  # in benchmarks/results
SCHEMES = {"c and 0 (the paper)": ("paper", 1), "+c and -c": ("antisymmetric", 1), "+-c, +-2c": ("antisymmetric", 2)}
_SEED, _TOKENS, _SIGMA = 0, 20, "1.2"


# --- the error of a pair of heads over c ---


def measure_heads(small: bool) -> dict[str, Any]:
    """Error and bound of every scheme over c."""
    steps = np.logspace(-10, 0, 6 if small else 61).tolist()
    generator = torch.Generator().manual_seed(_SEED)
    V, S = (torch.randn(_TOKENS, _TOKENS, generator=generator, dtype=torch.float64) for _ in range(2))
    V, S = V / V.abs().max(), S / S.abs().max()
    found = {label: _over(steps, V, S, *scheme) for label, scheme in SCHEMES.items()}
    return {"tokens": _TOKENS, "seed": _SEED, "c": steps, "schemes": found}


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
    return found | {"two_clusters": [iterations["CG"], iterations["learned"]]}


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
    first, *_ = Results(BENCHMARKS).document(LEARNED)["models"].values()
    return first["families"][family]["comparison"]  # type: ignore[no-any-return]


def _shown(curve: Sequence[float]) -> list[float]:
    """What a logarithmic scale can show of the first 20 iterations."""
    return [error if error > 0 else math.nan for error in curve[:21]]
