r"""nf.solve_nonlinear: F(x) = 0, with a certificate of |F(x)|.

Newton's method with Krylov steps: J d = -F is solved by GMRES to a share of its right-hand side that falls with |F|
(Eisenstat and Walker 1996), and x + t d is taken for the first t = 1, 1/2, 1/4, ... that lowers |F|. Products with the
Jacobian J are differences of F; of an ``nf.Program``, J is its derivative.

What is judged is F at the x that is returned. Of a function, its value there is taken as exact: nothing is known of its
rounding errors. The residual of a program is an ``Expression``, whose rounding errors are bounded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import ArrayT, full_precision, give, kind_of, to_tensor, whole
from nlaformer.errors import DTypeError, OptionError, ShapeError
from nlaformer.program.data import ANSWER, Expression
from nlaformer.program.inputs import size_of
from nlaformer.program.language import KINDS, Program
from nlaformer.program.run import take_any_size
from nlaformer.solvers.arithmetic import to_torch
from nlaformer.solvers.certificate import UNIT, norm_lower, norm_upper
from nlaformer.solvers.inputs import read_real, read_tolerance, result_dtype
from nlaformer.solvers.models import RESIDUAL, linear_residual, loaded, no_function, program_of, residual_of
from nlaformer.solvers.result import Counts, Outcome, Status, check_reporting, warn_or_raise
from nlaformer.solvers.runner import Runner, read_runner
from nlaformer.solvers.search import Search, search_with
from nlaformer.solvers.solve import solve

_DECREASE = 1e-4  # of t |F| that a step must gain
_SHORTEST = 40  # halvings of a step before it is given up
_INNER = 60  # steps of GMRES within one of Newton's
_STEPS = 200
_AGREES = 0.1  # of a difference, by which the one with half the step may differ


@dataclass(frozen=True, eq=False, repr=False)
class NonlinearResult(Outcome, Generic[ArrayT]):
    """A root with its certificate; unpacks as ``x, info``.

    ``residual_norm``, ``residual_bound`` and ``tolerance`` are of |F(x)|, and ``evaluations`` counts values of F and
    derivatives of its components.

    Attributes
    ----------
    x : the answer, in the kind and precision of x0; without convergence, the iterate of the smallest |F(x)|
    """

    x: ArrayT

    def __iter__(self) -> Iterator[ArrayT | Counts]:
        return iter((self.x, self.info))


@torch.no_grad()
@full_precision()
def solve_nonlinear(
    F: Any,
    x0: ArrayT,
    *,
    A: Any = None,
    b: Any = None,
    model: Any = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Any], Any] | None = None,
    check: str = "warn",
    **further: Any,
) -> NonlinearResult[ArrayT]:
    """Solve F(x) = 0 for n unknowns.

    CONVERGED means that |F(x)| <= max(rtol |F(x0)|, atol) holds for the x that is returned. For the residual of an
    ``nf.Program`` it is proven, rounding errors included; the values of a function are taken as exact.

    Parameters
    ----------
    F : function, nf.Program or trained program
        A function x -> F(x) of arrays (n,) of the kind and precision of x0; or a program, whose residual is F.
    x0 : array
        Where to start, (n,). The answer has its precision, half precision too; whole numbers are read as float64.
    A, b, further : arrays
        The inputs of the program, by name.
    model : trained program, its folder or name, or function, optional
        A program that lowers the same residual, such as ``guided-nonlinear``, or a function x -> x. It is run again
        while each run halves |F|, maxiter times at most; then Newton's method goes on, and, should that fail, once
        more from x0. A trained program as F is its own model.
    rtol, atol : float
        The tolerance.
    maxiter : int, optional
        The maximum number of Newton's steps, 200 by default.
    callback : function, optional
        Called as callback(x) after every step.
    check : {"warn", "raise", "ignore"}
        What happens without convergence: a ConvergenceWarning, a ConvergenceError, or nothing.

    Returns
    -------
    NonlinearResult : x, the status, and what was measured; unpacks as x, info

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> result = nf.solve_nonlinear(lambda x: x**3 - np.array([1.0, 8.0]), np.array([2.0, 3.0]), rtol=1e-12)
    >>> result.x.round(6), result.status.name
    (array([1., 2.]), 'CONVERGED')
    >>> nf.solve_nonlinear(lambda x: x**2 + 1, np.array([3.0]), check="ignore").status.name  # there is no root
    'STAGNATED'
    """
    begun = time.perf_counter()
    check_reporting(check, callback)
    tolerances = read_tolerance("rtol", rtol), read_tolerance("atol", atol)
    limit = _STEPS if maxiter is None else whole("maxiter", maxiter, 0)
    start = to_torch(read_real("x0", x0)).clone()  # which may be returned
    if start.dim() != 1 or not len(start):
        raise ShapeError(f"x0 has shape {tuple(start.shape)}; expected one vector (n,)")
    kind = "torch" if kind_of(x0) == "torch" else "numpy"
    dtype = getattr(torch, result_dtype(start.dtype))
    given = {name: value for name, value in {"A": A, "b": b}.items() if value is not None} | further
    equations = _read(F, given, start.to(dtype), kind)
    model = loaded(model if model is not None or program_of(F) is None else F)
    runner = _runner(model, equations, start, kind)
    search = search_with(runner, lambda: _RootSearch(equations, start.to(dtype), kind, tolerances, limit, callback))
    result: NonlinearResult[ArrayT] = search.result(runner, begun)
    warn_or_raise(result, check, above=4)  # two decorators
    return result


# What F is


class _Value(NamedTuple):
    """F at a point, with a bound on the error of each component."""

    f: Tensor  # (n,) float64
    error: Tensor

    @property
    def norm(self) -> float:
        return float(norm_upper(self.f[None]))

    @property
    def bound(self) -> float:
        return (self.norm + float(norm_upper(self.error[None]))) * (1 + 4 * UNIT)


class _Function:
    """A function of a user's, called with arrays of the user's kind and precision."""

    inputs: Mapping[str, Tensor] = {}

    def __init__(self, function: Callable[[Any], Any], kind: str) -> None:
        self._function, self._kind, self.evaluations = function, kind, 0
        self._size: tuple[Tensor, float] | None = None  # the last x, and the size on which F varies there

    def value(self, x: Tensor) -> _Value:
        self.evaluations += 1
        found = to_tensor("what F returned", self._function(give(x.clone(), self._kind))).detach()
        if found.is_complex():
            raise DTypeError("F returned complex numbers; only real equations can be solved")
        if found.shape != x.shape:
            raise ShapeError(f"F returned shape {tuple(found.shape)} for x of shape {tuple(x.shape)}; expected as many")
        f = found.to(x.device, torch.float64, copy=True)
        return _Value(f, torch.zeros_like(f))

    def product(self, x: Tensor, f: Tensor, v: Tensor) -> Tensor:
        """J v, by a difference of F."""
        length = float(norm_upper(v[None]))
        if not 0 < length < math.inf:
            return torch.zeros_like(v)
        if self._size is None or self._size[0] is not x:
            self._size = x, self._varying(x, f, v / length)
        return self._difference(x, f, v / length, self._size[1]) * length

    def _difference(self, x: Tensor, f: Tensor, u: Tensor, size: float) -> Tensor:
        step = math.sqrt(torch.finfo(x.dtype).eps) * size
        return (self.value((x.double() + step * u).to(x.dtype)).f - f) / step

    def _varying(self, x: Tensor, f: Tensor, u: Tensor) -> float:
        """The size on which F varies: |x|, or one nearer to 1, if differences there do not agree with each other.

        They do not where F(x + h) - F(x) is rounding error: an x near 0 need not be one of small numbers.
        """
        size = float(norm_upper(x.double()[None])) or 1.0
        while not 1e-3 <= size <= 1e3:
            one, two = (self._difference(x, f, u, factor * size) for factor in (1.0, 2.0))
            if bool(norm_upper((one - two)[None]) < _AGREES * norm_upper(two[None])):  # false for NaN, and 0 twice
                break
            size = math.sqrt(size)
        return size


class _Residual:
    """The residual of a program, and its derivatives."""

    def __init__(self, expression: Expression, inputs: Mapping[str, Tensor]) -> None:
        self._expression, self.inputs, self.evaluations = expression, inputs, 0
        self._jacobian: tuple[Tensor, Tensor] | None = None  # the last one, and where it was

    def value(self, x: Tensor) -> _Value:
        self.evaluations += 1
        f, error = self._expression.enclosed({**self.inputs, ANSWER: x.double()}, "residual")
        return _Value(f, error)

    def product(self, x: Tensor, f: Tensor, v: Tensor) -> Tensor:
        """J v; the Jacobian of each x is made once, from a derivative of every component."""

        def residual(at: Tensor) -> Tensor:
            return self._expression({**self.inputs, ANSWER: at})["residual"]

        if self._jacobian is None or self._jacobian[0] is not x:
            self.evaluations += len(x)
            self._jacobian = x, torch.autograd.functional.jacobian(residual, x.double())
        return self._jacobian[1] @ v


def _read(F: Any, given: Mapping[str, Any], x0: Tensor, kind: str) -> _Function | _Residual:
    """The equations that a user gave."""
    program = program_of(F, len(x0))
    if isinstance(F, Program):
        program = F.graph(size_of({**given, "x0": x0}, KINDS | dict(F.inputs)) or len(x0))
    if program is None:
        if words := no_function(F, "x"):
            raise OptionError(f"F is {words}; expected a function x -> F(x), an nf.Program or a trained program")
        if given:
            raise OptionError(f"{next(iter(given))} was given, but F is a function, which knows its own data; omit it")
        return _Function(F, kind)
    if program.residual is None or program.residual.ndim != 1:
        raise OptionError(f"{program.name} has no residual that is a vector; write a method residual(self, ..., x)")
    if linear_residual(program) == RESIDUAL:
        raise OptionError(
            f"{program.name} has no residual but b - A x; write a method residual(self, ..., x) that returns F, or, if "
            "it is A x = b that is to be solved, use nf.solve"
        )
    wanted = {name: kind for name, kind in program.kinds.items() if name != "x0"}
    if missing := [name for name in wanted if name not in given]:
        named = ", ".join(f"{name}=..." for name in wanted)
        raise ShapeError(f"{program.name} needs {', '.join(missing)} too: nf.solve_nonlinear(F, x0, {named})")
    if not bool(torch.isfinite(x0).all()):
        x0 = torch.zeros_like(x0)  # the search will say so
    inputs = take_any_size(
        program.name, {**wanted, "x0": "vector"}, {**given, "x0": x0.double()}, torch.float64, x0.device
    )
    if inputs["x0"].dim() > 1:
        raise ShapeError(f"{program.name} was given {len(inputs['x0'])} systems; expected one")
    return _Residual(program.residual_value, inputs)


def _runner(model: Any, equations: _Function | _Residual, x0: Tensor, kind: str) -> Runner | None:
    """The runner of a model that lowers the same residual."""
    if model is None:
        return None
    if (program := program_of(model, len(x0))) is not None:
        # A point at which different equations have different values.
        x = torch.linspace(0.5, 1.5, len(x0), dtype=torch.float64, device=x0.device)
        own = equations.value(x.to(x0.dtype)).f
        theirs = residual_of(program, equations.inputs, x.to(x0.dtype).double())
        near = 1e-6 * float(own.abs().max())
        if theirs is None and isinstance(equations, _Function):
            raise OptionError(
                f"the model {program.name} needs {', '.join(program.inputs)}, which a function F does not show; pass "
                "the model itself, or the program it was trained for, as F"
            )
        if theirs is None or not any(bool(((theirs - sign * own).abs() <= near).all()) for sign in (1.0, -1.0)):
            raise OptionError(f"the model {program.name} lowers another residual than that of these equations; omit it")
    given = {name: value for name, value in equations.inputs.items() if name != "x0"}
    return read_runner(model, given, ("x0",), lambda x: model(give(x, kind)), "x")


# The search


class _RootSearch(Search):
    """The iterate, and how the search ended. Every x is one that could be returned: in the user's precision."""

    def __init__(
        self,
        equations: _Function | _Residual,
        x0: Tensor,
        kind: str,
        tolerances: tuple[float, float],
        limit: int,
        callback: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(limit)
        self.equations, self.kind, self.callback, self.x = equations, kind, callback, x0
        self.tolerance = math.nan
        nowhere = torch.full(x0.shape, math.nan, dtype=torch.float64, device=x0.device)
        self.at = _Value(nowhere, nowhere)
        if bool(torch.isfinite(x0).all()):
            self.at = equations.value(x0)
            self.tolerance = self._tolerance(*tolerances)
        self.norms = [self.at.norm]
        if not math.isfinite(self.at.norm):
            self.end(Status.NONFINITE, "x0 or F(x0) holds NaN or infinity, or |F(x0)| is beyond the largest float64")

    def _tolerance(self, rtol: float, atol: float) -> float:
        """At most max(rtol |F(x0)|, atol)."""
        known = float(norm_lower(self.at.f[None])) - float(norm_upper(self.at.error[None]))
        return max(rtol * max(known, 0.0) * (1 - 4 * UNIT), atol) if math.isfinite(known) else atol

    def holds(self, at: _Value) -> bool:
        """Whether F is proven small enough, in this evaluation and any other in float64."""
        return (at.bound + float(norm_upper(at.error[None]))) * (1 + 4 * UNIT) <= self.tolerance

    def run(self, runner: Runner | None) -> None:
        if runner is not None and self.status is None:
            self.follow(runner)
        share, before = 0.5, math.inf
        while self.status is None:
            if self.holds(self.at):
                self.end(Status.CONVERGED)
            elif self.steps >= self.limit:
                self.end(Status.MAXITER)
            elif self.at.norm == 0:
                self.end(Status.STAGNATED, "F is 0 in float64, but its rounding errors exceed the tolerance")
            else:
                if math.isfinite(before):
                    share = min(0.5, max(1e-6, 0.9 * (self.at.norm / before) ** 2))
                before = self.at.norm
                self._newton(share)

    def here(self) -> Tensor:
        return self.x.double()

    def near(self) -> bool:
        return self.holds(self.at)

    def take(self, answer: Tensor) -> str:
        x = answer.to(self.x.dtype)
        if not bool(torch.isfinite(x).all()):
            return "its answer is beyond the largest number of the precision of x0"
        at = self.equations.value(x)
        if not at.norm < self.at.norm:  # true for NaN
            return "F at its answer is not smaller" if math.isfinite(at.norm) else "F is not finite at its answer"
        self._move(x, at)
        return ""

    def _newton(self, share: float) -> None:
        """One step of Newton's method; the search ends where none lowers |F|."""
        d = self._direction(share)
        if d is None:
            self.end(Status.STAGNATED, "the Jacobian gives no direction")
            return
        for k in range(_SHORTEST):
            t = 0.5**k
            x = (self.x.double() + t * d).to(self.x.dtype)
            if torch.equal(x, self.x):
                break
            if not bool(torch.isfinite(x).all()):
                continue
            at = self.equations.value(x)
            if at.norm <= (1 - _DECREASE * t) * self.at.norm:  # false for NaN
                self._move(x, at)
                return
        own = str(self.x.dtype).removeprefix("torch.")
        self.end(Status.STAGNATED, f"no step along Newton's direction to an x in {own} lowers |F|")

    def _direction(self, share: float) -> Tensor | None:
        """The d with |J d + F| <= share |F|, or the best that GMRES finds."""
        from scipy.sparse.linalg import LinearOperator

        x, f, n, size = self.x, self.at.f, len(self.x), self.at.norm
        unit = float(norm_upper(x.double()[None])) or 1.0

        raised: list[Exception] = []

        def product(v: Any) -> Any:  # |x| J v / |F|: numbers of any unit come near 1
            given = torch.from_numpy(np.array(v, dtype=np.float64).ravel()).to(f.device)
            try:
                return (self.equations.product(x, f, given) / size * unit).cpu().numpy()
            except Exception as error:
                raised.append(error)
                raise

        J = LinearOperator((n, n), matvec=product, dtype=np.float64)
        right = (-f / size).cpu().numpy()
        try:
            found = solve(J, right, method="gmres", rtol=share, maxiter=min(n, _INNER), check="ignore")
        except Exception:
            if raised:  # what F raised, in its own words: the user gave no operator
                raise raised[0] from None
            raise
        d = torch.from_numpy(found.x).to(f.device) * unit
        return d if bool(torch.isfinite(d).all()) and bool(d.any()) else None

    def _move(self, x: Tensor, at: _Value) -> None:
        self.x, self.at, self.steps = x, at, self.steps + 1
        self.norms.append(at.norm)
        if self.callback is not None:
            self.callback(give(x.clone(), self.kind))

    def result(self, runner: Runner | None, begun: float) -> NonlinearResult[Any]:
        """What is returned."""
        return NonlinearResult(
            status=self.status or Status.STAGNATED,
            detail=self.detail,
            iterations=self.steps,
            residuals=np.array(self.norms),
            residual_norm=self.at.norm,
            residual_bound=self.at.bound,
            tolerance=self.tolerance,
            evaluations=self.equations.evaluations,
            method=self.in_words("Newton-GMRES", runner),
            model=None if runner is None else runner.contribution(),
            seconds=time.perf_counter() - begun,
            x=give(self.x, self.kind),
        )
