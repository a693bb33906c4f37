"""What a config names: a program, a family, a teacher. Ours by a name, a user's own class as "module:Name".

A config is data, so it holds the name and the options of an object, never the object. Options follow scikit-learn's
rule, which every dataclass keeps by itself: an option is an argument of the constructor, kept as an attribute of the
same name. Its value must be one that JSON takes, and no text where the default is a number or a truth value. A script's
own classes are named after its file, so that the command line finds them too: ``nlaformer train`` looks in the current
folder.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from nlaformer.arrays import numbers, plain
from nlaformer.errors import NLAFormerError, OptionError, look_up, shown, unknown_name


class Options(Mapping[str, Any]):
    """Options as JSON has them: a mapping that cannot change, equal and hashed by its content.

    >>> Options(ridge=0.5, lengths=(1, 2)) == Options({"lengths": [1, 2], "ridge": 0.5})
    True
    """

    def __init__(self, values: Mapping[str, Any] | None = None, **more: Any):
        try:
            self._text = json.dumps({**(values or {}), **more}, sort_keys=True, default=_json_value)
        except (TypeError, ValueError) as error:
            raise OptionError(f"options are kept as JSON, and {error}; give numbers, texts and lists") from None

    def __getitem__(self, name: str) -> Any:
        return json.loads(self._text)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(json.loads(self._text))

    def __len__(self) -> int:
        return len(json.loads(self._text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return repr(json.loads(self._text))


def _json_value(value: Any) -> Any:
    """NumPy's and torch's numbers and lists of numbers, and paths, as JSON takes them."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    found = plain(value)
    if found is not value:
        return found
    entries = numbers(value)
    if len(entries) == 1 and entries[0] is value:
        raise TypeError(f"{shown(value)} is not JSON")
    return list(entries)


NO_OPTIONS = Options()


def named(kind: str, given: Any, known: Mapping[str, type]) -> tuple[str, dict[str, Any]]:
    """The name and the options of what a user gave: a name, a class, or an object of one.

    >>> from nlaformer import problems
    >>> named("family", problems.RBFKernel(n=4, ridge=0.5), {"rbf": problems.RBFKernel})
    ('rbf', {'n': 4, 'dimension': 2, 'length': 0.3, 'ridge': 0.5})
    """
    if isinstance(given, str):
        return given, {}
    made = given if isinstance(given, type) else type(given)
    if made.__module__ == "builtins":
        raise OptionError(f"{kind}={shown(given)} is neither a name nor a class of yours")
    ours = [name for name, own in known.items() if own is made]
    name = ours[0] if ours else f"{_module_name(made.__module__)}:{made.__qualname__}"
    if not ours and find(kind, name, known) is not made:
        raise OptionError(
            f"{kind}: {made.__qualname__} cannot be found again as {name}; define it at the top level of a module, so "
            "that a run can resume"
        )
    if given is made:
        return name, {}
    missing = [option for option in _arguments(made) if not hasattr(given, option)]
    if missing:
        raise OptionError(
            f"{kind}: {name} takes {missing[0]!r} and does not keep it; a config records the options, so write "
            f"self.{missing[0]} = {missing[0]} in its __init__, or make it a dataclass"
        )
    options = {option: getattr(given, option) for option in _arguments(made)}
    again = _attributes(make(kind, name, options, known))
    if changed := [attribute for attribute, text in _attributes(given).items() if again.get(attribute) != text]:
        raise OptionError(
            f"{kind}: {changed[0]!r} of {name} is not what its __init__ makes of the options; a config records these "
            "alone, so make it an argument of its __init__"
        )
    return name, options


