"""Settings as a user writes them: what a text means for a field, and whether a value fits it.

A field has the type of its annotation: int, float, bool, str, one of several names, a tuple, options, or None beside
one of these.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal

from nlaformer.arrays import numbers, plain
from nlaformer.errors import OptionError, shown
from nlaformer.learn.sources import Options

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NUMBERS: dict[Any, type] = {int: Integral, float: Real}


def parsed(text: str, kind: Any) -> Any:
    """What a text means for a field of that type; if it means nothing, the text, which ``checked`` refuses."""
    if isinstance(kind, types.UnionType):  # int | None
        return None if text.lower() in ("none", "") else parsed(text, typing.get_args(kind)[0])
    try:
        if typing.get_origin(kind) is tuple:
            entries = [part.strip() for part in text.replace("+", ",").split(",") if part.strip()]
            return tuple(parsed(entry, typing.get_args(kind)[0]) for entry in entries)
        if kind is Options:
            return json.loads(text)
        if kind is int and float(text) == int(float(text)):
            return int(float(text))  # 20000 may be written 2e4
        return _BOOLEANS[text.lower()] if kind is bool else float(text) if kind is float else text
    except (ValueError, KeyError, OverflowError):
        return text


def spelt(name: str) -> str:
    """A field as a user writes it; ``lambda`` alone is a word of Python."""
    return name.rstrip("_")


def parsed_option(text: str, default: Any = None) -> Any:
    """What a text means for an option of which the default alone is known: what it means there, JSON, or the text.

    >>> [parsed_option(text) for text in ("0.5", "[1, 2]", "jacobi")]
    [0.5, [1, 2], 'jacobi']
    >>> parsed_option("no", default=True)
    False
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    if found is not text and not isinstance(default, bool | int):
        return found
    meant = parsed(text, type(default))
    return found if isinstance(meant, str) else meant


def checked(name: str, value: Any, kind: Any) -> Any:
    """The value in the field's own type, or an OptionError."""
    try:
        return _converted(value, kind)
    except (TypeError, OverflowError) as error:
        size = " of 64 bits" if isinstance(error, OverflowError) else ""
        raise OptionError(f"{name}={shown(value)} is not {_describe(kind)}{size}") from None


def _converted(value: Any, kind: Any) -> Any:
    """The value as a field of that type holds it, numbers of any library as Python's own; else a TypeError."""
    if typing.get_origin(kind) is tuple:
        return tuple(_converted(entry, typing.get_args(kind)[0]) for entry in numbers(value))
    if isinstance(kind, types.UnionType):
        return None if value is None else _converted(value, typing.get_args(kind)[0])
    if kind is Options and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return value if isinstance(value, Options) else Options(value)
    value = plain(value)
    if kind in _NUMBERS and isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool):
        number = kind(value)
        if kind is int and abs(number) >= 2**64:
            raise OverflowError
        return number
    if (kind in (bool, str) and isinstance(value, kind)) or (isinstance(value, str) and value in typing.get_args(kind)):
        return value
    raise TypeError


def _describe(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "a list of names such as r,d" if str in typing.get_args(kind) else "a list of numbers such as 1.0,1.2"
    if isinstance(kind, types.UnionType):
        return f"{_describe(typing.get_args(kind)[0])}, or none"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a name", Options: "named options"}
    return words[kind]
