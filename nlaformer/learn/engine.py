"""One training step of a stack of models: forward over all iterates, loss, backward, clipping, Adam.

The interface, which the trainer relies on and every engine has::

    engine = make_engine(configs, device, share)   # E configs of one shape; this rank's share of a batch
    engine.step(number)                            # steps are numbered from 0; does not wait for the device
    engine.report()  -> Report                     # of the latest step, NaN before the first; waits for the device
    engine.state()   -> dict[str, Tensor]          # weights, Adam's moments, alive: on the CPU, with a leading axis E
    engine.load(state)                             # the reverse; step(number) then resumes from there
    engine.model  -> Model                         # the stack of models, on the device, sharing the engine's weights
    engine.close()                                 # takes no further step; frees the device

A step is a function of the state, the configs and its number. A member whose loss or gradient is not finite is frozen:
its weights stay as they were before that step, ``alive`` is false for it, and the other members train on.

On the CPU a stack is trained member by member, so that a member's numbers are those of a model trained alone, bit
for bit. On CUDA the stack is one program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from nlaformer.learn import supervision
from nlaformer.learn.config import Config
from nlaformer.learn.data import Batch, Stream
from nlaformer.learn.model import Solver, lr_scale, stack
from nlaformer.learn.models import Model, starting_model
from nlaformer.learn.optimizer import Report, adam, bias_corrections, clip, learning_rate
from nlaformer.problems import Family


class Engine(Protocol):
    """The interface of an engine; see the top of the file."""

    def step(self, number: int) -> None: ...
    def report(self) -> Report: ...
    def state(self) -> dict[str, Tensor]: ...
    def load(self, state: dict[str, Tensor]) -> None: ...
    @property
    def model(self) -> Model: ...
    def close(self) -> None: ...


def make_engine(configs: Sequence[Config], device: torch.device | str, share: tuple[int, int] = (0, 1)) -> Engine:
    """The engine of one program on CUDA, unless ranks share a batch or its kernels cannot run the shape."""
    if torch.device(device).type == "cuda" and share[1] == 1:
        from nlaformer.learn.cuda import engine_for

        if (found := engine_for(configs, device)) is not None:
            return found
    return PlainEngine(configs, device, share)


def squared_distances(model: Model, batch: Batch, objective: supervision.Objective, family: Family) -> Tensor:
    """The squared distances that the loss is made of, (E, 3, T+1), with gradients; a batch (E, B, ...)."""
    if isinstance(model, Solver):
        gradient_from = model.config.first if model.config.truncate else 0
        x, rd = model(batch.A, batch.b, objective.attached, gradient_from=gradient_from)
        return supervision.distances(x, rd, batch.x, batch.rd, batch.x_true)
    return supervision.relative_distances(model(batch.A, batch.b), batch, family)


class PlainEngine:
    """The step in plain torch, one member after another: the reference, and the CPU's engine."""

    def __init__(self, configs: Sequence[Config], device: torch.device | str = "cpu", share: tuple[int, int] = (0, 1)):
        self.members = [_Member(config, device, share) for config in configs]

    def step(self, number: int) -> None:
        for member in self.members:
            if member.alive:
                member.step(number)

    def report(self) -> Report:
        rows = [member.latest for member in self.members]
        loss, intermediate, norm, lr = (torch.tensor([row[k] for row in rows]) for k in range(4))
        return Report(loss, intermediate, norm, lr, torch.tensor([member.alive for member in self.members]))

    def state(self) -> dict[str, Tensor]:
        states = [member.state() for member in self.members]
        return {name: torch.cat([state[name] for state in states]) for name in states[0]}

    def load(self, state: dict[str, Tensor]) -> None:
        for k, member in enumerate(self.members):
            member.load({name: tensor[k : k + 1] for name, tensor in state.items()})

    def close(self) -> None:
        pass

    @property
    def model(self) -> Model:
        if len(self.members) == 1:
            return self.members[0].model
        together = stack([m.model for m in self.members])
        for parameter in together.parameters():
            parameter.data = parameter.data.flatten(0, 1)  # (E, 1, ...) -> (E, ...)
        return together


class _Member:
    """One model in training: a stack of one."""

    def __init__(self, config: Config, device: torch.device | str, share: tuple[int, int]):
        self.config, self.share = config, share
        self.model = stack([starting_model(config)]).to(device)
        self.parameters = dict(self.model.named_parameters())
        self.mean = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.square = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.objective = supervision.objective([config], device)
        self.stream, self.family = Stream(config, device), config.make_family()
        self.alive = True
        self.latest = (math.nan, math.nan, math.nan, 0.0)

    def step(self, number: int) -> None:
        squared = self._distances(self.stream.batch(number))
        value = supervision.loss(squared, self.objective)
        total = (value + supervision.probe_loss(squared, self.objective)).sum()
        found = torch.autograd.grad(total, list(self.parameters.values()), materialize_grads=True)
        gradients = dict(zip(self.parameters, found, strict=True))
        if self.share[1] > 1:
            gradients = _sum_over_ranks(gradients)
        gradients, norm = clip(gradients, self.config.clip)
        rate = learning_rate(self.config, number)
        self.latest = (value.item(), squared[:, 2].mean().item(), norm.item(), rate)
        self.alive = math.isfinite(self.latest[0]) and math.isfinite(self.latest[2])
        if self.alive:
            betas = (self.config.beta1, self.config.beta2)
            for name, weight in self.parameters.items():
                moments = self.mean[name], self.square[name]
                scaled = rate * lr_scale(name, self.config)
                adam(weight, gradients[name], *moments, scaled, betas, bias_corrections(betas, number + 1))

    def _distances(self, batch: Batch) -> Tensor:
        rank, world = self.share
        own = Batch(*(tensor[rank::world].unsqueeze(0) for tensor in batch))
        squared = squared_distances(self.model, own, self.objective, self.family)
        if world == 1:
            return squared
        # The loss is a function of the mean over the whole batch: every rank needs that value, with the gradient of
        # its own part.
        part = squared * (own.A.shape[1] / len(batch.A))
        everyone = part.detach().clone()
        torch.distributed.all_reduce(everyone)
        return part + (everyone - part.detach())

    def _tensors(self) -> dict[str, Tensor]:
        kinds = (("weight", self.parameters), ("mean", self.mean), ("square", self.square))
        return {f"{kind}.{name}": tensor.detach() for kind, tensors in kinds for name, tensor in tensors.items()}

    def state(self) -> dict[str, Tensor]:
        return {name: t.cpu() for name, t in self._tensors().items()} | {"alive": torch.tensor([self.alive])}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])
        self.alive = bool(state["alive"])


def _sum_over_ranks(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of all ranks added up, in one message."""
    flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
    torch.distributed.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients.values()])
    return {name: part.view_as(gradients[name]) for name, part in zip(gradients, parts, strict=True)}
