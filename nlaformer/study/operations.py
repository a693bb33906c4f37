"""Table 1: what the operations cost as transformers, beside the loop-transformer and beside the paper's figures."""

from __future__ import annotations

from typing import Any

from nlaformer.console import Sheet
from nlaformer.study.artefact import Artefact, Verdict, not_yet
from nlaformer.study.results import Results

FILE = "operations.json"
SIZE, LAYERS = "section 2, Table 1; section 1.2", "section 2, Table 1"


def measure(results: Results, small: bool) -> None:
    """Build, run and count every operation."""
    from nlaformer.express import table, verify

    rows = verify.measure_all(n=4 if small else 20)
    results.write(FILE, {"command": ARTEFACT.command(), "rows": table.as_data(rows)})


def sheets(results: Results) -> list[Sheet]:
    """Entries of the prompt and layers: ours, the loop-transformer's, the paper's in brackets."""
    if (document := results.file(FILE)) is None:
        return []
    lines = tuple(_line(row) for row in document["rows"] if row["form"] == "accurate")
    headings = ("operation", "entries", "grow like", "layers", "loop: entries", "grow like", "layers", "error, float64")
    note = "In brackets: as the paper prints it. Error: relative to the result. More columns: nlaformer operations."
    return [Sheet(f"Operations at n = {document['rows'][0]['n']}", headings, lines, note)]


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    loop, printed = row["loop_transformer"], row["printed"]
    theirs = ("-", "-", "-")
    if loop is not None:
        theirs = (
            f"{loop['cost']['entries']:,}",
            f"n^{loop['growth']:.1f} ({loop['printed']['entries']})",
            f"{loop['cost']['layers']} ({loop['printed']['layers']})",
        )
    return (
        row["operation"], f"{row['cost']['entries']:,}", f"n^{row['growth']:.1f} ({printed['entries']})",
        f"{row['cost']['layers']} ({printed['layers']})", *theirs, f"{row['accuracy']['float64']['error']:.0e}",
    )  # fmt: skip


def verdicts(results: Results) -> list[Verdict]:
    """Sizes, layers, and the comparison with the loop-transformer."""
    smaller = "NLAFormer's input is smaller than the loop-transformer's: a transpose takes O(n^2) instead of O(n^3)."
    layers = "Every operation takes the layers of Table 1: one, and two for A B and A b."
    fewer = "NLAFormer needs fewer layers than the loop-transformer for every operation."
    two = "A transpose takes a two-layer transformer."
    loop = "The loop-transformer takes 4 layers to transpose a matrix and 6 for A^T B."
    if (document := results.file(FILE)) is None:
        claims = {smaller: SIZE, layers: LAYERS, fewer: SIZE, two: "section 1.2", loop: "section 1.1"}
        return [not_yet(claim, where) for claim, where in claims.items()]
    rows = {row["operation"]: row for row in document["rows"] if row["form"] == "accurate"}
    return [_smaller(smaller, rows), _layers(layers, rows), _fewer(fewer, rows), _two(two, rows), _loop(loop, rows)]


def _smaller(claim: str, rows: dict[str, Any]) -> Verdict:
    row = rows["matrix_transpose"]
    loop = row["loop_transformer"]
    found = (
        f"At n = {row['n']} the transpose takes {row['cost']['entries']:,} entries, the loop-transformer's "
        f"{loop['cost']['entries']:,}; they grow like n^{row['growth']:.1f} and n^{loop['growth']:.1f}."
    )
    holds = row["growth"] < 2.2 and loop["growth"] > 2.5 and row["cost"]["entries"] < loop["cost"]["entries"]
    return Verdict(claim, SIZE, found, "holds" if holds else "differs")


def _layers(claim: str, rows: dict[str, Any]) -> Verdict:
    layers = {name: (row["cost"]["layers"], int(row["printed"]["layers"])) for name, row in rows.items()}
    more = [f"{name} {ours} for {theirs}" for name, (ours, theirs) in layers.items() if ours > theirs]
    less = [f"{name} {ours} for {theirs}" for name, (ours, theirs) in layers.items() if ours < theirs]
    parts = [f"{sum(ours == theirs for ours, theirs in layers.values())} of {len(layers)} as printed"]
    parts += [f"fewer: {', '.join(less)}"] if less else []
    parts += [f"more: {', '.join(more)} (one FFN alone, as the paper has it, is far less accurate)"] if more else []
    return Verdict(claim, LAYERS, "; ".join(parts) + ".", "differs" if more else "holds")


def _fewer(claim: str, rows: dict[str, Any]) -> Verdict:
    pairs = {
        name: (row["cost"]["layers"], row["loop_transformer"]["cost"]["layers"])
        for name, row in rows.items()
        if row["loop_transformer"] is not None
    }
    exceptions = [name for name, (ours, theirs) in pairs.items() if ours >= theirs]
    found = f"For {len(pairs) - len(exceptions)} of the {len(pairs)} operations built both ways"
    found += f"; not for {', '.join(exceptions)}." if exceptions else "."
    return Verdict(claim, SIZE, found, "differs" if exceptions else "holds")


def _two(claim: str, rows: dict[str, Any]) -> Verdict:
    layers = rows["matrix_transpose"]["cost"]["layers"]
    text = f"It takes {layers}, as the paper's own theorem and Table 1 say."
    return Verdict(claim, "section 1.2", text, "holds more strongly" if layers < 2 else "holds")


def _loop(claim: str, rows: dict[str, Any]) -> Verdict:
    transpose, product = (rows[name]["loop_transformer"] for name in ("matrix_transpose", "transposed_matmul"))
    text = (
        f"Built and run, it takes {transpose['cost']['layers']} and {product['cost']['layers']} with its reads and "
        f"writes, {transpose['block_cost']['layers']} and {product['block_cost']['layers']} without."
    )
    same = (transpose["cost"]["layers"], product["cost"]["layers"]) == (4, 6)
    return Verdict(claim, "section 1.1", text, "holds" if same else "differs")


ARTEFACT = Artefact(
    name="table-operations",
    title="What the operations cost as transformers",
    paper="Table 1",
    files=(FILE,),
    measure=measure,
    sheets=sheets,
    verdicts=verdicts,
)
