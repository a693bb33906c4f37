"""What needs no training: Table 1, compiled CG, the systems of section 4, and the diagrams of Figures 1 to 3.

The paper's Table 1 has the input size and the layers of NLAFormer and of the loop-transformer. Here each has tables of
its own, with what the paper prints in brackets, and the errors beside the proven bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import make_spd_matrix

from benchmarks import algorithms as compiled
from nlaformer.arrays import DTYPES
from nlaformer.console import Sheet
from nlaformer.express.accuracy import SEEDS, accuracy
from nlaformer.express.construction import Cost
from nlaformer.express.operation import Operation, operation
from nlaformer.express.theorem import RECORDS
from nlaformer.learn.evaluate import SEED, plain_factor
from nlaformer.learn.recipes import recipe
from nlaformer.problems import SPD
from paper import diagrams, loop_transformer, plan
from paper.curves import short
from paper.results import Results

OPERATIONS, CG, SYSTEMS = "operations", "conjugate-gradients", "systems"
_BARE = "without"  # key of the matrices without a diagonal
_QUANTILES = (0.1, 0.5, 0.9)
_RECIPE = recipe("cg-imitation")  # whose sizes the diagrams show
_TITLE = f"{_RECIPE.recipe}, n = {_RECIPE.n}"
Row = dict[str, Any]
_GROWTH_SIZES = (16, 32, 64, 128, 256, 512)
_VACUOUS = 0.1  # a relative bound above this is of the size of the result itself


# --- Table 1 ---


def measure_operations(small: bool) -> dict[str, Any]:
    """Build, run and count every operation of the paper."""
    return {"rows": measure_all(4 if small else 20)}


def measure_all(n: int) -> list[Row]:
    """A row for every operation that the paper has and each of its forms."""
    papers = {name: record for name, record in RECORDS.items() if record.printed is not None}
    return [measure_row(name, n, form) for name, record in papers.items() for form in record.forms]


def measure_row(name: str, n: int, form: str = "accurate") -> Row:
    """Cost, growth of the prompt's entries, error and bound of one operation; the same of the loop-transformer.

    ``paper_scheme`` is the accuracy of the paper's own pair of heads, empty where the operation linearizes nothing.
    """

    def build(size: int, dtype: str = "float64", scheme: str = "antisymmetric") -> Operation:
        return operation(name, n=size, scheme=scheme, dtype=DTYPES[dtype], form=form, f=RECORDS[name].f)

    ours, papers = ({dtype: build(n, dtype, scheme) for dtype in DTYPES} for scheme in ("antisymmetric", "paper"))
    papers = {dtype: op for dtype, op in papers.items() if not _same_weights(ours[dtype], op)}
    printed = RECORDS[name].printed
    return {
        "operation": name,
        "form": form,
        "n": n,
        "cost": _cost(ours["float64"].cost),
        "growth": growth(lambda size: build(size).cost),
        "accuracy": {dtype: asdict(accuracy(name, n, op, dtype)) for dtype, op in ours.items()},
        "paper_scheme": {dtype: asdict(accuracy(name, n, op, dtype)) for dtype, op in papers.items()},
        "printed": printed and {"entries": f"O({printed.size})", "layers": printed.layers, "heads": printed.heads},
        "loop_transformer": measure_loop(name, n) if form == "accurate" and name in loop_transformer.names() else None,
    }


def measure_loop(name: str, n: int) -> Row:
    """The loop-transformer for one operation: with reads and writes, and its function block alone."""
    machines = {dtype: loop_transformer.build(name, n, dtype=DTYPES[dtype]) for dtype in DTYPES}
    cost, block_cost = loop_transformer.count(name, n)
    counts = {size: loop_transformer.count(name, size) for size in _GROWTH_SIZES}
    printed = RECORDS[name].printed
    return {
        "cost": _cost(cost),
        "growth": growth(lambda size: counts[size][0]),
        "block_cost": _cost(block_cost),
        "block_growth": growth(lambda size: counts[size][1]),
        "accuracy": {dtype: asdict(accuracy(name, n, machine, dtype)) for dtype, machine in machines.items()},
        "printed": printed and {"entries": f"O({printed.loop_size})", "layers": printed.loop_layers},
    }


def growth(cost: Callable[[int], Cost]) -> float:
    """The exponent p of entries ~ n^p, fitted by least squares over sizes of 16 and more.

    >>> round(growth(lambda n: operation("matmul", n=n).cost), 2)
    1.98
    """
    entries = [cost(n).entries for n in _GROWTH_SIZES]
    return float(np.polyfit(np.log(_GROWTH_SIZES), np.log(entries), 1)[0])


def _cost(cost: Cost) -> dict[str, int]:
    return asdict(cost) | {"entries": cost.entries}


def _same_weights(one: Operation, other: Operation) -> bool:
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[key]) for key, value in mine.items())


def operations_tables(results: Results) -> list[Sheet]:
    """The committed Table 1."""
    return sheets(results.document(OPERATIONS)["rows"])


def sheets(rows: Sequence[Row]) -> list[Sheet]:
    """Size, accuracy in each dtype, the loop-transformer's size with reads and writes, and that of its block alone."""
    n = rows[0]["n"]
    loop = [row["loop_transformer"] | {"operation": row["operation"]} for row in rows if row["loop_transformer"]]
    block = [row | {"cost": row["block_cost"], "growth": row["block_growth"], "printed": None} for row in loop]
    return [
        _size(
            f"NLAFormer, n = {n}: size of prompt and transformer",
            rows,
            "In brackets: as the paper prints it. Growth is fitted over "
            f"n = {_GROWTH_SIZES[0]} to {_GROWTH_SIZES[-1]}. multiply, divide and pointwise need position rows to be "
            "accurate, hence n^2; one FFN, the paper's form, does not. pointwise is f(a, b) = a b + b / 3.",
        ),
        *(_accuracy(rows, dtype) for dtype in rows[0]["accuracy"]),
        _size(
            f"Loop-transformer, n = {n}, with reads and writes: built and run",
            loop,
            "In brackets: as the paper prints it. In the manner of Giannou et al. 2023.",
        ),
        _size(f"Loop-transformer, n = {n}, block only: its operands already in place", block),
    ]


