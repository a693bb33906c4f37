"""The tables and the chart of docs/when.md, from what ``benchmarks.worth --out`` wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby, product
from typing import Any

from benchmarks.worth_methods import BUNDLED, BY_HAND, LEARNED
from nlaformer.provenance import in_words
from nlaformer.report.figure import CURVES, FAINT, INK, MARKERS, tidy

HEADING = "## Measured"
_NAMED = {"spd": "the paper's family", "grid": "diffusion on a grid"}
_FAMILY = "spd"  # the family of the chart
_DRAWN = ("CG", "Jacobi", BY_HAND, *BUNDLED)
_EXPLAINED = """\
`python -m benchmarks.worth` measures, and its text has the rules. A row is named by device, family, n, matrices and
right-hand sides for each. Times are for all of them, set-up included, as multiples of the time of batched Cholesky in
the same row; the fastest of a row is bold, - is left out. *Fixed* is a loop with a fixed number of iterations, *solve*
the certified `nf.solve`. `spd` is the paper's family, sigma 1, 1.2 and 1.4; `grid` is `Poisson2D`."""

_Row = dict[str, Any]


def section(documents: list[dict[str, Any]]) -> str:
    """The section: what the rows say, the work, the times, and what was left out."""
    parts = [HEADING, _EXPLAINED, "### What the rows say", "\n".join(f"- {line}" for line in _sentences(documents))]
    parts += ["### Work for one right-hand side", _work(documents)]
    for document in documents:
        where = document["provenance"]
        load = (
            f"load {where['load']:.1f} before and {where['load_after']:.1f} after, PyAMG {where['pyamg'] or 'absent'}"
        )
        parts += [f"### Times, {_device(document)}", f"{in_words(where)}; {load}."]
        parts += [_times([row for row in document["rows"] if row["family"] == family]) for family in _NAMED]
    return "\n\n".join([*parts, "### Left out", _left_out(documents)]) + "\n"


def _device(document: dict[str, Any]) -> str:
    machine = document["provenance"]["machine"]
    return str(machine["accelerators"][0] if document["device"] == "cuda" else machine["processor"])


def _cells(rows: list[_Row]) -> Iterator[tuple[str, list[_Row]]]:
    """The cells in which Cholesky was measured, with their measured rows."""
    for cell, group in groupby(rows, key=lambda row: str(row["cell"])):
        measured = [row for row in group if not row["left_out"]]
        if measured and measured[0]["method"] == "Cholesky":
            yield cell, measured


def _fastest(rows: list[_Row]) -> _Row:
    return min(rows, key=lambda row: row["seconds"])


def finding(documents: list[dict[str, Any]]) -> str:
    """How often which kind of method is the fastest in the cells that are drawn, in one sentence: the chart's title."""
    drawn = ([row for row in document["rows"] if row["family"] == _FAMILY] for document in documents)
    best = [_fastest(rows)["method"] for own in drawn for _, rows in _cells(own)]
    learned = sum(method in LEARNED for method in best)
    often = f"in {learned}" if learned else "in none"
    return f"Batched Cholesky is the fastest in {best.count('Cholesky')} of {len(best)} cells, a learned method {often}"


def _sentences(documents: list[dict[str, Any]]) -> Iterator[str]:
    for document in documents:
        for family, name in _NAMED.items():
            cells = dict(_cells([row for row in document["rows"] if row["family"] == family]))
            best = {cell: _fastest(rows) for cell, rows in cells.items()}
            won: dict[str, list[str]] = defaultdict(list)
            for cell, row in best.items():
                won[row["method"]].append(f"`{cell}`")
            where = f"{_device(document)}, {name}"
            mine = sum(len(won[method]) for method in LEARNED)
            text = f"{where}: Cholesky is the fastest in {len(won.pop('Cholesky', []))} of {len(cells)} rows"
            others = "; ".join(f"{method} in {', '.join(found)}" for method, found in won.items() if found)
            yield text + (f"; {others}." if others else ".") + f" A learned method is in {mine or 'none'}."
            for method, rival in product(LEARNED, ("CG", BY_HAND, "IC(0)")):
                if compared := _compared(cells, method, rival):
                    yield f"{where}: {_in_words(compared, method, rival)}"


def _compared(cells: dict[str, list[_Row]], method: str, rival: str) -> dict[str, float]:
    """The time of a method over that of another, both in the fixed form, in every cell that has both."""
    found = {}
    for cell, rows in cells.items():
        times = {row["method"]: row["seconds"] for row in rows if row["form"] == "fixed"}
        if method in times and rival in times:
            found[cell] = times[method] / times[rival]
    return found


def _in_words(ratios: dict[str, float], method: str, rival: str) -> str:
    least, most = min(ratios, key=lambda cell: ratios[cell]), max(ratios, key=lambda cell: ratios[cell])
    faster = sum(ratio < 1 for ratio in ratios.values())
    ends = f"{_number(ratios[least])} (`{least}`) to {_number(ratios[most])} (`{most}`)"
    return (
        f"{method} takes {ends} times the time of {rival}, both fixed, and is faster in {faster} of {len(ratios)} rows."
    )