def _attributes(made: Any) -> dict[str, str]:
    """The attributes of an object as texts: arrays entry by entry, other objects by what they say of themselves.

    What it has computed for later use is none of them: cached properties, and private ones but numbers and texts.
    """
    found = {}
    for name, value in vars(made).items():
        plain_value = isinstance(value, bool | int | float | str)
        cached = isinstance(getattr(type(made), name, None), cached_property)
        if plain_value or not (cached or name.startswith("_")):
            content = value.tolist() if hasattr(value, "tolist") else value
            found[name] = re.sub("0x[0-9A-Fa-f]+", "", repr((type(value), content)))  # without addresses
    return found


def find(kind: str, name: str, known: Mapping[str, type]) -> Any:
    """The class of a name: one of ours, or "module:Name" of a module that can be imported from the current folder."""
    if ":" not in name:
        return look_up(kind, name, known)
    module, _, path = name.partition(":")
    try:
        with _current_folder():
            found: Any = _module(module)
    except Exception as error:  # whatever a user's module raises
        raise OptionError(
            f"{kind}={name}: the module {module!r} cannot be imported from {Path.cwd()} "
            f"({type(error).__name__}: {error}); call this where {module}.py lies"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise OptionError(f"{kind}={name}: the module {module!r} has no {path!r}")
        found = getattr(found, part)
    return found


def make(kind: str, name: str, options: Mapping[str, Any], known: Mapping[str, type], **given: Any) -> Any:
    """The object of a name and its options; ``given`` are more arguments, of which it gets those it takes.

    >>> from nlaformer import problems
    >>> make("family", "rbf", {"ridge": 0.5}, {"rbf": problems.RBFKernel}, n=4, seed=1)
    RBFKernel(n=4, dimension=2, length=0.3, ridge=0.5)
    """
    if settings := [option for option in options if option in given]:
        option = settings[0]
        raise OptionError(
            f"{kind}.{option}: {option} is a setting of the config: --set {option}={shown(options[option])}"
        )
    found = find(kind, name, known)
    takes = _arguments(found)
    if unknown := [option for option in options if option not in takes]:
        raise unknown_name(f"option of the {kind} {name}", unknown[0], takes)
    if wrong := [option for option, value in options.items() if not _fits(value, takes[option])]:
        expected = "true or false" if isinstance(takes[wrong[0]].default, bool) else "a number"
        raise OptionError(f"{kind}.{wrong[0]}={shown(options[wrong[0]])} is not {expected}")
    try:
        return found(**{**options, **{key: value for key, value in given.items() if key in takes}})
    except NLAFormerError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise OptionError(f"{kind}={name} cannot be made: {type(error).__name__}: {error}") from error


def defaults(kind: str, name: str | None, known: Mapping[str, type]) -> dict[str, Any]:
    """The defaults of the options of a name; none where it cannot be found, which ``make`` says in words."""
    try:
        takes = _arguments(find(kind, name, known)) if name is not None else {}
    except NLAFormerError:
        return {}
    return {option: argument.default for option, argument in takes.items()}


def _fits(value: Any, argument: inspect.Parameter) -> bool:
    """Whether a value may stand in place of a default that is a truth value or a number; the class judges the rest."""
    if not isinstance(argument.default, bool | int | float):
        return True
    allowed = set(re.findall(r"\w+", inspect.formatannotation(argument.annotation)))
    value = plain(value)
    if isinstance(value, str):
        return bool(allowed & {"str", "Literal"})
    if not isinstance(argument.default, bool) or (value is None and allowed & {"None", "Optional"}):
        return True
    return isinstance(value, bool | int | float) and value in (0, 1)


def _arguments(made: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a constructor by name."""
    try:
        found = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):  # some of Python's own have no signature
        return {}
    return {p.name: p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _module_name(name: str) -> str:
    """The name under which a module can be imported again: a script's is that of its file."""
    main = sys.modules["__main__"]
    if name != "__main__":
        return name
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else name


def _module(name: str) -> ModuleType:
    return sys.modules["__main__"] if name == _module_name("__main__") else importlib.import_module(name)


@contextmanager
def _current_folder() -> Iterator[None]:
    """Import from the current folder too, as ``python -m`` does and an installed command does not."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)
