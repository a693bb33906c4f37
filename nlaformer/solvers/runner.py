"""A model that runs a method of its own: asked for its last iterate from where the solver stands, as long as that pays.

The programs of ``nf.eigenpair`` and ``nf.solve_nonlinear`` do their own arithmetic around the network. The solver runs
one for as many steps as it was trained for, judges the last iterate by its own residual, and asks again from there
while every run halves the residual. Whatever fails, the classical method goes on from the best point so far.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nlaformer.arrays import to_tensor
from nlaformer.errors import OptionError
from nlaformer.solvers.models import no_function, program_of, raised
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
            if found.is_complex():
                raise TypeError("its answer is complex")
            found = (found[..., -1, :] if found.dim() == x.dim() + 1 else found).to(x)
        except Exception as error:  # whatever a model raises, the classical method goes on without it
            self.refused[raised(error)] += 1
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
    model: Any, given: Mapping[str, Tensor], start: tuple[str, ...], of_function: Callable[[Tensor], Any], *names: str
) -> Runner:
    """The runner of a trained program, or of a function of some ``names``.

    ``given`` are the inputs that a program may ask for, ``start`` the names that the start goes by. A program whose
    residual is not the one to be lowered is refused by the caller.
    """
    if (program := program_of(model)) is not None:
        inputs = list(program.inputs)
        if unknown := [name for name in inputs if name not in given and name not in start]:
            raise OptionError(f"the model {program.name} takes {', '.join(inputs)}; here there is no {unknown[0]}")
        return Runner(lambda x: model.run(**{name: x if name in start else given[name] for name in inputs}).x)
    if kind := no_function(model, *names):
        raise OptionError(
            f"model is {kind}; expected a trained program for this problem, its folder or its bundled name, or a "
            f"function of {' and '.join(names)}"
        )
    return Runner(of_function)
