"""The exceptions of the package. Each message says what was given, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Value = TypeVar("Value")


class NLAFormerError(Exception):
    """Base of every error raised on purpose by nlaformer."""


class ShapeError(NLAFormerError, ValueError):
    """An argument has a shape the operation or model does not take."""


class DTypeError(NLAFormerError, TypeError):
    """An argument has a kind of number the operation or model does not take."""


class DomainError(NLAFormerError, ValueError):
    """An entry lies outside the compact set the weights were made for."""


class UnknownNameError(NLAFormerError, ValueError):
    """There is no operation, scheme, option or the like of this name."""


class OptionError(NLAFormerError, ValueError):
    """An option has an invalid value, or contradicts another one."""


class CompileError(NLAFormerError, ValueError):
    """A program cannot be turned into weights; the message lists every place that is in the way."""


class ConvergenceError(NLAFormerError, RuntimeError):
    """A solve did not converge and ``check="raise"`` was given; ``result`` is its SolveResult."""

    def __init__(self, message: str, result: object) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[type[ConvergenceError], tuple[str, object]]:
        """So that a process pool can hand it over: an exception's own way knows of the message alone."""
        return type(self), (str(self), self.result)


class ConvergenceWarning(UserWarning):
    """A solve did not converge; the status of the result says why."""


class UnfamiliarWarning(UserWarning):
    """A trained model was given systems unlike those of its training."""


class UnusedPatchWarning(UserWarning):
    """A patch named a pass that no run came to, so it changed nothing."""


class SampleWarning(UserWarning):
    """A statistic was asked for of fewer systems than it needs."""


class FileError(NLAFormerError, ValueError):
    """A file is missing, damaged, or not of the expected kind."""


class MissingPackageError(NLAFormerError, ImportError):
    """Something needs a package that is not installed."""


def shown(value: object) -> str:
    """The repr of a value for a message, cut short; Python refuses to print integers of very many digits."""
    try:
        return f"{value!r}".replace("\n", " ")[:60]
    except Exception:  # whatever an object's own repr raises
        return f"a value of type {type(value).__name__}"


def unknown_name(kind: str, given: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a misspelt name, with the nearest existing one."""
    known = sorted(known)
    hint = did_you_mean(given, known)
    return UnknownNameError(f"there is no {kind} named {shown(given)}; {hint}known: {', '.join(known)}")


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The question that names the nearest of the known names; empty if none is near."""
    plain = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), plain, n=1, cutoff=0.5) if isinstance(given, str) else []
    return f"did you mean {plain[near[0]]!r}? " if near else ""


def look_up(kind: str, name: object, table: Mapping[str, Value]) -> Value:
    """The entry of a table under a name, which may be anything a caller gave."""
    if not isinstance(name, str) or name not in table:
        raise unknown_name(kind, name, table)
    return table[name]
