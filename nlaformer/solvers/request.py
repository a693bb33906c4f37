"""The arguments of a solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nlaformer.arrays import flag, whole
from nlaformer.errors import OptionError, unknown_name
from nlaformer.solvers.result import check_reporting

_MODELLED = ("auto", "warm-start", "refine", "flexible", "guided")  # methods that take a model
_METHODS = ("cg", "pcg", "gmres", "minres", "cgls", "lsmr", *_MODELLED)


@dataclass(frozen=True)
class Request:
    """The arguments of a solve as they were given, in the order of ``cg``."""

    A: Any
    b: Any
    x0: Any
    M: Any
    rtol: float
    atol: float
    maxiter: int | None
    callback: Callable[[Any], Any] | None
    check: str
    method: str
    model: Any = None
    trajectory: bool = False
    switch: bool = True
    restart: int | None = None

    def check_options(self) -> None:
        """Refuse options that do not exist or contradict each other, in words that suit the command line too."""
        if self.method not in _METHODS:
            raise unknown_name("method", self.method, _METHODS)
        check_reporting(self.check, self.callback)
        flag("switch", self.switch)
        flag("trajectory", self.trajectory)
        if self.restart is not None:
            whole("restart", self.restart, 1)
        if self.method in ("cg", "lsmr") and self.M is not None:
            other = "pcg" if self.method == "cg" else "cgls"
            raise OptionError(f"the method {self.method} takes no preconditioner M; use {other}, or omit M")
        if self.model is None and self.method in _MODELLED and self.method not in ("auto", "guided"):
            raise OptionError(f"the method {self.method} needs a model, and none was given; give one, or use auto")
        if self.model is not None and self.method not in _MODELLED:
            raise OptionError(f"the method {self.method} takes no model; use one of {', '.join(_MODELLED)}, or omit it")

    @property
    def chooses(self) -> bool:
        """Whether the method is left to the matrix."""
        return self.method == "auto" and self.M is None

    @property
    def preconditioner(self) -> Any:
        """M; Jacobi for pcg without one."""
        return "jacobi" if self.method == "pcg" and self.M is None else self.M