def _size(title: str, rows: Sequence[Row], note: str = "") -> Sheet:
    headings = ("operation", "rows x\ntokens", "entries", "entries\ngrow like", "layers", "heads", "FFN\nwidth")
    lines = []
    for row in rows:
        cost, printed = row["cost"], row["printed"] or {}
        cells = {"entries": f"n^{abs(row['growth']):.2f}", "layers": str(cost["layers"]), "heads": str(cost["heads"])}
        with_printed = [
            f"{cell} ({printed[key].removeprefix('O(').removesuffix(')')})" if key in printed else cell
            for key, cell in cells.items()
        ]
        sizes = (f"{cost['rows']} x {cost['tokens']}", f"{cost['entries']:,}")
        lines.append((_label(row), *sizes, *with_printed, f"{cost['ffn_width']:,}"))
    return Sheet(title, headings, tuple(lines), note)


def _accuracy(rows: Sequence[Row], dtype: str) -> Sheet:
    def error(accuracy: Row) -> str:
        return f"{accuracy[dtype]['error']:.1e}" if dtype in accuracy else "-"

    lines = []
    for row in rows:
        bound, loop = row["accuracy"][dtype]["bound"], (row["loop_transformer"] or {}).get("accuracy", {})
        marked = "*" * (bound > _VACUOUS) + f"{bound:.1e}"
        lines.append((_label(row), error(row["accuracy"]), marked, error(row["paper_scheme"]), error(loop)))
    doubt = any(row["accuracy"][dtype]["bound"] > _VACUOUS for row in rows)
    return Sheet(
        f"{dtype}, n = {rows[0]['n']}: relative error (median of {len(SEEDS)} seeds) and proven bound",
        ("operation", "error", "bound", "the paper's\nheads", "loop-\ntransformer"),
        tuple(lines),
        "In the Frobenius norm, relative to the result (inner_product: to |a| |b|). The paper's heads: the pair c and "
        "0, scheme=\"paper\"; '-' where they make the same transformer. Loop-transformer: '-' where it was not run."
        + " A bound with a * is above a tenth of the result: it says nothing."
        * doubt,
    )


