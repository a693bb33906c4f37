"""What a traced value prints as. It may be printed; a program that decides by it is refused.

``print(f"{nf.norm(x):.2e}")`` prints the expression while a program is traced. The text of a value does not tell its
sign or size, so ``0.5 * x if str(x[0]).startswith("-") else x`` would be traced through one branch, whatever x is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_TEXT = (
    "a decision by the text of a traced value, or the text as a key: it is the expression, and tells nothing of the "
    "numbers; text may be printed. Write a decision as arithmetic, np.sign(v), np.maximum(v, 0)"
)
# fmt: off
_DECIDING = (
    "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__", "__hash__", "__iter__", "startswith",
    "endswith", "find", "rfind", "index", "rindex", "count", "partition", "rpartition", "split", "rsplit", "splitlines",
    "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable",
    "isspace", "istitle", "isupper", "translate",
)
_CUTTING = (
    "__getitem__", "strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "casefold", "replace",
    "removeprefix", "removesuffix",
)
# fmt: on
_NOT_USERS = (sys.prefix, sys.base_prefix)  # what writes text, as logging does, may look into it


class Text(str):
    """The text of a traced value."""

    refuse: Callable[[str], object]  # says at the user's line why it cannot be traced

    @classmethod
    def of(cls, refuse: Callable[[str], object], text: str) -> Text:
        made = cls(text)
        made.refuse = refuse
        return made

    def __bool__(self) -> bool:
        self._refuse()
        return True

    def _refuse(self) -> None:
        if not sys._getframe(2).f_code.co_filename.startswith(_NOT_USERS):
            self.refuse(_TEXT)


def _deciding(name: str) -> Callable[..., Any]:
    known = getattr(str, name)

    def method(self: Text, *args: Any) -> Any:
        self._refuse()
        return known(self, *args)

    return method


def _cutting(name: str) -> Callable[..., Any]:
    known = getattr(str, name)
    return lambda self, *args: Text.of(self.refuse, known(self, *args))


for _name in _DECIDING:
    setattr(Text, _name, _deciding(_name))
for _name in _CUTTING:
    setattr(Text, _name, _cutting(_name))
