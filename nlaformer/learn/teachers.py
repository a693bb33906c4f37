"""Teachers: conjugate gradients, plain and preconditioned, as in section 3, and every program, on whole batches.

    alpha_k = r_k.z_k / d_k.A d_k      x_{k+1} = x_k + alpha_k d_k      r_{k+1} = r_k - alpha_k A d_k
    beta_k+1 = r_{k+1}.z_{k+1} / r_k.z_k                                d_{k+1} = z_{k+1} + beta_{k+1} d_k

with z = M r, where M ~ A^-1 as in SciPy, and z = r for plain CG. ``cg`` and ``pcg`` keep the whole trajectory.
``teacher`` gives what a training config names: these two, another algorithm, or any ``Program``, whose graph is then
evaluated on whole batches; the targets are its answers and any of its states.

How this differs from ``scipy.sparse.linalg.cg``: (1) any leading batch dimensions; (2) always float64; (3) a fixed
number of iterations without looking at the numbers, so that nothing waits for the device; (4) a system whose r.z or
d.A d has become exactly zero, whether solved or underflowed, stays as it is bit for bit where SciPy divides by zero.
Entries of b around 1e-150 and below underflow in r.z: scale such systems first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from nlaformer.arrays import whole
from nlaformer.compiler.expression import Expression
from nlaformer.compiler.graph import AXES
from nlaformer.compiler.language import Program
from nlaformer.compiler.trace import trace_program
from nlaformer.errors import DTypeError, OptionError, ShapeError, unknown_name
from nlaformer.learn import sources

_Apply = Callable[[Tensor], Tensor]


class Trajectory(NamedTuple):
    """Every iterate with its residual and search direction."""

    x: Tensor  # (..., T+1, n)
    r: Tensor  # (..., T+1, n)
    d: Tensor  # (..., T+1, n)


def cg(A: Any, b: Any, iterations: int, x0: Any = None) -> Trajectory:
    """Conjugate gradients for a fixed number of iterations.

    Parameters
    ----------
    A : (..., n, n), symmetric positive definite
    b : (..., n); the leading dimensions broadcast with those of A
    iterations : T
    x0 : (..., n), the first iterate; zero by default

    Returns
    -------
    Trajectory : x, r, d, each (..., T+1, n) in float64 on the device of A

    Examples
    --------
    >>> A, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    >>> cg(A, b, iterations=2).x
    tensor([[0.0000, 0.0000],
            [0.2500, 0.5000],
            [0.0909, 0.6364]], dtype=torch.float64)
    """
    A, b, x0 = _system(A, b, x0)
    return _trajectory(A, lambda r: r, b, x0, iterations)


def pcg(A: Any, b: Any, iterations: int, M: Any = "jacobi", x0: Any = None) -> Trajectory:
    """Preconditioned conjugate gradients for a fixed number of iterations.

    Parameters
    ----------
    A, b, iterations, x0 : as for ``cg``
    M : approximates the *inverse* of A, as in SciPy, and is symmetric positive definite: "jacobi" (the inverse of
        A's diagonal), the diagonal of a diagonal M, (..., n), or a function of r, (..., n) -> (..., n)

    Returns
    -------
    Trajectory : x, r, d, each (..., T+1, n) in float64; d_0 = M r_0

    Examples
    --------
    >>> A, b = torch.diag(torch.tensor([1.0, 10.0, 100.0])), torch.ones(3)
    >>> pcg(A, b, iterations=1).x[-1]
    tensor([1.0000, 0.1000, 0.0100], dtype=torch.float64)
    """
    A, b, x0 = _system(A, b, x0)
    return _trajectory(A, _preconditioner(M, A, b), b, x0, iterations)


class Teacher(Protocol):
    """A method whose iterates are targets."""

    def __call__(self, A: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        """The answers from x_0 = 0, (..., T+1, n), and the probed states side by side, (..., T+1, entries)."""
        ...

    def entries(self, n: int) -> int:
        """The length of the probed states of n unknowns, taken together."""
        ...


def teacher(name: str, options: Mapping[str, Any] | None = None, probe: Sequence[str] | None = None) -> Teacher:
    """The teacher of a name, "cg", "pcg", another algorithm, or "module:Name", with its options.

    ``probe`` names the states that are targets of the second probe. The default is r and d or, where these are not both
    among the states, every state but the answer's own, x.

    Examples
    --------
    >>> A, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    >>> x, rd = teacher("cg")(A, b, 2)
    >>> x.shape, rd.shape
    (torch.Size([3, 2]), torch.Size([3, 4]))
    >>> teacher("steepest_descent", probe=("r",))(A, b, 2)[1].shape
    torch.Size([3, 2])
    """
    if name in _OWN and not options and probe in (None, ("r", "d")):
        return _OWN[name]
    return _ProgramTeacher.of(name, sources.make("teacher", name, options or {}, known()), probe)


@cache
def known() -> dict[str, type]:
    """The programs of the library by name."""
    from nlaformer.compiler import library

    return {name: type(library.program(name)) for name in library.algorithms()}


@dataclass(frozen=True)
class _OwnTeacher:
    """CG and PCG as written here: always float64, a solved system stays as it is bit for bit."""

    method: Callable[[Tensor, Tensor, int], Trajectory]

    def __call__(self, A: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        path = self.method(A, b, iterations)
        return path.x, torch.cat([path.r, path.d], -1)

    def entries(self, n: int) -> int:
        return 2 * n


_OWN = {"cg": _OwnTeacher(cg), "pcg": _OwnTeacher(pcg)}


@dataclass(frozen=True)
class _ProgramTeacher:
    """A traced program, evaluated in float64 from x_0 = 0."""

    start: Expression
    step: Expression
    answer: Expression
    probe: tuple[str, ...]

    @classmethod
    def of(cls, name: str, program: Any, probe: Sequence[str] | None) -> _ProgramTeacher:
        if not isinstance(program, Program):
            raise OptionError(f"teacher={name} is not an nf.Program; make it a subclass of that")
        traced = trace_program(program)
        if traced.problems:
            raise OptionError(f"teacher={name} cannot be traced:\n" + "\n".join(traced.problems))
        if any(node.op == "learned" for node in traced.nodes):
            raise OptionError(f"teacher={name} has a learned part; a teacher must be complete")
        if traced.answer.kind != "vector" or not {"A", "b", "x0"} >= traced.inputs.keys() >= {"b"}:
            takes = ", ".join(traced.inputs)
            raise OptionError(f"teacher={name} must solve A x = b; it takes {takes} and gives a {traced.answer.kind}")
        states = [state for state in traced.state if state != "x"]
        chosen = tuple(probe) if probe is not None else ("r", "d") if {"r", "d"} <= set(states) else tuple(states)
        for state in chosen:
            if state not in traced.state:
                raise unknown_name(f"state of teacher={name}", state, traced.state)
        return cls(
            Expression.of(traced.start),
            Expression.of(traced.step),
            Expression.of({"x": traced.answer}),
            chosen or ("x",),
        )

    @torch.no_grad()
    def __call__(self, A: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        A, b, x0 = _system(A, b, None)
        inputs = {"A": A, "b": b, "x0": x0}
        state = self.start(inputs)
        answers, watched = [], []
        for t in range(whole("iterations", iterations, 0) + 1):
            state = self.step(inputs | state) if t else state
            answers.append(self.answer(inputs | state)["x"].expand_as(b))
            watched.append(torch.cat([self._flat(name, state[name], b.shape) for name in self.probe], -1))
        return torch.stack(answers, -2), torch.stack(watched, -2)

    def _flat(self, name: str, value: Tensor, shape: torch.Size) -> Tensor:
        """A state as one row of numbers: (..., n^axes)."""
        axes = AXES[self.start.kinds[name]]
        return value.expand(*shape[:-1], *[shape[-1]] * axes).reshape(*shape[:-1], -1)

    def entries(self, n: int) -> int:
        return sum(n ** AXES[self.start.kinds[name]] for name in self.probe)


def _trajectory(A: Tensor, M: _Apply, b: Tensor, x: Tensor, iterations: int) -> Trajectory:
    """The iteration from x on. A system that cannot take another step (0/0) keeps its state."""

    def product(v: Tensor) -> Tensor:
        # Many right-hand sides of one matrix are one product of matrices, many matrices a batch of them.
        return v @ A.mT if A.ndim == 2 else (A @ v[..., None])[..., 0]

    r = b - product(x)
    d = M(r)
    rz = _dot(r, d)
    states = [(x, r, d)]
    for _ in range(whole("iterations", iterations, 0)):
        q = product(d)
        curvature = _dot(d, q)
        going = (rz != 0) & (curvature != 0)
        alpha = torch.where(going, rz / curvature, 0.0)
        x = x + alpha * d
        r = r - alpha * q
        z = M(r)
        rz_next = _dot(r, z)
        beta = rz_next / rz
        d = torch.where(going, z + beta * d, d)
        rz = torch.where(going, rz_next, rz)
        states.append((x, r, d))
    return Trajectory(*(torch.stack(part, -2) for part in zip(*states, strict=True)))


def _dot(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum(-1, keepdim=True)


def _system(A: Any, b: Any, x0: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A, b and x0 in float64, the vectors with the full batch shape."""
    A = _float64("A", A)
    b = _float64("b", b, A.device)
    if A.ndim < 2 or A.shape[-1] != A.shape[-2] or not A.shape[-1]:
        raise ShapeError(f"A has shape {tuple(A.shape)}; expected square matrices (..., n, n) with n from 1 on")
    shape = _vectors("b", b, A.shape[:-1])
    x0 = b.new_zeros(shape) if x0 is None else _float64("x0", x0, A.device)
    shape = _vectors("x0", x0, shape)
    return A, b.expand(shape), x0.expand(shape)


def _preconditioner(M: Any, A: Tensor, b: Tensor) -> _Apply:
    if callable(M):
        return M  # type: ignore[no-any-return]
    if isinstance(M, str):
        if M != "jacobi":
            raise unknown_name("preconditioner", M, ["jacobi"])
        diagonal = A.diagonal(dim1=-2, dim2=-1)
        inverse = torch.where(diagonal == 0, 1.0, 1 / diagonal)  # A with a zero there is not definite anyway
    else:
        inverse = _float64("M", M, A.device)
        if _vectors("M", inverse, b.shape) != b.shape:
            raise ShapeError(
                f"M has shape {tuple(inverse.shape)} for systems of shape {tuple(b.shape)}; an array M is the diagonal "
                "of the preconditioner. For a full matrix pass a function: M=lambda r: r @ matrix"
            )
    return lambda r: inverse * r


def _float64(name: str, value: Any, device: torch.device | None = None) -> Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(f"{name} is a {type(value).__name__} ({error}); expected an array of numbers") from error
    if tensor.is_complex():
        raise DTypeError(f"{name} is complex ({tensor.dtype}); only real systems can be solved")
    return tensor.to(device=device, dtype=torch.float64)


def _vectors(name: str, value: Tensor, others: torch.Size) -> torch.Size:
    """The shape that a stack of vectors has together with the others."""
    try:
        if value.ndim and value.shape[-1] == others[-1]:
            return torch.broadcast_shapes(value.shape, others)
    except RuntimeError:
        pass
    raise ShapeError(f"{name} has shape {tuple(value.shape)}, which does not go with {tuple(others)}, (..., n)")
