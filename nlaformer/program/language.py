"""The language: an iterative method written as one writes NumPy.

A ``Program`` has three methods, the three blocks of NLAFormer: ``start`` is the pre block, ``step`` the loop block,
``finish`` the post block. They run as they stand on NumPy or torch arrays, which is the reference (``Program.run``),
and on the nodes of a graph, which is how they are compiled (``Program.graph``). So do the functions below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from nlaformer.arrays import ArrayT
    from nlaformer.program.data import ProgramGraph
    from nlaformer.program.run import Run


class Program:
    """An iterative method. Write ``start`` and ``step``; the other methods may be omitted.

    ``start`` takes any of A, b, x0 and returns the state by name; ``step`` takes any of A, b and the state and
    returns the new state; ``finish`` takes any of A, b and the state and returns the answer, by default the state x.
    ``residual`` takes any of A, b and x, the answer; a run reports its norm. ``residual_scale`` takes the same and
    returns what the residual is compared with: converged means |residual| <= 1e-10 |scale| (float32: 1e-4), and
    nothing has converged where the scale is 0. By default it is the residual of x = 0, which is b for b - A x, but not
    more than the residual's own terms at x, as near a pole; where it is 0, the first residual. Attributes of the class
    are constants, numbers or arrays: they go into the weights.

    ``inputs = dict(C="matrix", lower="vector", mu="scalar")`` declares further inputs beside A, b and x0. Methods ask
    for them by name, and ``run(A, b, C=C)`` takes them by keyword. With ``rectangular = True`` matrices need not be
    square: they and the vectors that go with them are padded with zeros to the larger side, which is then n.

    ``positive_definite = True`` declares A symmetric positive definite: the compiler may then take ``dot(v, A @ v)``
    and ``diag(A)`` to be positive, and a run whose data say otherwise ends in a status that says so.

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> class Jacobi(nf.Program):
    ...     def start(self, x0):
    ...         return dict(x=x0)
    ...
    ...     def step(self, A, b, x):
    ...         return dict(x=x + (b - A @ x) / nf.diag(A))
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> Jacobi().run(A, b, iterations=40).x[-1].round(6)
    array([0.090909, 0.636364])
    """

    positive_definite = False
    rectangular = False
    inputs: Mapping[str, str] = {}

    def start(self, *inputs: Any) -> dict[str, Any]:
        raise NotImplementedError("a Program needs a start method that returns its state by name")

    def step(self, *state: Any) -> dict[str, Any]:
        raise NotImplementedError("a Program needs a step method that returns the new state by name")

    if TYPE_CHECKING:  # to a type checker, a program's own finish may take any of the inputs and the state

        def finish(self, *values: Any) -> Any: ...

    else:

        def finish(self, x):
            return x

    def residual(self, *values: Any) -> Any:
        A, b, x = values
        return b - A @ x

    def residual_scale(self, *values: Any) -> Any:
        raise NotImplementedError("a Program that does not say so is judged by the residual of x = 0")

    @property
    def name(self) -> str:
        return type(self).__name__

    def run(
        self,
        A: ArrayT | None = None,
        b: ArrayT | None = None,
        x0: ArrayT | None = None,
        iterations: int = 30,
        **further: ArrayT | float,
    ) -> Run[ArrayT]:
        """The reference: the program itself on NumPy or torch arrays, no transformer; ``further`` inputs by name."""
        from nlaformer.program.run import run_program

        return run_program(self, {"A": A, "b": b, "x0": x0} | further, iterations)

    def graph(self, n: int) -> ProgramGraph:
        """The program as data, for systems of size n: what it computes, node by node, each with its line.

        >>> import nlaformer as nf
        >>> class Richardson(nf.Program):
        ...     def start(self, x0):
        ...         return dict(x=x0)
        ...
        ...     def step(self, A, b, x):
        ...         return dict(x=x + 0.1 * (b - A @ x))
        >>> Richardson().graph(3).step["x"]
        (x + 0.1*(b + …))
        """
        from nlaformer.program.trace import trace

        return trace(self, n)


KINDS = {"A": "matrix", "b": "vector", "x0": "vector"}  # of the inputs every program has
_ValueT = TypeVar("_ValueT", bound=Any)  # a traced value, a NumPy array or a tensor


def is_traced(value: Any) -> bool:
    """Whether a value stands for an array while a program is traced."""
    return hasattr(type(value), "nf")


def _call(name: str, *args: Any) -> Any:
    """A function of traced values, or of arrays, for which NumPy and torch have it under the same name."""
    value = next(filter(is_traced, args), None)
    return getattr(_library(*args), name)(*args) if value is None else value.nf(name, *args)


def _library(*args: Any) -> Any:
    """The module whose functions fit arrays."""
    if any(type(argument).__module__.startswith("torch") for argument in args):
        import torch

        return torch
    return np


def dot(u: _ValueT, v: _ValueT) -> _ValueT:
    """The inner product of two vectors; of two matrices, the sum of their entries' products.

    >>> float(dot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
    11.0
    """
    return _call("vdot", u, v) if is_traced(u) or is_traced(v) else (u * v).sum()


def norm(v: _ValueT) -> _ValueT:
    """The Euclidean norm of a vector, the Frobenius norm of a matrix.

    >>> float(norm(np.array([3.0, 4.0])))
    5.0
    """
    return sqrt(dot(v, v))


def diag(A: _ValueT) -> _ValueT:
    """The diagonal of a matrix as a vector; of a vector, the matrix that has it as its diagonal.

    >>> diag(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [1.0, 4.0]
    """
    return _call("diag", A)


def sqrt(v: _ValueT) -> _ValueT:
    """The square root, entry by entry; of a value whose sign the compiler can infer."""
    return _call("sqrt", v)


def exp(v: _ValueT) -> _ValueT:
    """The exponential, entry by entry."""
    return _call("exp", v)


def log(v: _ValueT) -> _ValueT:
    """The natural logarithm, entry by entry; of a value whose sign the compiler can infer."""
    return _call("log", v)


def relu(v: _ValueT) -> _ValueT:
    """The larger of v and 0, entry by entry.

    >>> relu(np.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if not is_traced(v) and _library(v) is np:
        zero: Any = 0.0
        return maximum(v, zero)
    return _call("relu", v)


def sign(v: _ValueT) -> _ValueT:
    """-1, 0 or 1, entry by entry."""
    return _call("sign", v)


def maximum(u: _ValueT, v: _ValueT) -> _ValueT:
    """The larger of two values, entry by entry.

    >>> maximum(np.array([1.0, 4.0]), np.array([3.0, 2.0])).tolist()
    [3.0, 4.0]
    """
    return _call("maximum", u, v)


def minimum(u: _ValueT, v: _ValueT) -> _ValueT:
    """The smaller of two values, entry by entry."""
    return _call("minimum", u, v)


def outer(u: _ValueT, v: _ValueT) -> _ValueT:
    """The matrix of all products of an entry of u and an entry of v.

    >>> outer(np.array([1.0, 2.0]), np.array([3.0, 4.0])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    return _call("outer", u, v)


def zeros_like(v: _ValueT) -> _ValueT:
    """Zeros in the shape of v."""
    return _call("zeros_like", v)


def identity_like(A: _ValueT) -> _ValueT:
    """The identity matrix of A's size."""
    if is_traced(A):
        return _call("identity_like", A)
    library = _library(A)
    return library.eye(A.shape[0], dtype=A.dtype) + library.zeros_like(A)


def positive(v: _ValueT) -> _ValueT:
    """V itself, with the promise that it is positive; a run in which it is not reports that in its status."""
    return _call("promise", v) if is_traced(v) else v
