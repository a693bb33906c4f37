"""The files of anything compiled or trained: a folder with ``config.json`` and ``model.safetensors``.

The config describes the structure of the model (blocks, heads, widths, which weights are sparse) and what the
model is for; the safetensors file holds every weight, bit for bit. No pickle, so reading runs no code.
The config holds a digest of everything in both files: an edit of either, or a file of another save, is refused.

A killed process or a full disk leaves either the old artefact or the new one. Two files cannot be replaced at once, so
the new weights are first written under a name of their own, made of the digest. The move of the new config into place
is the moment at which the new artefact is there: whoever reads it finds its weights under that name, until the last
step of the save, or the next save, moves them to ``model.safetensors``.

``nlaformer.loading`` makes an operation, an algorithm or a trained model of what ``read`` returns.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from nlaformer.errors import FileError, NLAFormerError
from nlaformer.transformer import FFN, Heads, Layer, NLAFormer
from nlaformer.weights import Dense, Sparse, Weight

_FORMAT = "nlaformer"
_VERSION = 2
_BLOCKS = ("pre", "loop", "post")
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
_WEIGHTS = ("W_Q", "W_K", "W_U", "W_O")
_EXTRA = "extra."
_READINGS = 3  # attempts, since a save may come between the reading of the two files
# What a reader of a malformed document may raise.
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RuntimeError)


def save(
    path: str | os.PathLike[str],
    kind: str,
    model: NLAFormer,
    config: dict[str, Any],
    extra: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write an artefact of a kind ("operation", "algorithm", ...) with its JSON-able configuration.

    ``extra`` holds weights that stand outside the blocks: a trained model's read-in and probes.
    """
    folder = as_folder(path)
    weights = model.state_dict() | {f"{_EXTRA}{name}": value for name, value in (extra or {}).items()}
    tensors = {name: value.detach().contiguous().cpu() for name, value in weights.items()}
    content = save_tensors(tensors, metadata={"format": _FORMAT})
    document = {"format": _FORMAT, "version": _VERSION, "kind": kind, "config": config, "model": structure(model)}
    _write(folder, document, content)
    return folder


def _write(folder: Path, document: dict[str, Any], content: bytes) -> None:
    """Put a config and its weights into a folder; at every moment what was there or what comes can be read."""
    digest = _digest(document, content)
    described = (json.dumps(document | {"digest": digest}, indent=1) + "\n").encode()  # it may fail: before any file
    make_folder(folder)
    with _WRITING:
        _move_weights(folder)  # of a save that was killed: the next line but one would part them from their config
        waiting = _waiting(folder, digest)
        replace_file(waiting, content)
        try:
            replace_file(folder / CONFIG_FILE, described)
        except FileError:
            waiting.unlink(missing_ok=True)
            raise
        _move_weights(folder)


_WRITING = threading.Lock()  # threads of one process take turns


def _waiting(folder: Path, digest: str) -> Path:
    """Where the weights of a save stand until they are moved into place."""
    return folder / f".{WEIGHTS_FILE}.{digest[:32]}"


def _move_weights(folder: Path) -> None:
    """Move the weights that belong to the config of a folder into place, if they stand beside it."""
    try:
        digest = _read_document(folder / CONFIG_FILE).get("digest")
    except FileError:  # none there, or not ours
        return
    waiting = _waiting(folder, str(digest))
    try:
        if waiting.exists():
            os.replace(waiting, folder / WEIGHTS_FILE)
    except FileNotFoundError:  # another process moved it
        pass
    except OSError as error:
        weights = folder / WEIGHTS_FILE
        raise FileError(f"cannot write {weights}: {error.strerror or error}; its new content is {waiting}") from error