def _label(row: Row) -> str:
    """The operation's name, and its form where it has two."""
    return row["operation"] if row.get("form", "accurate") == "accurate" else f"{row['operation']}, one FFN"


# --- Theorem 3.1: conjugate gradients ---


def measure_cg(small: bool) -> dict[str, Any]:
    """Compile CG, run it and count."""
    systems = 8 if small else 256
    rows = [compiled.measure("cg", n=4 if small else 20, systems=systems)]
    return {"systems": systems, "seed": compiled.SEED, "algorithms": rows}


def cg_table(results: Results) -> list[Sheet]:
    """How it converges, and the same program in NumPy."""
    document = results.document(CG)
    (cg,) = document["algorithms"]
    theirs = cg["reference_iterations"]
    lines = [
        (f"iterations to {level}", str(k or "-"), str(theirs[level] or "-")) for level, k in cg["iterations"].items()
    ]
    lines.append(("relative error at the end", f"{cg['error']:.1e}", f"{cg['reference_error']:.1e}"))
    lines.append(("layers an iteration", str(cg["layers"]), "-"))
    note = f"Medians of {document['systems']} systems, the error of the worst. How it is made: docs/compile.md."
    return [Sheet(f"Conjugate gradients, n = {cg['n']}", ("", "transformer", "NumPy"), tuple(lines), note)]


# --- the systems of section 4 ---


def measure_systems(small: bool) -> dict[str, Any]:
    """Condition numbers of scikit-learn's matrices, and of the paper's systems, which have a diagonal added to them."""
    count, n = 64 if small else 4096, 20
    bare = torch.stack([torch.from_numpy(make_spd_matrix(n, random_state=SEED + k)) for k in range(count)])
    matrices = {_BARE: bare} | {f"{sigma:g}": SPD(n=n, sigma=(sigma,)).sample(count, SEED).A for sigma in plan.SIGMAS}
    spectra = {which: torch.linalg.eigvalsh(A) for which, A in matrices.items()}
    quantiles = torch.tensor(_QUANTILES, dtype=torch.float64)
    conditions = {key: torch.quantile(found[:, -1] / found[:, 0], quantiles).tolist() for key, found in spectra.items()}
    smallest = {which: float(found.min()) for which, found in spectra.items()}
    return {"count": count, "n": n, "seed": SEED, "condition": conditions, "smallest_eigenvalue": smallest}


def systems_table(results: Results) -> list[Sheet]:
    """A line for each diagonal."""
    found = results.document(SYSTEMS)
    lines = tuple(
        (
            "make_spd_matrix alone" if which == _BARE else f"with the diagonal, sigma {which}",
            *map(plain_factor, row),
            short(found["smallest_eigenvalue"][which]),
        )
        for which, row in found["condition"].items()
    )
    headings = ("systems", *(f"{100 * quantile:g}% quantile" for quantile in _QUANTILES), "smallest eigenvalue")
    return [Sheet(f"Condition numbers of {found['count']:,} matrices each, n = {found['n']}", headings, lines)]


# --- Figures 1 to 3 ---


def transformer_figure(results: Results) -> Figure:
    """A layer with its shapes."""
    config, (layer, *_) = _RECIPE, _structure().blocks["loop"]
    return diagrams.layer_figure(layer, config.d, config.n + 1, f"One layer, eq. (1): the loop's of {_TITLE}")


def structure_figure(results: Results) -> Figure:
    """The pre, loop and post blocks."""
    return diagrams.structure_figure(_structure(), _TITLE)


def probe_figure(results: Results) -> Figure:
    """The probes of x and of (r, d)."""
    return diagrams.probe_figure(_structure(), _RECIPE.n, 2 * _RECIPE.n, _TITLE)


def _structure() -> diagrams.Structure:
    config = _RECIPE
    layer = diagrams.LayerShape(config.heads, config.d // config.heads, config.ffn_width, normalized=True)
    layers = {"pre": config.pre_layers, "loop": config.loop_layers, "post": config.post_layers}
    blocks = {block: [layer] * count for block, count in layers.items()}
    return diagrams.Structure((("a", config.n), ("b", 1)), config.n + 1, blocks, width=config.d, T=config.T)
