"""What may guide a solve, behind one interface: a correction c ~ A^-1 r, or only its direction, for every residual.

``Answers`` asks a model that solves whole systems, A c = r. A purely trained model knows systems of one number of
unknowns and one scale: a smaller system is filled up with a diagonal, and the model brings A and r to its own scale
(``nlaformer.learn.scale``). A plain function sees A as the user gave it, and r as long as b.

``Directions`` asks a trained program whose network speaks in every loop: h, c = network(h, A, r / |r|). It scales and
fills up by itself. Only the direction of c means something; of several blocks, each is brought to its own best length,
r.c / c.A c with the block of A, which takes a product with the blocks and none with A.

``Preconditioned`` asks a learned preconditioner, c = M r.

Of a system larger than the model, each gets diagonal blocks (block Jacobi). Whatever fails, the solve goes on without.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nlaformer.arrays import give, to_tensor
from nlaformer.errors import OptionError
from nlaformer.prompt import scale
from nlaformer.solvers.arithmetic import Array, like, to_torch
from nlaformer.solvers.blocks import LARGEST_CALL, Blocks, unreadable
from nlaformer.solvers.certificate import norm_of
from nlaformer.solvers.learned import DiagonalPlusRank
from nlaformer.solvers.models import (
    GRADIENT,
    NO_ENTRIES,
    is_solver,
    linear_residual,
    loaded,
    made_for_fewer,
    no_function,
    program_of,
    raised,
    role_of,
    runs,
)
from nlaformer.solvers.operators import DenseOperator, SparseOperator
from nlaformer.solvers.parse import Problem

_ENOUGH = 10  # iterations of a model trained towards the solution


class _UnusableError(Exception):
    """An answer that cannot be used; the message is the reason."""


class Proposer:
    """The model of one solve: asked for corrections, with a count of its answers and refusals.

    ``unfit`` says why it cannot be expected to help, or nothing; ``possible`` whether it can be asked at all. A
    ``guided`` one gives directions, which have no length of their own.
    """

    guided = True

    def __init__(self, problem: Problem, size: int) -> None:
        self.refused = Counter[str]()
        self.applications = problem.form.numbers([0] * problem.lanes)
        self.seconds = 0.0
        self._problem = problem
        n = problem.unknowns
        self.unfit = unreadable(problem, size)
        self.possible = not self.unfit
        self.in_blocks = n > size
        if self.in_blocks:
            self.unfit = self.unfit or made_for_fewer(n, size)

    def ask(self, lanes: Tensor, r: Tensor, g: Tensor) -> Tensor:
        """The corrections for the residuals of some lanes, (lanes, n); of least squares g is A^T r, else r."""
        raise NotImplementedError

    def correction(self, lanes: Array, r: Array, g: Array) -> tuple[Array, Array]:
        """The corrections for the residuals of some lanes, and where they are usable."""
        self.applications[lanes] += 1
        begun, given = time.perf_counter(), r
        lanes, r, g = (to_torch(v) for v in (lanes, r, g))
        try:
            c = self.ask(lanes, r, g)
        except Exception as error:  # whatever a model raises, the solve goes on without it
            self.refused[str(error) if isinstance(error, _UnusableError) else raised(error)] += len(lanes)
            c, fit = torch.zeros_like(g), torch.zeros_like(lanes, dtype=torch.bool)
        else:
            fit = torch.isfinite(c).all(-1) & (c.abs().amax(-1) < 1e100)
            zero = (c == 0).all(-1)
            self.refused["its answer is not finite, or far too large"] += int((~fit).sum())
            self.refused["its answer is zero"] += int(zero.sum())
            fit &= ~zero
        self.seconds += time.perf_counter() - begun
        return like(torch.where(fit[:, None], c, 0.0), given), like(fit, self.applications) != 0


class Answers(Proposer):
    """A model that solves systems A c = r.

    ``size`` is the number of unknowns it takes; None stands for any.
    """

    guided = False

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        problem: Problem,
        size: int | None = None,
    ) -> None:
        super().__init__(problem, size or problem.unknowns)
        self._function, self._size = function, size
        if not self.possible:
            return
        self._blocks = Blocks.of(problem, size or problem.unknowns)
        self._square = problem.adjoint is None
        rows = None if self._square else torch.arange(problem.b.shape[-1], device=self._blocks.index.device)[None]
        self._A = to_torch(problem.A.blocks(self._blocks.index, rows))  # (G, k, s, s); of least squares (G, 1, rows, n)
        self._shared = problem.lanes // len(self._A)  # lanes to a matrix
        if size is not None and not self._square:
            self._pad(size)
        elif size is None:
            exponent = to_torch(problem.exponent_a)[:: self._shared, None, None]
            self._A = scale(self._A, exponent[..., None])
            self._back = scale(torch.ones_like(self._A[..., :1, 0]), exponent)
            self._length = norm_of(scale(to_torch(problem.b), to_torch(problem.exponent_b)[:, None]))
        else:
            self._A = _filled_up(self._A, size)
            self._back = torch.ones_like(self._A[..., :1, 0])

    def _pad(self, size: int) -> None:
        """Fill the rectangular A up with zeros to a square, as programs for least squares take it."""
        rows, n = self._A.shape[-2:]
        if max(rows, n) > size:
            self.unfit = f"the systems have {rows} rows and {n} unknowns, it was made for {size}"
            self.possible = False
            return
        full = self._A.new_zeros(*self._A.shape[:2], size, size)
        full[..., :rows, :n] = self._A
        self._A, self._back = full, torch.ones_like(full[..., :1, 0])

    def ask(self, lanes: Tensor, r: Tensor, g: Tensor) -> Tensor:
        A, back = (v if len(v) == 1 else v[lanes // self._shared] for v in (self._A, self._back))
        A = A.expand(len(lanes), -1, -1, -1)
        parts = self._blocks.split(r) if self._square else r[:, None]  # (lanes, k, s)
        length = norm_of(parts)[..., None]
        unit = torch.where(length > 0, length, 1.0)
        wanted = self._length[lanes, None, None] if self._size is None else A.square().sum((-2, -1)).sqrt()[..., None]
        right = torch.zeros(*parts.shape[:-1], A.shape[-2], dtype=r.dtype, device=r.device)
        right[..., : parts.shape[-1]] = parts / unit * wanted
        pieces = zip(A.flatten(0, 1).split(LARGEST_CALL), right.flatten(0, 1).split(LARGEST_CALL), strict=True)
        answer = torch.cat([self._call(*piece) for piece in pieces]).to(r)
        answer = answer.reshape(*parts.shape[:-1], A.shape[-1])[..., : self._blocks.index.shape[-1]]
        return self._blocks.join(answer * (unit / wanted * back))

    def _call(self, A: Tensor, b: Tensor) -> Tensor:
        """The last iterate for systems A (k, s, s), b (k, s)."""
        wanted = A.shape[:1] + A.shape[2:]
        # Copies, since a model may write into its arguments.
        A, b = A.clone(), b.clone()
        single = self._problem.single and len(b) == 1 and self._size is None
        if single:
            A, b = A[0], b[0]
        kind = self._problem.kind if self._size is None else "torch"
        found = to_tensor("its answer", self._function(give(A, kind), give(b, kind))).detach()
        if found.dim() == b.dim() + 1:
            found = found[..., -1, :]
        if found.is_complex():
            raise TypeError("its answer is complex")
        _synchronize(found)
        found = (found[None] if single else found).double()
        if found.shape != wanted:
            raise _UnusableError(f"it returned shape {tuple(found.shape)} for x of shape {tuple(wanted)}")
        return found


class AnswersOfAnySize(Proposer):
    """Weights for every n, which take A as it is: nothing of it is copied into blocks."""

    guided = False

    def __init__(self, model: Any, problem: Problem) -> None:
        super().__init__(problem, problem.unknowns)
        self.unfit, self.possible = "", True  # A is shown as it is: the memory that its blocks would take is not needed
        if isinstance(problem.A, SparseOperator):
            self._matrices = [problem.A.A]
        elif isinstance(problem.A, DenseOperator):
            self._matrices = list(to_torch(problem.A.A).reshape(-1, *problem.A.A.shape[-2:]))
        else:
            self.unfit, self.possible = NO_ENTRIES, False
        self._model = model

    def ask(self, lanes: Tensor, r: Tensor, g: Tensor) -> Tensor:
        shared = self._problem.lanes // len(self._matrices)
        answers = [
            self._model.run(self._matrices[lane // shared], row, keep="last").x[-1]
            for lane, row in zip(lanes.tolist(), r, strict=True)
        ]
        return torch.stack([torch.as_tensor(answer) for answer in answers]).to(r)


def _filled_up(A: Tensor, size: int) -> Tensor:
    """The matrices in a larger one, with the geometric mean of their diagonal where they end."""
    s = A.shape[-1]
    if s == size:
        return A
    mean = A.diagonal(dim1=-2, dim2=-1).clamp(min=torch.finfo(torch.float64).tiny).log().mean(-1).exp()
    full = torch.diag_embed(mean[..., None].expand(*mean.shape, size)).contiguous()
    full[..., :s, :s] = A
    return full


class Directions(Proposer):
    """A trained program whose network proposes a direction in every loop, with a memory of the loops before."""

    def __init__(self, model: Any, problem: Problem) -> None:
        super().__init__(problem, model.config.n)
        _refuse_least_squares(problem)
        self._model = model
        self._memory: Tensor | None = None

    def _begin(self) -> Tensor:
        """Show the model the matrices, once; its memory, (m, k, ...)."""
        problem = self._problem
        self._blocks = Blocks.of(problem, self._model.config.n)
        self._A = to_torch(problem.A.blocks(self._blocks.index))  # (G, k, s, s)
        self._shared = problem.lanes // len(self._A)  # lanes to a matrix
        place = _device(self._model, self._A.device)
        pieces = self._A.flatten(0, 1).split(LARGEST_CALL)
        memory = torch.cat([self._model.begin(piece.to(place)) for piece in pieces])
        memory = memory.reshape(*self._A.shape[:2], *memory.shape[1:])
        return memory.repeat_interleave(self._shared, 0)

    def ask(self, lanes: Tensor, r: Tensor, g: Tensor) -> Tensor:
        if self._memory is None:
            self._memory = self._begin()
        parts = self._blocks.split(g)  # (lanes, k, s)
        length = norm_of(parts)[..., None]
        unit = torch.where(length > 0, parts / torch.where(length > 0, length, 1.0), 0.0)
        at = lanes.to(self._memory.device)
        memory = self._memory[at]
        A = self._matrices(lanes).expand(len(lanes), *self._A.shape[1:])
        pieces = zip(*(value.flatten(0, 1).split(LARGEST_CALL) for value in (A, memory, unit)), strict=True)
        answers = [self._model.propose(a.to(memory.device), h, u.to(memory.device)) for a, h, u in pieces]
        self._memory[at] = torch.cat([h for _, h in answers]).reshape(memory.shape).to(memory)
        c = torch.cat([c for c, _ in answers])
        _synchronize(c)
        if c.shape != (wanted := unit.flatten(0, 1).shape):
            raise _UnusableError(f"it proposed shape {tuple(c.shape)} for residuals of shape {tuple(wanted)}")
        return self._blocks.join(self._in_length(lanes, c.to(r).reshape(unit.shape), parts))

    def _matrices(self, lanes: Tensor) -> Tensor:
        """The blocks of A of some lanes, (lanes or 1, k, s, s); one matrix for all lanes is not repeated."""
        return self._A if len(self._A) == 1 else self._A[lanes // self._shared]

    def _in_length(self, lanes: Tensor, c: Tensor, r: Tensor) -> Tensor:
        """Each block of c at its best length; a single one as it is."""
        if c.shape[1] == 1:
            return c
        curvature = (c * (self._matrices(lanes) @ c[..., None])[..., 0]).sum(-1)
        length = (r * c).sum(-1) / torch.where(curvature > 0, curvature, 1.0)
        return torch.where((curvature > 0) & torch.isfinite(length), length, 0.0)[..., None] * c


class Preconditioned(Proposer):
    """A learned preconditioner: c = M r."""

    def __init__(self, M: DiagonalPlusRank, problem: Problem) -> None:
        super().__init__(problem, M.size)
        self._M = M
        self.seconds = M.seconds
        self.refused["what it wrote is not positive definite, and the Jacobi preconditioner stood in"] += M.jacobi

    def ask(self, lanes: Tensor, r: Tensor, g: Tensor) -> Tensor:
        return self._M.take(lanes).apply(g)


def read_model(model: Any, problem: Problem) -> Proposer:
    """The proposer for what a user may give as the model: a trained model or program, an algorithm, or a function."""
    given, model = model, loaded(model)
    if getattr(model, "stacked", 0):
        raise OptionError("a stack of models cannot solve; take one of its members")
    role, program = role_of(model), program_of(model) is not None
    if program:
        _refuse_other_residuals(model, problem)
    if role == "preconditioner":
        return Preconditioned(DiagonalPlusRank.learned(model, problem), problem)
    if role == "directions":
        return Directions(model, problem)
    if is_solver(model):
        _refuse_least_squares(problem)
        place, iterations = _device(model, problem.b.device), iterations_per_call(model.config)
        return Answers(lambda A, b: model.readings(A.to(place), b.to(place), iterations)[0], problem, model.config.n)
    if runs(model) and model.config.n == "any":
        _refuse_least_squares(problem)
        _refuse_other_problems(model)
        return AnswersOfAnySize(model, problem)
    if runs(model):
        _refuse_other_problems(model)
        if not program:
            _refuse_least_squares(problem)
        return Answers(lambda A, b: model.run(A, b).x, problem, model.config.n)
    if kind := no_function(model, "A", "b"):
        name = "" if given is model else f" {given}"
        raise OptionError(
            f"model{name} is {kind}; expected a trained model, its folder or its bundled name, a compiled algorithm, "
            "or a function (A, b) -> x"
        )
    return Answers(model, problem)


def _refuse_other_residuals(model: Any, problem: Problem) -> None:
    """Refuse a trained program that solves other problems than these, as its residual shows."""
    own = linear_residual(program_of(model))
    if problem.adjoint is not None and own != GRADIENT:
        _refuse_least_squares(problem)
    if not own:
        raise OptionError(f"the model {model.program.name} solves another problem than A x = b: see its residual")


def _refuse_least_squares(problem: Problem) -> None:
    """Refuse a model of square systems where A is not square."""
    if problem.adjoint is not None:
        raise OptionError(
            "this model was made for square systems, and these are least squares; give a function (A, b) -> x, or omit "
            "the model"
        )


def _refuse_other_problems(model: Any) -> None:
    """Refuse programs and algorithms that do not solve A x = b."""
    program = program_of(model)
    inputs = list(model.config.inputs if program is None else program.inputs)
    if {"A", "b"} <= set(inputs) <= {"A", "b", "x0"}:
        return
    name = (program or model.config).name
    raise OptionError(f"{name} takes {', '.join(inputs)}; a model of nf.solve takes A and b, and x0 if it likes")


def iterations_per_call(config: Any) -> int:
    """How many iterations a trained model makes for each of its answers.

    The error of a model trained towards the solution hardly falls after ten, and its next answer, to a new residual,
    gains more. One that imitates CG needs all its iterations.
    """
    return min(config.T, _ENOUGH) if "solution" in config.supervision else config.T


def _device(model: Any, otherwise: torch.device) -> torch.device:
    """Where a model computes."""
    parameters = model.parameters() if hasattr(model, "parameters") else iter(())
    first = next(iter(parameters), None)
    return otherwise if first is None else first.device


def _synchronize(found: Tensor) -> None:
    """Wait for CUDA, or the time would be counted where the answer is first used."""
    if found.device.type == "cuda":
        torch.cuda.synchronize()
