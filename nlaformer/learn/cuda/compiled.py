"""The engine of programs with learned parts on CUDA: torch.compile and a CUDA graph of the whole step.

One loop of the program, network and arithmetic together, is compiled once and called T times: the same loops as one
function would take minutes to compile, and the captured graph leaves nothing between them. So is ``start``. The
networks compute in the config's precision, tf32 or float32, everything around them in float64.

Where torch.compile is not available, or fails on a program, the same step runs uncompiled; where a program has an
operation that cannot be captured, without the graph. Either is said once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from nlaformer.learn import supervision
from nlaformer.learn.config import Config
from nlaformer.learn.cuda.graph import GraphEngine, products
from nlaformer.learn.cuda.launch import Launch, triton
from nlaformer.learn.programs import TrainedProgram
from nlaformer.program.data import ANSWER

_Begin = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
_Loop = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], dict[str, Tensor]]


class CompiledEngine(GraphEngine):
    """A stack of programs in training as one program. ``compiled`` is whether torch.compile is tried."""

    model: TrainedProgram

    def __init__(self, configs: Sequence[Config], device: torch.device | str = "cuda", compiled: bool | None = None):
        on_cuda = torch.device(device).type == "cuda"
        super().__init__(configs, device, Launch(0.0, on_cuda and triton is not None))
        model, self.family = self.model, configs[0].make_family()
        kept = [*model.program.step, ANSWER]
        self.begin: _Begin = lambda inputs: _chosen(model.first(inputs), kept)
        self.loop: _Loop = lambda inputs, states: _chosen(model.next(inputs, states), kept)
        self.compiled = on_cuda if compiled is None else compiled
        if self.compiled:
            self._compile()

    def _compile(self) -> None:
        """Compile one loop, then start, and try each on the first systems; what fails stays as it is."""
        self._load_chunk(0)
        for name in ("loop", "begin"):
            plain = getattr(self, name)
            try:
                setattr(self, name, torch.compile(_own_code(plain), dynamic=False))
                self.gradients()
            except Exception as error:  # whatever the compiler raises
                setattr(self, name, plain)
                self.compiled = False
                _say(f"torch.compile cannot be used on {name}, so a step takes longer ({_first_line(error)})")

    def iterates(self, A: Tensor, b: Tensor) -> Tensor:
        """The iterates x_0, ..., x_T with gradients: (E, B, T+1, n)."""
        given = {"A": A, "b": b, "x0": torch.zeros_like(b)}
        inputs = {name: given[name] for name in self.model.program.inputs}
        states = {name: _like_later(value) for name, value in self.begin(inputs).items()}
        found = [states.pop(ANSWER)]
        for _ in range(self.configs[0].T):
            states = self.loop(inputs, states)
            found.append(states.pop(ANSWER))
        return torch.stack(found, -2)

    def gradients(self) -> None:
        """The loss and the gradient of the current step."""
        batch = self.pool.take(self.rates.within)
        with products(self.configs[0].precision):
            x = self.iterates(batch.A, batch.b)
            squared = supervision.relative_distances(x, batch, self.family)
            value = supervision.loss(squared, self.objective)
            found = torch.autograd.grad(value.sum(), list(self.model.parameters()), materialize_grads=True)
        for view, gradient in zip(self.flat.views(self.gradient).values(), found, strict=True):
            view.copy_(gradient)
        self.outcome.loss.copy_(value.detach())
        self.outcome.intermediate.zero_()

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        try:
            return super()._capture()
        except RuntimeError as error:
            self.captures = False
            _say(f"this program cannot be captured in a CUDA graph, so a step takes longer ({_first_line(error)})")
            return None


def _chosen(values: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """The states and the answer: what else a step gives, as the promises of a program, is not computed then."""
    return {name: values[name] for name in names}


def _like_later(value: Tensor) -> Tensor:
    """A first state as later ones are, with a gradient and memory of its own: else a loop is compiled twice."""
    return value if value.requires_grad else value.clone().requires_grad_()


def _own_code(block: Any) -> Any:
    """A function with a code of its own: torch.compile gives up a code that was compiled for many engines."""
    return FunctionType(block.__code__.replace(), block.__globals__, block.__name__, None, block.__closure__)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def _say(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