def _work(documents: list[dict[str, Any]]) -> str:
    """Iterations, products, calls and operations of nf.solve: of the largest batch that was measured on any device."""
    head = ["family", "n", "method", "matrices", "iterations", "products with A", "calls of a network", "kFLOP"]
    lines = [_line([*head, "kFLOP, of 100"]), _line([":--", "--:", ":--", *["--:"] * 6])]
    rows = [row for document in documents for row in document["rows"] if row["form"] != "fixed"]
    for family, n in dict.fromkeys((row["family"], row["n"]) for row in rows):
        own = [row for row in rows if (row["family"], row["n"]) == (family, n) and row["flops"] is not None]
        for method in dict.fromkeys(row["method"] for row in own):
            single, many = (
                _largest([row for row in own if (row["method"], row["sides"]) == (method, k)]) for k in (1, 100)
            )
            if single is None:
                continue
            counts = [_number(single[name]) for name in ("iterations", "products", "calls")]
            work = [_number(row["flops"] / 1e3 if row else None) for row in (single, many)]
            lines.append(_line([family, str(n), method, f"{single['batch']:,}", *counts, *work]))
    return "\n".join(lines)


def _largest(rows: list[_Row]) -> _Row | None:
    return max(rows, key=lambda row: int(row["batch"]), default=None)


def _number(value: float | None) -> str:
    """Three digits; whole numbers from 100 on."""
    return "-" if value is None else f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _times(rows: list[_Row]) -> str:
    columns = list(dict.fromkeys((row["method"], row["form"]) for row in rows))
    titles = [f"{method}, {form}" if form else method for method, form in columns]
    titles[0] = "Cholesky, ms"
    lines = [_line(["row", *titles]), _line([":--", *["--:"] * len(titles)])]
    for cell, group in groupby(rows, key=lambda row: row["cell"]):
        found = {(row["method"], row["form"]): row for row in group if not row["left_out"]}
        if not found:
            continue
        best, cells = _fastest(list(found.values())), [f"`{cell}`"]
        for column in columns:
            row = found.get(column)
            value = None if row is None else row["against_cholesky"] if column != columns[0] else 1e3 * row["seconds"]
            cells.append(f"**{_number(value)}**" if row is best else _number(value))
        lines.append(_line(cells))
    return "\n".join(lines)


def _left_out(documents: list[dict[str, Any]]) -> str:
    """The cells without a figure, by reason; what is left out stays so with more right-hand sides."""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for document in documents:
        for cell, group in groupby(document["rows"], key=lambda row: row["cell"].rpartition("-")[0]):
            rows = list(group)
            kinds = [(row["left_out"].partition(":")[0], row) for row in rows if row["left_out"]]
            for kind in dict.fromkeys(kind for kind, _ in kinds):
                own = [row for found, row in kinds if found == kind]
                first: dict[str, int] = {}
                for row in own:
                    first.setdefault(row["method"] + (f", {row['form']}" if row["form"] else ""), row["sides"])
                if len(first) == len({(row["method"], row["form"]) for row in rows}) and len(set(first.values())) == 1:
                    first = {"all methods": next(iter(first.values()))}
                for method, sides in first.items():
                    reasons[kind, method].append(f"`{cell}-{sides}`")
    lines = [_line(["reason", "method", "from this row on"]), _line([":--", ":--", ":--"])]
    return "\n".join([*lines, *(_line([*about, " ".join(cells)]) for about, cells in reasons.items())])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw(documents: list[dict[str, Any]]) -> Any:
    """Time over that of batched Cholesky, over the right-hand sides: a panel for a device, a batch and an n of spd."""
    from matplotlib.figure import Figure

    rows = [(document, row) for document in documents for row in document["rows"] if row["family"] == _FAMILY]
    sizes, batches = (sorted({row[key] for _, row in rows}) for key in ("n", "batch"))
    lines = [(document, batch) for document in documents for batch in batches]
    figure = Figure(figsize=(2.6 * len(sizes), 2.1 * len(lines) + 1), layout="constrained")
    grid = figure.subplots(len(lines), len(sizes), squeeze=False, sharex=True, sharey=True)
    for axes_of_line, (document, batch) in zip(grid, lines, strict=True):
        for axes, n in zip(axes_of_line, sizes, strict=True):
            own = [r for d, r in rows if d is document and (r["batch"], r["n"]) == (batch, n) and not r["left_out"]]
            _panel(axes, own)
            device = "CPU, one thread" if document["device"] == "cpu" else _device(document)
            matrices = "1 matrix" if batch == 1 else f"{batch:,} matrices"
            last = document is documents[-1] and batch == batches[-1]
            tidy(axes, f"n = {n}, {matrices}\n{device}", "right-hand sides for each matrix" if last else "")
    handles = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(
        f"{finding(documents)}\n(the paper's family; grids in the tables of docs/when.md)", fontsize=10, color=INK
    )
    figure.supylabel("time over that of batched Cholesky", fontsize=9)
    return figure


def _panel(axes: Any, rows: list[_Row]) -> None:
    axes.axhline(1.0, color=INK, linewidth=1.0)
    for k, method in enumerate(_DRAWN):
        for form, style in (("fixed", "-"), ("solve", ":")):
            own = [
                (row["sides"], row["against_cholesky"])
                for row in rows
                if (row["method"], row["form"]) == (method, form)
            ]
            if own and (form == "fixed" or method in LEARNED):
                look = {
                    "color": CURVES[k],
                    "marker": MARKERS[k],
                    "markersize": 3.2,
                    "linewidth": 1.3,
                    "linestyle": style,
                }
                axes.plot(*zip(*own, strict=True), label=f"{method}, {form}", **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    if not axes.get_legend_handles_labels()[0]:
        axes.text(0.5, 0.5, "left out", color=FAINT, fontsize=8, ha="center", transform=axes.transAxes)
