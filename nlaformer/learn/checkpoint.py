"""Checkpoints: everything a run needs to go on, in one safetensors file that describes itself.

A checkpoint holds the step, the config and the engine's state. The learning rate and the position in the data are
functions of config and step, so restoring these restores them. Two generations are kept. A new one is written
beside its destination, forced to the disk and moved into place, so that a kill or a full disk at any moment
leaves at least one whole generation; a digest over everything in the file tells a whole one from an edited one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from nlaformer.errors import FileError, NLAFormerError, OptionError
from nlaformer.io import WEIGHTS_FILE, replace_file
from nlaformer.learn.recipes import Config

LATEST, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
FORMAT = "nlaformer checkpoint 1"


class Checkpoint(NamedTuple):
    """A member after ``step`` steps."""

    step: int
    config: Config
    state: dict[str, Tensor]


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Store a checkpoint as the latest of a folder; the one before it stays as the previous."""
    metadata = {
        "format": FORMAT,
        "step": str(checkpoint.step),
        "config": json.dumps(checkpoint.config.to_json()),
    }
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
    """A checkpoint, or a FileError that says why the file is not one."""
    try:
        # Not mapped into memory: the file may be replaced while its tensors live.
        tensors, metadata = load_tensors(path.read_bytes()), _metadata(path)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise FileError(f"{path} is truncated or not a safetensors file ({error})") from error
    if metadata.get("format") != FORMAT:
        raise FileError(f"{path} is not a checkpoint of this version of nlaformer: format {metadata.get('format')!r}")
    digest = metadata.pop("digest", None)
    if digest != _digest(metadata, tensors):
        raise FileError(f"{path} was changed after it was written: its contents do not match its digest")
    try:
        return Checkpoint(int(metadata["step"]), Config.from_json(json.loads(metadata["config"])), tensors)
    except (KeyError, ValueError, NLAFormerError) as error:
        raise FileError(f"{path} holds a config this version of nlaformer does not know ({error})") from error


class Resumption(NamedTuple):
    """Members of a stack that go on together: at which step, who, and from which states."""

    step: int
    members: list[int]
    states: list[dict[str, Tensor]]  # empty at step 0
    refused: list[FileError]


def resume(folders: Sequence[Path], configs: Sequence[Config], mine: Sequence[int] | None = None) -> list[Resumption]:
    """Where each member goes on, of all or of ``mine``: those that share a step together, the largest such group first.

    Members fall apart where one was added, finished in another process, or lost its folder. Every folder is read,
    whoever trains it: what is wrong in one is an error of all processes.

    Raises
    ------
    FileError : a member has checkpoint files, and none of them is whole; or a model without any
    OptionError : a checkpoint belongs to another config
    """
    members, refused = [], []
    for folder, config in zip(folders, configs, strict=True):
        whole, errors = _generations(folder)
        if errors and not whole:
            reasons = "; ".join(str(error) for error in errors)
            raise FileError(f"no whole checkpoint in {folder}: {reasons}; remove these files to start again")
        if not whole and (folder / WEIGHTS_FILE).exists():
            raise FileError(
                f"{folder} holds a model and no checkpoint to go on from; train into another folder, or remove it first"
            )
        for checkpoint in whole.values():
            _check_config(folder, checkpoint.config, config)
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
