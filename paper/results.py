"""The committed numbers: one JSON file per finished run in ``paper/results/runs``, and the files artefacts measure.

Every file carries its provenance. Numbers are kept to six significant digits.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from nlaformer.errors import FileError, NLAFormerError
from nlaformer.io import make_folder, replace_file
from nlaformer.learn.recipes import Config
from paper import plan

Key = TypeVar("Key", bound=Hashable)

RUNS = "runs"
HOME = Path(__file__).parent / "results"
# What reading a document raises when it holds something else than it should.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration)
DIGITS = 6
# What every run is asked for on the systems it was trained on.
_CURVES = ("model", "cg", "pcg", "deviation", "intermediate", "silence")
# What tells a run of the plan from the others, at any size.
_SHAPE = ("T", "d", "heads", "pre_layers", "loop_layers", "post_layers", "shared", "inject", "window")
_KIND = ("supervision", "teacher", "eta", "lambda_", "power", "lr", "sigma", "seed")


def document(name: str, folder: Path = HOME) -> dict[str, Any]:
    """The committed document of this name, as in its file: ``document("controls")``, ``document("runs/NAME")``."""
    return json.loads((folder / f"{name.removesuffix('.json')}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def runs(folder: Path = HOME) -> dict[str, dict[str, Any]]:
    """The documents of all finished runs by name."""
    return {path.stem: document(f"{RUNS}/{path.stem}", folder) for path in sorted((folder / RUNS).glob("*.json"))}


@dataclass(frozen=True)
class Record:
    """A finished run: what was trained, where, how it went and what came out."""

    name: str
    document: dict[str, Any]

    @property
    def config(self) -> Config:
        return Config.from_json(self.document["config"])

    @property
    def arithmetic(self) -> str:
        """What it was trained in: bf16, tf32, float32."""
        return self.document["trained"]["arithmetic"]

    @property
    def history(self) -> dict[str, Any]:
        """Columns over the validations: step (0 is before training), discrepancy; and errors at some of them."""
        return self.document["history"]

    @cached_property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The evaluations by their label, such as "sigma 1.2"; see nlaformer.learn.evaluate.Evaluation."""
        return restored(self.document["evaluations"])

    @property
    def own(self) -> dict[str, Any]:
        """The evaluation on the systems it was trained on."""
        return self.evaluations[self.document["own"]]

    def summary(self) -> str:
        """In a line, how it ended: squared relative errors and the discrepancy of (r, d)."""
        errors, last = self.own["model"], len(self.own["model"]) - 1
        shown = ", ".join(f"t={t} {errors[t]:.1e}" for t in sorted({1, 2, last // 2, last}))
        return f"{self.document['state']}, {shown}, discrepancy {self.own['discrepancy']:.3g}"


class Results:
    """A folder of results."""

    def __init__(self, folder: Path, commit: str | None = None):
        self.folder, self.commit = folder, commit
        self.last_read: Path | None = None
        self._read: dict[Path, tuple[tuple[int, ...], Record]] = {}  # figures, tables and verdicts share their runs

    def file(self, name: str) -> dict[str, Any] | None:
        """The JSON document of this name, if there is one."""
        path = self.folder / name
        if not path.exists():
            return None
        self.last_read = path
        try:
            document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        except (OSError, ValueError, RecursionError) as error:
            raise FileError(f"{path} is not a JSON document ({error}); fetch it again, or run it again") from error
        if not isinstance(document, dict) or "provenance" not in document:
            raise FileError(f"{path} does not say where its numbers come from; it needs a 'provenance'")
        return document

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Around whatever reads documents: one that holds something else than it should is an error of that file's."""
        try:
            yield
        except FileError:
            raise
        except (NLAFormerError, *_MALFORMED) as error:
            raise FileError(
                f"{what}: a file in {self.folder} does not hold the numbers it should, probably {self.last_read} "
                f"({error!r}); fetch it again, or remove it and run it again"
            ) from error

    def write(self, name: str, document: dict[str, Any]) -> Path:
        """Keep a document, its numbers rounded, with its provenance; the commit is ours, or the one we were told."""
        from nlaformer.provenance import provenance

        path = self.folder / name
        make_folder(path.parent)
        text = json.dumps(rounded({"provenance": provenance(self.commit), **document}), indent=1, allow_nan=False)
        replace_file(path, (_rows(text) + "\n").encode())
        return path

    def run(self, name: str) -> Record | None:
        """A finished run; its file is read and checked once, and again when it has changed."""
        path = self.folder / RUNS / f"{name}.json"
        if not path.exists():
            return None
        stat = path.stat()
        stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if path in self._read and self._read[path][0] == stamp:
            self.last_read = path
            return self._read[path][1]
        document = self.file(f"{RUNS}/{name}.json")
        if document is None:
            return None
        if document.get("name", name) != name:
            raise FileError(f"{self.last_read} holds the numbers of another run, {document['name']}; fetch it again")
        record = Record(name, document)
        try:
            _check(record)
        except (NLAFormerError, *_MALFORMED) as error:
            raise FileError(
                f"{self.last_read} does not hold the numbers of a run ({error}); fetch it again, or remove it and run "
                "it again"
            ) from error
        self._read[path] = stamp, record
        return record

    def lengths(self, name: str) -> dict[int, Record]:
        """A run as it was planned and its shorter forms (their files end in "-20k"), by their number of steps."""
        pattern = re.compile(re.escape(name) + r"(-\d+k?)?")
        stems = [path.stem for path in sorted((self.folder / RUNS).glob(f"{name}*.json"))]
        others = plan.runs().keys() - {name}  # "bundled-cg-imitation-150k" is no short form of anything
        found = [self.run(stem) for stem in stems if pattern.fullmatch(stem) and stem not in others]
        return {record.config.steps: record for record in found if record is not None}

    def of_config(self, name: str, config: Config) -> Record | None:
        """The run of this very config, among those whose names begin so: some are of one length."""
        found = (self.run(path.stem) for path in sorted((self.folder / RUNS).glob(f"{name}*.json")))
        return next((record for record in found if record is not None and record.config == config), None)

    def together(self, names: Iterable[str]) -> dict[str, Record]:
        """Runs to be compared, by name: of one length, that at which most of them are there, the longer of two."""
        known = {name: self.lengths(name) for name in names}
        counts: dict[int, int] = {}
        for lengths in known.values():
            for steps in lengths:
                counts[steps] = counts.get(steps, 0) + 1
        if not counts:
            return {}
        best = max(counts, key=lambda steps: (counts[steps], steps))
        return {name: lengths[best] for name, lengths in known.items() if best in lengths}

    def kinds(self, names: Mapping[Key, Iterable[str]]) -> dict[Key, list[Record]]:
        """Runs to be compared by kind, a list of those seeds that are there; no kind without any."""
        listed = {key: list(seeds) for key, seeds in names.items()}
        records = self.together(name for seeds in listed.values() for name in seeds)
        found = {key: [records[name] for name in seeds if name in records] for key, seeds in listed.items()}
        return {key: seeds for key, seeds in found.items() if seeds}

    def there(self, names: Mapping[Key, str]) -> dict[Key, Record]:
        """Those of some runs that are there, of whatever length, by whatever key each name is given under."""
        return {key: record for key, name in names.items() if (record := self.run(name)) is not None}

    def keyed(self, names: Mapping[Key, str]) -> dict[Key, Record]:
        """Those of some runs that can be compared, by whatever key each name is given under."""
        records = self.together(names.values())
        return {key: records[name] for key, name in names.items() if name in records}


def _check(record: Record) -> None:
    """Refuse what no run can have come to, where it is read: later nobody could tell which file it came from."""
    config, planned = record.config, plan.runs().get(record.name)
    if record.document["state"] not in ("finished", "diverged"):
        raise ValueError(f"its state is {record.document['state']!r}")
    if planned is not None and planned.begins_with is None and not planned.keep:
        fields = _KIND if config.n != planned.config.n else (*_KIND, *_SHAPE)  # tiny ones have another shape
        other = [field for field in fields if getattr(config, field) != getattr(planned.config, field)]
        if other:
            raise ValueError(f"its config is that of another run, in {', '.join(other)}")
    if not isinstance(record.arithmetic, str):
        raise ValueError(f"it was trained in {record.arithmetic!r}")
    steps = record.history["step"]
    _check_numbers("the steps of its history", steps, len(steps), known=True)
    _check_numbers("the errors of its history", record.history["final_error"], len(steps))
    for label, row in record.document["evaluations"].items():
        needed: tuple[str, ...] = ("model",)
        if label == record.document["own"]:
            needed = (*_CURVES, *(["loops"] if config.shared else []))  # what is not shared cannot be repeated
        for name in dict.fromkeys((*needed, *(name for name in (*_CURVES, "loops") if name in row))):
            length = 2 * config.T + 1 if name == "loops" else config.T + 1
            _check_numbers(f"{name} on {label}", row[name], length, known=name in ("cg", "pcg", "silence"))
        _check_numbers(f"the discrepancy on {label}", [row["discrepancy"]], 1)
        if label == record.document["own"] or "counts" in row:
            _check_counts(f"the counts on {label}", row["counts"], config.T + 1)
            _check_numbers(f"the condition numbers on {label}", row["condition"], 4, known=True)
    if record.document["own"] not in record.document["evaluations"]:
        raise ValueError(f"it has no evaluation on {record.document['own']}")


def _check_counts(what: str, counts: Mapping[str, Mapping[str, Any]], most: int) -> None:
    """Iterations by threshold, as many thresholds for every method."""
    thresholds = len(counts["cg"]["mean"])
    for name in ("model", "cg", "pcg"):
        _check_numbers(what, counts[name]["reached"], thresholds, known=True, most=1)
        for row in (counts[name]["mean"], *counts[name]["by_condition"]):
            _check_numbers(what, row, thresholds, known=True, most=most)


def _check_numbers(what: str, found: Any, length: int, known: bool = False, most: float = sys.float_info.max) -> None:
    """So many numbers, none negative; null, for what is not finite, only where they need not be ``known``."""
    if not isinstance(found, list) or len(found) != length:
        raise ValueError(f"{what}: expected {length} numbers")
    for value in found:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
        if not (fits or (value is None and not known)):
            raise ValueError(f"{what}: {value!r:.40}")


def _no_number(name: str) -> None:
    """NaN and Infinity are not JSON, and compare so that a verdict may come out either way."""
    raise ValueError(f"{name} is no number; null stands for what is not finite")


def rounded(value: Any) -> Any:
    """Plain data with its numbers to six significant digits; JSON has no NaN, so what is not finite becomes null.

    >>> rounded({"a": [0.123456789, 3], "b": float("inf")})
    {'a': [0.123457, 3], 'b': None}
    """
    if isinstance(value, dict):
        return {str(key): rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if abs(value) < float("inf") else None
    return value


def restored(value: Any) -> Any:
    """Measured data as a file holds them, infinite where they were not finite.

    >>> restored({"a": [0.5, None]})
    {'a': [0.5, inf]}
    """
    if isinstance(value, dict):
        return {key: restored(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [restored(entry) for entry in value]
    return float("inf") if value is None else value


def _rows(text: str) -> str:
    """Indented JSON with every list of plain values on one line: small files, readable differences."""
    return re.sub(r"\[\n\s*([^\[\]{}]*?)\n\s*\]", lambda m: "[" + re.sub(r",\n\s*", ", ", m[1]) + "]", text)
