"""The committed numbers: a JSON file for each finished run in ``paper/results/runs``, and one for each measurement.

Every file carries its provenance: machine, versions, commit and date. Numbers have six significant digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from nlaformer.errors import FileError, NLAFormerError
from nlaformer.io import make_folder, replace_file
from nlaformer.learn.recipes import Config
from nlaformer.provenance import changed_since, in_words, loaded_files, provenance

_Key = TypeVar("_Key", bound=Hashable)

HOME = Path(__file__).parent
FOLDER = HOME / "results"
BENCHMARKS = HOME.parent / "benchmarks" / "results"
RUNS = "runs"
_DIGITS = 6
_OF_A_RUN = ("config", "state", "trained", "history", "own", "evaluations")
_CURVES = ("model", "cg", "pcg", "intermediate", "standard_error", "deviation", "silence")  # of an evaluation
_HISTORY = ("step", "discrepancy", "final_error")


@dataclass(frozen=True)
class Record:
    """A finished run: what was trained, where, how it went and what came out."""

    name: str
    document: dict[str, Any]

    @cached_property
    def config(self) -> Config:
        return Config.from_json(self.document["config"])

    @property
    def arithmetic(self) -> str:
        """The arithmetic of its training: bf16, tf32, float32."""
        return self.document["trained"]["arithmetic"]

    @cached_property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The evaluations by label, such as "spd, sigma 1.2"; see nlaformer.learn.evaluate.Evaluation."""
        return restored(self.document["evaluations"])

    @cached_property
    def history(self) -> dict[str, list[Any]]:
        """The validations during training: step, discrepancy and final_error, the mean squared error of x_T."""
        return restored(self.document["history"])

    @property
    def own(self) -> dict[str, Any]:
        """The evaluation on systems like those of its training."""
        return self.evaluations[self.document["own"]]

    def at(self, sigma: float) -> dict[str, Any]:
        """The evaluation at a sigma."""
        return self.evaluations[f"spd, sigma {sigma}"]


class Results:
    """A folder of results; documents written to it name the commit, ours or the one given.

    With ``planned``, the config that the run of a name must have, runs of other configs are refused.
    """

    def __init__(
        self, folder: Path = FOLDER, commit: str | None = None, planned: Callable[[str], Config] | None = None
    ):
        self.folder, self.commit, self._planned = folder, commit, planned
        self._records: dict[str, Record] = {}

    def has(self, name: str) -> bool:
        """Whether there is a document of this name."""
        return (self.folder / f"{name}.json").exists()

    def document(self, name: str) -> dict[str, Any]:
        """A document by name, such as "controls" or "runs/NAME"."""
        path = self.folder / f"{name}.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            entries = ("provenance", *(_OF_A_RUN if name.startswith(f"{RUNS}/") else ()))
            if gone := [entry for entry in entries if not isinstance(found, dict) or entry not in found]:
                raise ValueError(f"it has no {', '.join(gone)}")
            in_words(found["provenance"])
            if len(entries) > 1:
                _check_run(found)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, NLAFormerError) as error:
            raise FileError(f"cannot read {path} ({error}); fetch it again, or remove it and run it again") from error
        return found  # type: ignore[no-any-return]

    def write(self, name: str, document: dict[str, Any]) -> Path:
        """Write a document with its provenance, its numbers rounded."""
        path = self.folder / f"{name}.json"
        make_folder(path.parent)
        where = provenance(self.commit) | {"files": loaded_files()}
        text = json.dumps(rounded({"provenance": where, **document}), indent=1, allow_nan=False)
        replace_file(path, (_rows(text) + "\n").encode())
        return path

    def run(self, name: str) -> Record:
        """A finished run."""
        if name not in self._records:
            record = Record(name, self.document(f"{RUNS}/{name}"))
            if self._planned and (changed := _plain(record.config).differences(_plain(self._planned(name)))):
                raise FileError(
                    f"the run {name} in {self.folder} does not have its planned config: it differs in "
                    f"{', '.join(changed)}; remove it, or say --small if these are results of --small"
                )
            self._records[name] = record
        return self._records[name]

    def has_run(self, name: str) -> bool:
        """Whether the numbers of a run are there; a file that is there and damaged is refused."""
        if not self.has(f"{RUNS}/{name}"):
            return False
        self.run(name)  # refuses a damaged file
        return True

    def runs(self, names: Mapping[_Key, str]) -> dict[_Key, Record]:
        """Finished runs by the keys of their names."""
        return {key: self.run(name) for key, name in names.items()}

    def kinds(self, names: Mapping[_Key, Iterable[str]]) -> dict[_Key, list[Record]]:
        """Finished runs by kind, a list of seeds each."""
        return {key: [self.run(name) for name in seeds] for key, seeds in names.items()}


def older(results: Results) -> dict[tuple[str, ...] | None, list[str]]:
    """The documents whose code has changed since, by the files that have; None where git cannot tell."""
    found: dict[tuple[str, ...] | None, list[str]] = {}
    for path in sorted(results.folder.rglob("*.json")):
        name = path.relative_to(results.folder).with_suffix("").as_posix()
        changed = changed_since(results.document(name)["provenance"])
        if changed is None or changed:
            found.setdefault(None if changed is None else tuple(changed), []).append(name)
    return found


def sources(documents: Iterable[dict[str, Any]]) -> list[str]:
    """The machines and versions that documents come from, each once, with the commits and days."""
    places: dict[str, dict[str, None]] = {}
    for found in documents:
        *machine, commit, day = in_words(found["provenance"]).split("; ")
        accelerators = found["provenance"]["machine"]["accelerators"]
        places.setdefault("; ".join([*accelerators, *machine]), {})[f"{commit}, {day}"] = None
    return [f"{machine}; {'; '.join(commits)}" for machine, commits in places.items()]


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
        return float(f"{value:.{_DIGITS}g}") if abs(value) < float("inf") else None
    return value


def _check_run(found: dict[str, Any]) -> None:
    """Refuse a run whose numbers do not have their form: a curve has T + 1 of them, from 0 on, or null."""
    T = Config.from_json(found["config"]).T
    own = found["evaluations"][found["own"]]
    if gone := [name for name in (*_CURVES, "median", "upper", "discrepancy", "count") if name not in own]:
        raise ValueError(f"its evaluation {found['own']} has no {', '.join(gone)}")
    for label, row in found["evaluations"].items():
        curves = {name: row[name] for name in _CURVES if name in row}
        curves |= {f"{of} of {name}": curve for of in ("median", "upper") for name, curve in row.get(of, {}).items()}
        for name, curve in curves.items():
            if len(curve) != T + 1 or not all(value is None or value >= 0 for value in curve):
                raise ValueError(f"{name} of {label} is not {T + 1} numbers from 0 on")
    if len({len(found["history"][name]) for name in _HISTORY}) != 1 or not found["history"]["step"]:
        raise ValueError(f"its history has not as many of each: {', '.join(_HISTORY)}")


def _plain(config: Config) -> Config:
    """A config as it is filed, without the place of the weights that it starts from."""
    return as_filed(config.replace(start=None))


def as_filed(config: Config) -> Config:
    """A config as the file of its run has it, with numbers of six digits."""
    return Config.from_json(rounded(config.to_json()))


def restored(value: Any) -> Any:
    """The reverse: infinite where a file has null.

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
