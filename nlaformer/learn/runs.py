"""The folder of a run: ``manifest.json`` (where the numbers come from) and ``metrics.jsonl`` (the numbers)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from nlaformer.console import to_json
from nlaformer.errors import FileError
from nlaformer.io import replace_file
from nlaformer.learn.recipes import Config
from nlaformer.provenance import processor, provenance

METRICS, MANIFEST = "metrics.jsonl", "manifest.json"


class Metrics:
    """Lines appended to ``metrics.jsonl``; a run that resumes at a step first drops the lines after it."""

    def __init__(self, folder: Path, step: int):
        self.path = folder / METRICS
        kept = [line for line in read_metrics(folder) if line["step"] <= step] if step else []
        replace_file(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def add(self, **values: Any) -> None:
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(to_json(values) + "\n")
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error.strerror or error}") from error


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``, up to the first that is none: a kill may have cut the last one short."""
    path = Path(folder) / METRICS
    lines: list[dict[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    for entry in text.splitlines():
        try:
            line = json.loads(entry)
        except ValueError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            break
        lines.append(line)
    return lines


def model_step(folder: str | os.PathLike[str]) -> int | None:
    """The step at which the model in a run's folder was saved."""
    steps = [line["step"] for line in read_metrics(folder) if line.get("saved")]
    return steps[-1] if steps else None


def write_manifest(folder: Path, config: Config, device: torch.device, **more: Any) -> None:
    """Where a run's numbers come from."""
    document = {
        "config": config.to_json(),
        "seed": config.seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        **provenance(),
        "command": sys.argv,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
    }
    replace_file(folder / MANIFEST, (json.dumps(document, indent=1) + "\n").encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """What ``write_manifest`` wrote."""
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {folder / MANIFEST}: {error}") from error
    if not isinstance(document, dict) or "state" not in document:
        raise FileError(f"{folder / MANIFEST} is not the manifest of a run; remove it, and the run goes on without")
    return document


def member_folders(out: Path, configs: Sequence[Config]) -> list[Path]:
    """One folder per member, named after the fields in which the members differ."""
    if not configs:
        return []
    differing = {name for config in configs for name in configs[0].differences(config)}
    order = [name for name in configs[0].to_json() if name in differing and name != "recipe"]
    names = [",".join(f"{name.strip('_')}={_written(getattr(config, name))}" for name in order) for config in configs]
    if len(set(names)) < len(names) or any(len(name) > 120 for name in names):
        names = [f"{k:03d}" for k in range(len(configs))]
    return [out / (name or "000") for name in names]


def _written(value: Any) -> str:
    text = "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text.replace("/", "-")
