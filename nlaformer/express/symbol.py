"""Tracing: symbols that stand for numbers and record the arithmetic done on them.

``Symbol`` has the operators and leaves what to record to ``_apply``. Its two users are ``steps_of`` below, for the f of
``nf.operation("pointwise", f=...)``, and the nodes of a program's graph (``program.ir``), for whole programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nlaformer.arrays import is_finite
from nlaformer.errors import OptionError


def _methods(operator: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The two methods of an operator: for a symbol on its left, and for one on its right."""
    return (
        lambda symbol, other: symbol._apply(operator, symbol, other),
        lambda symbol, other: symbol._apply(operator, other, symbol),
    )


class Symbol:
    """A traced value: each operator of + - * / asks ``_apply`` for the value of the result."""

    def _apply(self, operator: str, left: Any, right: Any) -> Any:
        raise NotImplementedError

    __add__, __radd__ = _methods("+")
    __sub__, __rsub__ = _methods("-")
    __mul__, __rmul__ = _methods("*")
    __truediv__, __rtruediv__ = _methods("/")

    def __neg__(self) -> Any:
        return self._apply("*", self, -1.0)

    def _whole_power(self, power: int) -> Any:
        """A power from 1 on, as repeated products."""
        result: Any = self
        for _ in range(power - 1):
            result = result * self
        return result


class _Argument(Symbol):
    """An argument of f, or a value computed from the arguments; ``steps`` is what has been recorded so far."""

    def __init__(self, steps: list[list[Any]], index: int):
        self.steps, self.index = steps, index

    def _apply(self, operator: str, left: Any, right: Any) -> _Argument:
        operands = []
        for value in (left, right):
            if isinstance(value, _Argument):
                operands.append(value.index)
            elif isinstance(value, (int, float)) and is_finite(value) and float(value) == value:
                self.steps.append(["constant", float(value)])
                operands.append(len(self.steps) - 1)
            else:
                raise OptionError(f"f combines its arguments with {value!r}; it may use + - * / and float64 numbers")
        self.steps.append([operator, *operands])
        return _Argument(self.steps, len(self.steps) - 1)

    def __pow__(self, power: Any) -> Any:
        if not isinstance(power, int) or not 1 <= power <= 16:
            raise OptionError(f"f raises to the power {power!r}; whole powers from 1 to 16 are products")
        return self._whole_power(power)

    def __eq__(self, other: object) -> bool:
        raise OptionError("f compares its argument; a transformer has no branches. Use + - * / alone")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise OptionError("f branches on its argument; a transformer has no branches. Use + - * / alone")


def steps_of(f: Callable[[Any, Any], Any]) -> list[list[Any]]:
    """The steps of a composition of + - * / as plain data; the last step is the result.

    >>> steps_of(lambda a, b: a * b + b / 3)
    [['a'], ['b'], ['*', 0, 1], ['constant', 3.0], ['/', 1, 3], ['+', 2, 4]]
    """
    steps: list[list[Any]] = [["a"], ["b"]]
    try:
        result = f(_Argument(steps, 0), _Argument(steps, 1))
    except OptionError:
        raise
    except (TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise OptionError(f"f cannot be traced ({error}); it must combine two numbers by + - * /") from error
    if not isinstance(result, _Argument):
        raise OptionError(f"f returned {result!r}; it must return a combination of its two arguments")
    if result.index != len(steps) - 1:
        result + 0.0
    return steps
