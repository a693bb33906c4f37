"""The tables of paper/ledger.md: the runs of paper/protocol.md that are filed, and what it reports of every kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from nlaformer.errors import FileError
from nlaformer.io import replace_file
from paper import plan
from paper.curves import geometric_mean
from paper.hypotheses import Numbers
from paper.quantities import capped_mean_error, failed, interval
from paper.results import HOME, Record, Results


def write() -> None:
    """Write the tables into paper/ledger.md, between its two marks."""
    path, results = HOME / "ledger.md", Results(HOME / "results", planned=plan.config_of)
    before, begin, rest = path.read_text(encoding="utf-8").partition("<!-- runs -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not begin or not end:
        raise FileError(f"{path} must have a line <!-- runs --> and after it a line <!-- end -->; put them back")
    if not _by_kind(results):
        raise FileError(f"there is no run of protocol.md in {results.folder}; put the results back")
    replace_file(path, f"{before}{begin}{tables(results)}\n{end}{after}".encode())


def tables(results: Results) -> str:
    """The tables of the ledger: the runs by group, and what the protocol reports of every kind of run."""
    filed, group = _by_kind(results), {name: str(run.group) for name, run in plan.confirmatory().items()}
    done = Counter(group[record.name] for records in filed.values() for record in records)
    lost = Counter(group[record.name] for records in filed.values() for record in records if failed(record))
    lines = ["| group | planned | done | failed |", "|---|---|---|---|"]
    lines += [f"| {each} | {k} | {done[each]} | {lost[each]} |" for each, k in sorted(Counter(group.values()).items())]
    lines += ["", "| group | kind | seeds | G, mean | G, 95% interval | median e_T | failures |", "|---" * 7 + "|"]
    for kind, records in sorted(filed.items(), key=lambda entry: group[entry[1][0].name]):
        scores = [capped_mean_error(record) for record in records]
        ends = [record.own["median"]["model"][-1] for record in records]
        cells = [group[records[0].name], kind, f"{len(records)}", _short(geometric_mean(scores)), _ends(scores)]
        cells += [_short(geometric_mean(ends)), f"{fmean(record.own['failures'] for record in records):.2%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def progress(results: Results) -> Numbers:
    """The runs planned and done, the test systems of each, and the largest G over the least among seeds of a kind."""
    filed = _by_kind(results)
    done = [record for records in filed.values() for record in records]
    systems = max((record.own["count"] for record in done), default=0)
    found: Numbers = {"planned": len(plan.confirmatory()), "done": len(done), "systems": systems}
    scores = {kind: [capped_mean_error(record) for record in records] for kind, records in filed.items()}
    spread = {kind: max(own) / min(own) for kind, own in scores.items() if len(own) > 1}
    found |= {"kinds": len(spread), "spread.above_1.5": sum(factor > 1.5 for factor in spread.values())}
    return found | {f"spread.{kind}": factor for kind, factor in spread.items()}


def _by_kind(results: Results) -> dict[str, list[Record]]:
    """The runs that are filed, by kind; a kind without any is left out."""
    kinds = plan.confirmatory_kinds().items()
    found = {kind: [results.run(name) for name in names if results.has_run(name)] for kind, names in kinds}
    return {kind: records for kind, records in found.items() if records}


def _ends(values: Sequence[float]) -> str:
    return " to ".join(map(_short, interval(values))) if len(values) > 1 else "-"


def _short(value: float) -> str:
    """Three digits; near 1, where two values may differ in later ones, three decimals."""
    return f"{value:.3f}" if abs(value - 1) < 0.1 else f"{value:.3g}"
