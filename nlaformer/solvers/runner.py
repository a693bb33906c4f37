"""A model that runs a method of its own: asked for its last iterate from where the solver stands, as long as that pays.

The programs of ``nf.eigenpair`` and ``nf.solve_nonlinear`` do their own arithmetic around the network. The solver runs
one for as many steps as it was trained for, judges the last iterate by its own residual, and asks again from there
while every run halves the residual. Whatever fails, the classical method goes on from the best point so far.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nlaformer.arrays import give, to_tensor
from nlaformer.compiler.trace import ANSWER
from nlaformer.errors import OptionError
from nlaformer.loading import load
from nlaformer.solvers.result import Contribution

_PAYS = 0.5  # a run must leave no more than this of the residual, or it was the last one


class Runner:
    """A model behind one question: where does a run from this vector end?"""

    def __init__(self, call: Callable[[Tensor], Any]) -> None:
        self._call = call
        self.refused = Counter[str]()
        self.applications = self.accepted = 0
        self.begun = self.ended = 1.0  # the residual where its part began and ended
        self.seconds = 0.0

    def ask(self, x: Tensor) -> Tensor | None:
        """The last iterate of a run from x (n,), or None where there is none to be used."""
        self.applications += 1
        begun = time.perf_counter()
        try:
            found = to_tensor("its answer", self._call(x.clone())).detach()
            found = (found[..., -1, :] if found.dim() == x.dim() + 1 else found).to(x)
        except Exception as error:  # whatever a model raises, the classical method goes on without it
            last = traceback.format_exception_only(error)[-1].split("\n")[0]
            self.refused[f"it raised {last}"] += 1
            return None
        finally:
            self.seconds += time.perf_counter() - begun
        if found.shape != x.shape:
            self.refused[f"it returned shape {tuple(found.shape)} for x of shape {tuple(x.shape)}"] += 1
        elif not bool(torch.isfinite(found).all()):
            self.refused["its answer is not finite"] += 1
        else:
            return found
        return None

    def pays(self, before: float, after: float) -> bool:
        """Count an answer that was used and took the residual from one norm to another; whether to ask again."""
        if not self.accepted:
            self.begun = before
        self.accepted, self.ended = self.accepted + 1, after
        if after <= _PAYS * before:
            return True
        self.refused["a run no longer halves the residual"] += 1
        return False

    def contribution(self) -> Contribution:
        """What the model did."""
        reasons = tuple(reason for reason, count in self.refused.most_common() if count)
        share = self.ended / self.begun if self.begun > 0 else 1.0
        return Contribution(self.applications, self.accepted, share if self.accepted else 1.0, reasons)


def read_runner(
    model: Any, given: Mapping[str, Tensor], start: tuple[str, ...], kind: str, of_function: Callable[[Any], Any]
) -> Runner | None:
    """The runner of a trained program, its folder or name, or a function; None without a model.

    ``given`` are the inputs that a program may ask for, ``start`` the names that the start goes by. A program whose
    residual is not the one to be lowered is refused by the caller.
    """
    if model is None:
        return None
    program = getattr(model, "program", None)
    if program is not None and hasattr(model, "run"):
        names = list(program.inputs)
        if unknown := [name for name in names if name not in given and name not in start]:
            raise OptionError(f"the model {program.name} takes {', '.join(names)}; here there is no {unknown[0]}")

        def call(x: Tensor) -> Any:
            return model.run(**{name: x if name in start else given[name] for name in names}).x

        return Runner(call)
    if callable(model) and not isinstance(model, type) and not hasattr(model, "iterates") and not hasattr(model, "pre"):
        return Runner(lambda x: of_function(give(x, kind)))
    raise OptionError(
        f"model is a {type(model).__name__}; expected a trained program for this problem, its folder or its bundled "
        "name, or a function"
    )


def loaded(model: Any) -> Any:
    """The model of a path or name; anything else as it is."""
    return load(model) if isinstance(model, str | os.PathLike) else model


def residual_of(model: Any, inputs: Mapping[str, Tensor], x: Tensor) -> Tensor | None:
    """The residual that a trained program is judged by, at an answer x; None if it has none, or of other inputs."""
    expression = getattr(getattr(model, "program", None), "residual", None)
    if not expression or not hasattr(expression, "outputs"):
        return None
    try:
        found = expression({**inputs, ANSWER: x})["residual"]
    except KeyError:
        return None
    return found if isinstance(found, Tensor) else None
