"""The files of a run: two generations of checkpoints, ``manifest.json`` and ``metrics.jsonl``.

A checkpoint holds the step, the config and the engine's state in one safetensors file: all that a run needs to resume.
The learning rate and the position in the data are functions of config and step. The config names its program and its
teacher; their code may be edited, so the checkpoint holds digests of them as data. A new generation is written beside
its destination, forced to the disk and moved into place, so that a kill or a full disk at any moment leaves at least
one whole generation; a digest over everything in the file tells a whole one from an edited one.

The manifest says where the numbers of a run come from, the metrics are the numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from nlaformer.console import to_json
from nlaformer.errors import FileError, NLAFormerError, OptionError
from nlaformer.io import WEIGHTS_FILE, replace_file
from nlaformer.learn.config import Config
from nlaformer.learn.sources import Options
from nlaformer.learn.teachers import ProgramTeacher
from nlaformer.program.data import ProgramGraph
from nlaformer.provenance import processor, provenance

LATEST, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
_METRICS, MANIFEST = "metrics.jsonl", "manifest.json"
_FORMAT = "nlaformer checkpoint 1"


class Checkpoint(NamedTuple):
    """A member after ``step`` steps."""

    step: int
    config: Config
    state: dict[str, Tensor]
    methods: Mapping[str, str] = {}
    """What ``method_digests`` gave when the run began; empty in a file of an older version."""


def method_digests(config: Config) -> dict[str, str]:
    """A digest of every part of the program and of the teacher that a config names, such as "program.step"."""
    found: dict[str, ProgramGraph] = {}
    if config.program is not None:
        found["program"] = config.make_program().graph(config.n)
    if config.imitates and isinstance(teacher := config.make_teacher(), ProgramTeacher):
        found["teacher"] = teacher.graph(config.n)
    return {
        f"{kind}.{part}": hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
        for kind, method in found.items()
        for part, data in method.without_lines().items()
    }


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Store a checkpoint as the latest of a folder; the latest so far becomes the previous."""
    config = json.dumps(checkpoint.config.to_json())
    metadata = {"format": _FORMAT, "step": str(checkpoint.step), "config": config}
    if checkpoint.methods:
        metadata["graphs"] = json.dumps(checkpoint.methods)  # version 0.3 wrote "methods", of its own graphs
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.state.items()}
    content = save_tensors(tensors, metadata | {"digest": _digest(metadata, tensors)})
    latest, new = folder / LATEST, folder / f"{LATEST}.new"
    replace_file(new, content)
    step = _step(latest)
    try:
        # A latest that is damaged, or not older than the new one, must not push out the previous.
        if step is not None and step < checkpoint.step:
            os.replace(latest, folder / PREVIOUS)
        os.replace(new, latest)
        _flush(folder)
    except OSError as error:
        raise FileError(f"cannot write {latest}: {error.strerror or error}; the generation before is intact") from error


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, or raise a FileError that says what is wrong with the file."""
    try:
        # Not mapped into memory: the file may be replaced while its tensors live.
        tensors, metadata = load_tensors(path.read_bytes()), _metadata(path)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise FileError(f"{path} is truncated or not a safetensors file ({error})") from error
    if metadata.get("format") != _FORMAT:
        raise FileError(f"{path} is not a checkpoint of this version of nlaformer: format {metadata.get('format')!r}")
    digest = metadata.pop("digest", None)
    if digest != _digest(metadata, tensors):
        raise FileError(f"{path} was changed after it was written: its contents do not match its digest")
    try:
        config = Config.from_json(json.loads(metadata["config"]), tensors)
        return Checkpoint(int(metadata["step"]), config, tensors, json.loads(metadata.get("graphs", "{}")))
    except (KeyError, ValueError, NLAFormerError) as error:
        raise FileError(f"{path} holds a config this version of nlaformer does not know ({error})") from error


class Resumption(NamedTuple):
    """Members of a stack that resume together: the step, their indices and their states."""

    step: int
    members: list[int]
    states: list[dict[str, Tensor]]  # empty at step 0
    refused: list[FileError]


def resume(folders: Sequence[Path], configs: Sequence[Config], mine: Sequence[int] | None = None) -> list[Resumption]:
    """Where the members, all or ``mine``, resume: grouped by step, the largest group first.

    Their steps differ where a member was added, finished in another process, or lost its folder. Every process reads
    every folder, so that an error in one of them stops all processes.

    Raises
    ------
    FileError : none of a member's checkpoint files is whole, or it has a model and no checkpoint
    OptionError : a checkpoint belongs to another config, or its program or teacher was edited since
    """
    members, refused = [], []
    for folder, config in zip(folders, configs, strict=True):
        whole, errors = _generations(folder)
        if errors and not whole:
            reasons = "; ".join(str(error) for error in errors)
            raise FileError(f"no whole checkpoint in {folder}: {reasons}; remove them to start over")
        if not whole and (folder / WEIGHTS_FILE).exists():
            raise FileError(
                f"{folder} holds a model and no checkpoint to resume from; train into another one, or remove it first"
            )
        for checkpoint in whole.values():
            _check_config(folder, checkpoint.config, config)
            _check_methods(folder, checkpoint.methods, config)
        members.append(whole)
        refused += errors
    parts: list[Resumption] = []
    left = list(range(len(members)) if mine is None else mine)
    while left:
        steps = Counter(step for k in left for step in members[k] or (0,))
        step = max(steps, key=lambda step: (steps[step], step))
        together = [k for k in left if step in (members[k] or (0,))]
        states = [members[k][step].state for k in together] if step else []
        parts.append(Resumption(step, together, states, [] if parts else refused))
        left = [k for k in left if k not in together]
    return parts


def _generations(folder: Path) -> tuple[dict[int, Checkpoint], list[FileError]]:
    """The whole checkpoints of a folder by step, and the errors of the others."""
    whole: dict[int, Checkpoint] = {}
    errors = []
    for name in (LATEST, PREVIOUS):
        if (folder / name).exists():
            try:
                checkpoint = read(folder / name)
            except FileError as error:
                errors.append(error)
            else:
                whole.setdefault(checkpoint.step, checkpoint)
    return whole, errors


def _check_config(folder: Path, stored: Config, given: Config) -> None:
    if differences := stored.differences(given):
        lines = "\n".join(f"- {name}: {old} there, {new} given" for name, (old, new) in differences.items())
        raise OptionError(
            f"{folder} holds a run of another config:\n{lines}\ntrain into another folder, or give the same config"
        )


def _check_methods(folder: Path, stored: Mapping[str, str], config: Config) -> None:
    given = method_digests(config) if stored else {}
    if edited := [part for part in {**stored, **given} if stored.get(part) != given.get(part)]:
        kind = edited[0].partition(".")[0]
        parts = ", ".join(part.partition(".")[2] for part in edited if part.startswith(kind))
        raise OptionError(
            f"{folder} holds a run of another {kind}={getattr(config, kind)}: it was edited since ({parts}); train "
            "into another folder, or restore the code, or the version of nlaformer, that the run began with"
        )


def _step(path: Path) -> int | None:
    """The step in a checkpoint's header; None if there is no readable one."""
    try:
        return int(_metadata(path)["step"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def _digest(metadata: dict[str, str], tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def _flush(folder: Path) -> None:
    """Force the folder's entries to the disk: a rename counts only then."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Metrics:
    """Lines appended to ``metrics.jsonl``; a run that resumes at a step drops the lines after it."""

    def __init__(self, folder: Path, step: int):
        self.path = folder / _METRICS
        kept = [line for line in read_metrics(folder) if line["step"] <= step] if step else []
        replace_file(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def add(self, **values: Any) -> None:
        """Append one line."""
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(to_json(values) + "\n")
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error.strerror or error}") from error


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``, up to the first malformed one: a kill may truncate the last."""
    path = Path(folder) / _METRICS
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
    """Record where a run's numbers come from: config, device, versions, commit and what ``more`` adds."""
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
        raise FileError(f"{folder / MANIFEST} is not the manifest of a run; remove it, and the run resumes without it")
    return document


def member_folders(out: Path, configs: Sequence[Config]) -> list[Path]:
    """One folder per member, named after the fields in which the members differ."""
    if not configs:
        return []
    differing = {name for config in configs for name in configs[0].differences(config)}
    order = [field.name for field in fields(configs[0]) if field.name in differing and field.name != "recipe"]
    names = [",".join(f"{name.strip('_')}={_written(getattr(config, name))}" for name in order) for config in configs]
    if len(set(names)) < len(names) or any(len(name) > 120 for name in names):
        names = [f"{k:03d}" for k in range(len(configs))]
    return [out / (name or "000") for name in names]


def _written(value: Any) -> str:
    if isinstance(value, Options):
        return "+".join(f"{name}:{_written(entry)}" for name, entry in value.items())
    text = "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return text.replace("/", "-")