def _read(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The document of a folder without its digest, and the weights that belong to it."""
    for _ in range(_READINGS):
        document = _read_document(folder / CONFIG_FILE)
        digest = document.pop("digest", None)
        for path in (folder / WEIGHTS_FILE, _waiting(folder, str(digest))):
            with suppress(OSError):
                content = path.read_bytes()
                if _digest(document, content) == digest:
                    return document, content
    weights = folder / WEIGHTS_FILE
    try:
        load_tensors(weights.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read {weights}: {error.strerror or error}; save the model again") from error
    except SafetensorError as error:
        raise FileError(f"{weights} is truncated or not a safetensors file ({error}); save it again") from error
    raise FileError(
        f"{folder}: config.json and model.safetensors are not as they were saved together; one of them was edited "
        "or belongs to another save. Save the model again"
    )


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any], NLAFormer, dict[str, Tensor]]:
    """The kind, configuration, model and extra weights that ``save`` wrote."""
    folder = as_folder(path)
    document, content = _read(folder)
    try:
        tensors = load_tensors(content)
    except SafetensorError as error:
        raise FileError(f"{folder / WEIGHTS_FILE} is not a safetensors file ({error}); save it again") from error
    try:
        described = document["model"]
        blocks = {
            name: [_build(layer, f"{name}.{k}.", tensors) for k, layer in enumerate(described[name])]
            for name in _BLOCKS
        }
        model = NLAFormer(**blocks, inject=described["inject"], unshared=described["unshared"])
        extra = {name.removeprefix(_EXTRA): value for name, value in tensors.items() if name.startswith(_EXTRA)}
        return document["kind"], document["config"], model, extra
    except _MALFORMED as error:
        raise FileError(f"{folder}: config.json and model.safetensors do not fit together ({error!r})") from error


@contextmanager
def describing(path: str | os.PathLike[str], kind: str) -> Iterator[None]:
    """Turn whatever a malformed configuration raises while it is read into a FileError that names the folder."""
    try:
        yield
    except _MALFORMED as error:  # our own errors are among them
        reason = str(error) if isinstance(error, NLAFormerError) else repr(error)
        raise FileError(f"{path}: config.json does not describe a saved {kind} ({reason})") from error


def copy(folder: Path, into: Path) -> None:
    """Copy the saved model of a folder into another folder, and no other file."""
    _write(into, *_read(folder))


def fingerprint(folder: Path) -> str:
    """SHA-256 of the weights saved in a folder: it tells whether two folders hold the same model."""
    return hashlib.sha256(_read(folder)[1]).hexdigest()


def as_folder(path: str | os.PathLike[str]) -> Path:
    """The path of a folder, whether it exists or not; anything else is refused."""
    try:
        name = os.fspath(path)
        if name and "\0" not in name:  # the empty one would be the current folder
            return Path(path)
    except TypeError:
        pass
    raise FileError(f"{path!r:.60} is not a path; expected the name of a folder")


def _digest(document: dict[str, Any], weights: bytes) -> str:
    """SHA-256 of a document, whatever its spacing and the order of its keys, and of the bytes of the weights."""
    as_read = json.loads(json.dumps(document))  # tuples are lists there, and keys strings
    digest = hashlib.sha256(json.dumps(as_read, sort_keys=True).encode())
    digest.update(weights)
    return digest.hexdigest()


def make_folder(path: Path) -> None:
    """Make a folder and its parents, unless they exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot make the folder {path}: {getattr(error, 'strerror', None) or error}") from error


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make a folder and keep other processes from training in it: two would write the same files.

    The lock ends with the process, however that ends. Where the system has no locks, there is no protection. A folder
    that is still empty at the end is removed again.
    """
    made, held = [path for path in (folder, *folder.parents) if not os.path.exists(path)], None  # too long is not there
    make_folder(folder)
    try:
        held = _lock(folder)
        yield
    finally:
        if held is not None:
            os.close(held)
        for path in made:
            with suppress(OSError):  # it is not empty
                path.rmdir()


def _lock(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed; None on systems that cannot open folders."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise FileError(f"cannot read {folder}: {error}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise FileError(f"another process is training in {folder}; wait for it, or name another folder") from None
    except OSError:  # some network file systems
        pass
    return held


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that at every moment either the old or the new one is there, whole."""
    temporary = path.with_name(f".{path.name[:80]}.{os.getpid()}-{threading.get_ident()}.tmp")  # names have a limit
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FileError(f"cannot write {path}: {error.strerror or error}; what was there before is intact") from error


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that a process killed during a save left behind."""
    _move_weights(folder)
    for left in (*folder.glob(".*.tmp"), *folder.glob(f".{WEIGHTS_FILE}.*")):
        try:
            if left.is_file():
                left.unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"cannot remove {left}: {error.strerror or error}") from error


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not valid JSON ({error}); it may be truncated") from error
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise FileError(f"{path} was not written by nlaformer")
    if document.get("version") != _VERSION:
        raise FileError(f"{path} has format version {document.get('version')!r}; this package reads {_VERSION}")
    if not isinstance(document.get("config"), dict) or not isinstance(document.get("model"), dict):
        raise FileError(f"{path} lacks its 'config' or 'model' section")
    return document


def structure(model: NLAFormer) -> dict[str, Any]:
    """A model without its numbers, as JSON takes it."""
    blocks = {name: [_describe(layer) for layer in getattr(model, name)] for name in _BLOCKS}
    return blocks | {"inject": model.inject, "unshared": model.unshared}


def _describe(layer: Layer) -> dict[str, Any]:
    """The structure of a layer without its numbers."""
    description: dict[str, Any] = {"causal": layer.causal, "norm": layer.gain_1 is not None}
    if layer.rows is not None:
        description["rows"] = list(layer.rows)
    if layer.heads is not None:
        heads = layer.heads
        description["heads"] = {"count": heads.count} | {name: _shape(getattr(heads, name)) for name in _WEIGHTS}
    if layer.ffn is not None:
        description["ffn"] = {"W_1": _shape(layer.ffn.W_1), "W_2": _shape(layer.ffn.W_2)}
    return description


def _shape(weight: Weight) -> list[int] | None:
    """A sparse weight's shape; a dense one has its own."""
    return list(weight.shape) if isinstance(weight, Sparse) else None


def _build(description: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> Layer:
    def weight(name: str, shape: list[int] | None) -> Weight:
        if shape is None:
            return Dense(tensors[f"{prefix}{name}.weight"])
        index, values = tensors[f"{prefix}{name}.index"], tensors[f"{prefix}{name}.values"]
        if index.shape != (2, len(values)) or (
            len(values) and bool(((index.amax(1) >= torch.tensor(shape)) | (index.amin(1) < 0)).any())
        ):
            raise ValueError(f"{prefix}{name}: entries outside its shape {shape}")
        return Sparse(index, values, (shape[0], shape[1]))

    heads, ffn, norm = description.get("heads"), description.get("ffn"), None
    if heads:
        heads = Heads(**{name: weight(f"heads.{name}", heads[name]) for name in _WEIGHTS}, count=heads["count"])
    if ffn:
        W_1, W_2 = weight("ffn.W_1", ffn["W_1"]), weight("ffn.W_2", ffn["W_2"])
        ffn = FFN(W_1, tensors[f"{prefix}ffn.b_1"], W_2, tensors[f"{prefix}ffn.b_2"])
    if description["norm"]:
        norm = (tensors[f"{prefix}gain_1"], tensors[f"{prefix}gain_2"])
    rows = description.get("rows")
    return Layer(heads, ffn, norm, description["causal"], None if rows is None else (int(rows[0]), int(rows[1])))
