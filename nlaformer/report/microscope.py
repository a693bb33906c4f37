"""The page of the microscope: one figure for each test, drawn from the plain data of ``nlaformer microscope --json``.

Each title states what was measured, in numbers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nlaformer.report.figure import CURVES, FAINT, INK, MARKERS, PLAIN, STYLE, panels, tidy
from nlaformer.report.findings import LEGEND, READINGS, Data, about, drawable, finding, interchange_finding
from nlaformer.report.html import Html, tag
from nlaformer.report.html import page as whole_page
from nlaformer.report.html import table as html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOWEST = -1.0  # share of an exchange that a figure shows
# The candidates: each looks the same in every figure, by its place here.
_KNOWN = ("cg", "pcg", "conjugate_residual", "steepest_descent", "minimal_residual", "richardson", "chebyshev",
          "newton_schulz", "fixed polynomial")  # fmt: skip
_STYLES = ("-", "--")

_STYLE = """body {font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222}
svg {max-width: 100%; height: auto} h2 {font-size: 1.15rem; margin-top: 2rem}"""


def page(found: Data) -> str:
    """The whole page as HTML, with the figures in it."""
    parts = [
        tag("section", tag("h2", question), tag("p", reading), _svg(FIGURES[name](found)))
        for name, (question, reading) in READINGS.items()
        if drawable(name, found)
    ]
    title = f"{found['given']} under the microscope"
    return whole_page(title, tag("p", about(found)), table(found), tag("p", LEGEND), *parts, style=_STYLE)


def table(found: Data) -> Html:
    """Which algorithm explains it best, up to which t."""
    lines = [(e["candidate"], str(e["until"]), str(e["ended"]), f"{e['score']:.2f}") for e in found["explanations"]]
    return html_table(("candidate", "explains up to t", "compared up to", "score"), lines)


def _svg(figure: Figure) -> Html:
    from matplotlib import rc_context

    with rc_context(STYLE):
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=PLAIN[".svg"])
    return Html("".join(written.getvalue().partition("<svg")[1:]))


def _one(title: str, x: str, y: str, log: bool = True) -> tuple[Figure, Axes]:
    figure, (axes,) = panels(1, width=7.6, height=3.9)
    tidy(axes, title, x, y)
    if log:
        axes.set_yscale("log")
    return figure, axes


def _look(name: str) -> dict[str, Any]:
    """The model in front, thick; each algorithm in its colour."""
    if name == "model":
        return {"color": INK, "linewidth": 2.4, "zorder": 5}
    if name == "untrained":
        return {"color": FAINT, "linewidth": 1.2, "linestyle": ":"}
    k = _KNOWN.index(name)
    return {
        "color": CURVES[k % 6],
        "marker": MARKERS[k % 6],
        "linestyle": _STYLES[k // 6],
        "linewidth": 1,
        "markersize": 3,
    }


def _lines(axes: Axes, curves: dict[str, Sequence[float]], start: int, legend: bool = True) -> None:
    for name, values in curves.items():
        shown = [value if value is not None and value > 1e-18 else float("nan") for value in values]
        axes.plot(range(start, start + len(values)), shown, label=name, **_look(name))
    if legend:
        axes.legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _squared(found: Data, test: str, statistic: str, what: str, start: int = 0, x: str = "iteration") -> Figure:
    """A statistic of a test, a curve for each subject."""
    figure, axes = _one(finding(test, found), x, f"squared {what}, {statistic}")
    _lines(axes, {name: each[statistic] for name, each in found[test].items()}, start)
    return figure


def _explained(found: Data) -> Figure:
    figure, axes = _one(finding("explanations", found), "iteration", "ratio of the rule")
    _lines(axes, {e["candidate"]: e["ratio"][: e["ended"]] for e in found["explanations"]}, 1)
    axes.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
    axes.set_ylim(1e-4, 100)
    return figure


def _krylov(found: Data) -> Figure:
    figure, axes = _one(finding("krylov", found), "iteration", "squared distance of x_t from K_t")
    _lines(axes, {name: [row[0] for row in each["distance"]] for name, each in found["krylov"].items()}, 1)
    return figure


def _operators(found: Data) -> Figure:
    figure, axes = _one(finding("operators", found), "iteration", "share off the diagonal", log=False)
    for name, each in found["operators"].items():
        axes.plot(each["iterates"], each["off_diagonal"], label=name, **_look(name))
    axes.legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _filters(found: Data) -> Figure:
    iterates = found["operators"]["model"]["iterates"]
    figure, axes = panels(len(iterates), width=2.7, height=3.0)
    for k, (axis, t) in enumerate(zip(axes, iterates, strict=True)):
        rows = {name: found["operators"][name]["filter"][k] for name in ("model", "cg", "pcg", "fixed polynomial")}
        off = max(abs(a - b) for a, b in zip(rows["model"], rows["cg"], strict=True))
        tidy(
            axis, f"t = {t}: within {off:.1g} of CG's", "eigenvalues, low to high", "spectral filter" if k == 0 else ""
        )
        _lines(axis, rows, 1, legend=k + 1 == len(iterates))
    return figure


def _symmetries(found: Data) -> Figure:
    figure, axes = panels(len(found["symmetries"]), width=3.0, height=3.2)
    for k, (axis, (label, table)) in enumerate(zip(axes, found["symmetries"].items(), strict=True)):
        own = table["model"]["defect"]["median"][min(2, found["T"])]
        tidy(axis, f"{label}\nmedian at t = 2: {own:.1e}", "iteration", "squared defect, median" if k == 0 else "")
        axis.set_yscale("log")
        shown = ("model", "cg", "pcg", "fixed polynomial", "untrained")
        _lines(axis, {name: table[name]["defect"]["median"] for name in shown}, 0, legend=k + 1 == len(axes))
        axis.set_xlim(0, found["T"] + 0.2)  # of an empty panel too
    return figure


def _termination(found: Data) -> Figure:
    figure, axes = panels(len(found["termination"]), width=3.8, height=3.4)
    for k, (axis, (label, table)) in enumerate(zip(axes, found["termination"].items(), strict=True)):
        t = min(2 + k, found["T"])
        own, cg = (table[name]["median"][t] for name in ("model", "cg"))
        tidy(axis, f"{label}, t = {t}:\n{own:.1e}, CG {cg:.1e}", "iteration", "" if k else "squared error")
        axis.set_yscale("log")
        _lines(axis, {name: each["median"] for name, each in table.items()}, 0, legend=k + 1 == len(axes))
    return figure


def _elsewhere(found: Data) -> Figure:
    table = found["elsewhere"]
    figure, axes = _one(finding("elsewhere", found), "", "share of systems above 1", log=False)
    places = range(len(table))
    for k, name in enumerate(("model", "cg", "pcg", "untrained")):
        heights = [each[name]["failures"][-1] for each in table.values()]
        colour = _look(name)["color"]
        axes.bar([place + 0.2 * (k - 1.5) for place in places], heights, width=0.18, color=colour, label=name)
    axes.set_xticks(list(places), list(table), rotation=30, ha="right", fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    return figure


def interchange_figure(found: Data) -> Figure:
    """Draw the shares of every exchange, a panel for each number of loops."""
    figure, axes = panels(len(found["exchanges"]), width=4.6, height=4.2)
    figure.suptitle(interchange_finding(found), fontsize=10, color=INK)
    for axis, each in zip(axes, found["exchanges"], strict=True):
        tidy(axis, f"after {each['loop']} loops", f"share, cut off at {_LOWEST}")
        names = list(each["shares"])
        for k in range(len(each["shares"][names[0]])):
            shares = [max(each["shares"][name][k], _LOWEST) for name in names]
            axis.plot(shares, range(len(names)), linestyle="", marker=MARKERS[k], markersize=5, color=CURVES[k],
                      label=f"x_{each['loop'] + k + 1}")  # fmt: skip
        axis.axvline(0, color=INK, linewidth=0.8)
        axis.axvline(1, color=INK, linewidth=0.8, linestyle=":")
        axis.set_yticks(range(len(names)), names, fontsize=7.5)
        axis.set_xlim(_LOWEST - 0.1, 1.1)
        axis.legend(frameon=False, fontsize=7.5, loc="center left")
    axes[0].invert_yaxis()  # the panels share it
    return figure


FIGURES: dict[str, Callable[[Data], Figure]] = {
    "explanations": _explained,
    "errors": lambda found: _squared(found, "errors", "mean", "relative error"),
    "krylov": _krylov,
    "operators": _operators,
    "filters": _filters,
    "symmetries": _symmetries,
    "termination": _termination,
    "additivity": lambda found: _squared(found, "additivity", "median", "defect"),
    "elsewhere": _elsewhere,
    "beyond": lambda found: _squared(
        found, "beyond", "median", "relative error", 1, f"iterations, in multiples of T = {found['T']}"
    ),
    "interchange": lambda found: interchange_figure(found["interchange"]),
}
