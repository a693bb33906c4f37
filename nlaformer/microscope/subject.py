"""Whatever gives iterates x_0, ..., x_T for systems A x = b, under one interface: models, algorithms, functions.

Methods that take A alone and give a matrix X_t, such as Newton-Schulz, count with x_t = X_t b.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nlaformer.arrays import to_tensor, whole
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.errors import DTypeError, OptionError, ShapeError, shown
from nlaformer.learn.model import Solver
from nlaformer.learn.programs import TrainedProgram
from nlaformer.problems import SPD, Family
from nlaformer.program.language import Program

# (A, b, iterations) -> iterates, (count, n, n), (count, n) -> (count, iterations + 1, n), float64
Method = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True)
class Subject:
    """A method under the microscope.

    Parameters
    ----------
    name : what tables call it
    method : gives the iterates of a batch
    T : its iterations, as trained or as asked for
    family : the systems it is meant for
    longer : whether it can run for more than T iterations
    model : the trained network, if it is one
    """

    name: str
    method: Method
    T: int
    family: Family
    longer: bool = True
    model: Solver | TrainedProgram | None = None

    @torch.no_grad()
    def iterates(self, A: Tensor, b: Tensor, until: int | None = None) -> Tensor:
        """x_0, ..., x_until, (count, until + 1, n)."""
        x = self.method(A, b, self.T if until is None else until)
        return x.double().cpu()

    def renamed(self, name: str) -> Subject:
        """The same under another name."""
        return replace(self, name=name)


def subject(model: object, family: Family | None = None, iterations: int | None = None) -> Subject:
    """A model, an algorithm, a program or a function of (A, b) as a subject."""
    iterations = None if iterations is None else whole("iterations", iterations, 1)
    if family is not None and not isinstance(family, Family):
        raise OptionError(f"family is {shown(family)}; expected one of nf.problems, such as nf.problems.SPD(n=20)")
    if isinstance(model, Solver | TrainedProgram):
        config = model.config
        own = family or config.make_family()
        T = iterations or config.T
        method = _solver(model, T) if isinstance(model, Solver) else model.iterates
        longer = isinstance(model, TrainedProgram) or config.shared  # loops without shared layers are T - 1
        return Subject(config.recipe, method, T, own, longer, model)
    if isinstance(model, Algorithm | Program):
        own = family or SPD(n=model.n if isinstance(model, Algorithm) else 20)
        return Subject(model.name, program_method(model), iterations or own.n, own)
    if callable(model) and not isinstance(model, type):
        return _function(model, family, iterations)
    raise OptionError(
        f"model is {shown(model)}; expected a model, an algorithm, an nf.Program or a function (A, b) -> iterates. "
        "A name is loaded with nf.load(name)"
    )


def _solver(model: Solver, T: int) -> Method:
    """The network itself: systems go in as they are, since how it treats their scale is one of the questions."""

    def method(A: Tensor, b: Tensor, iterations: int) -> Tensor:
        # The last iterate is read after the post block; up to T - 1 the others are those of a whole run.
        more = iterations < T
        return model.iterates(A, b, iterations + more, normalize=False)[:, : iterations + 1]

    return method


def program_method(program: Program | Algorithm) -> Method:
    """The runs of a program or a compiled algorithm."""
    takes_b = "b" in (program.config.kinds if isinstance(program, Algorithm) else asked(program))

    def method(A: Tensor, b: Tensor, iterations: int) -> Tensor:
        run = program.run(A, b, iterations=iterations) if takes_b else program.run(A, iterations=iterations)
        return answers(run.x, b)

    return method


def answers(x: Tensor, b: Tensor) -> Tensor:
    """Iterates (count, T + 1, n) of what a run gave: x itself, or X_t b where it gave matrices."""
    return x if x.dim() == 3 else (x @ b[:, None, :, None])[..., 0]


def asked(program: Program) -> set[str]:
    """The arguments of a program's three methods."""
    methods = (program.start, program.step, program.finish)
    return {name for method in methods for name in inspect.signature(method).parameters}


def _function(function: Callable[..., Any], family: Family | None, iterations: int | None) -> Subject:
    """A function or torch module of (A, b), which may also take ``iterations``."""
    name = getattr(function, "__name__", type(function).__name__)
    if family is None:
        raise OptionError(f"say which systems {name} is meant for: nf.microscope({name}, family=nf.problems.SPD(n=20))")
    try:
        signature = inspect.signature(function.forward if isinstance(function, nn.Module) else function)
        signature.bind("A", "b", **{"iterations": 1} if "iterations" in signature.parameters else {})
    except (TypeError, ValueError) as error:
        raise OptionError(f"{name} cannot be called with A and b: {error}") from error
    longer = "iterations" in signature.parameters

    def method(A: Tensor, b: Tensor, wanted: int | None) -> Tensor:
        given = _as_taken(function, A, b)
        x = to_tensor("iterates", function(*given, iterations=wanted) if longer else function(*given))
        if x.is_complex():
            raise DTypeError(f"{name} gave complex iterates; expected real numbers")
        if x.dim() != 3 or (x.shape[0], x.shape[2]) != tuple(b.shape):
            raise ShapeError(
                f"{name} gave iterates of shape {tuple(x.shape)} for A {tuple(A.shape)}; expected "
                f"(systems, T + 1, n), here ({b.shape[0]}, T + 1, {b.shape[1]})"
            )
        least = 1 if wanted is None else wanted
        if x.shape[1] <= least:
            raise ShapeError(f"{name} gave {x.shape[1]} iterates; expected x_0, ..., x_{least}, {least + 1} of them")
        return x if wanted is None else x[:, : wanted + 1]

    if iterations is None:
        A, b, _ = family.sample(1, seed=0)
        iterations = family.n if longer else method(A, b, None).shape[1] - 1
    return Subject(name, method, iterations, family, longer)


def _as_taken(function: Callable[..., Any], A: Tensor, b: Tensor) -> tuple[Any, Any]:
    """A and b as a function takes them: tensors like its parameters for a module, NumPy arrays otherwise."""
    if not isinstance(function, nn.Module):
        return A.numpy().copy(), b.numpy().copy()
    like = next((p for p in function.parameters() if p.is_floating_point()), torch.zeros(0))
    return A.to(like, copy=True), b.to(like, copy=True)
