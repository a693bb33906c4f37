"""What engines on CUDA share: a stack as one program, its parameters in one tensor, its step captured in a CUDA graph.

A step takes the systems of the step from a pool on the device, fills the gradient (``gradients``, the engine's own),
clips and takes a step of Adam (``update.py``). Nothing in it waits for the host. The pool holds one chunk of steps; a
thread draws the next one on a stream of its own meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor

from nlaformer.learn import supervision
from nlaformer.learn.config import Config
from nlaformer.learn.cuda.launch import Launch
from nlaformer.learn.cuda.update import Flat, Moments, Outcome, Rates, Update
from nlaformer.learn.data import Batch, draw_chunk
from nlaformer.learn.model import stack
from nlaformer.learn.models import Model, starting_model
from nlaformer.learn.optimizer import Report, bias_corrections, learning_rate


class GraphEngine:
    """A stack in training as one program. On a CPU the same program runs without a graph: for tests."""

    def __init__(self, configs: Sequence[Config], device: torch.device | str, launch: Launch):
        self.configs, self.device, self.launch = list(configs), torch.device(device), launch
        config, E = configs[0], len(configs)
        self.model: Model = stack([starting_model(c) for c in configs]).to(self.device)
        self.flat = Flat(self.model)
        self.moments = Moments(*(torch.zeros(E, self.flat.size, device=self.device) for _ in range(3)))
        self.gradient = torch.zeros_like(self.moments.weight)
        views = self.flat.views(self.moments.weight)
        for name, parameter in self.model.named_parameters():
            views[name].copy_(parameter.data)
            parameter.data = views[name]
        self.outcome = Outcome(
            loss=torch.full((E,), torch.nan, device=self.device),
            intermediate=torch.full((E,), torch.nan, device=self.device),
            alive=torch.ones(E, dtype=torch.int32, device=self.device),
            report=torch.full((E, 3), torch.nan, device=self.device),
        )
        self.rates = Rates(
            torch.zeros(config.chunk, E, device=self.device),
            torch.ones(config.chunk, 2, device=self.device),
            torch.zeros(1, dtype=torch.int64, device=self.device),
        )
        self.objective = supervision.objective(configs, self.device)
        clip = torch.tensor([c.clip for c in configs], device=self.device)
        self.update = Update(self.launch, self.flat, clip, (config.beta1, config.beta2))
        self.pool = _Pool(self.configs, self.device)
        self.captures = self.device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None  # the captured step
        self.following = -1  # the step the device's counter points at
        self.number = -1

    def gradients(self) -> None:
        """Fill the gradient, the loss and the intermediate error of the current step."""
        raise NotImplementedError

    def step(self, number: int) -> None:
        index, within = divmod(number, self.configs[0].chunk)
        self._load_chunk(index)
        if self.following != number:
            self.rates.within.fill_(within)
        if self.captures and self.graph is None:
            self.graph = self._capture()
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()
        self.pool.prefetch(index + 1)
        self.number, self.following = number, number + 1 if within + 1 < self.configs[0].chunk else -1

    def _load_chunk(self, index: int) -> None:
        """The systems, learning rates and bias corrections of a chunk of steps, unless they are here."""
        if self.pool.index == index:
            return
        self.pool.load(index)
        config = self.configs[0]
        numbers = range(index * config.chunk, (index + 1) * config.chunk)
        self.rates.rate.copy_(torch.tensor([[learning_rate(c, number) for c in self.configs] for number in numbers]))
        betas = (config.beta1, config.beta2)
        self.rates.correction.copy_(torch.tensor([bias_corrections(betas, number + 1) for number in numbers]))

    def _run(self) -> None:
        """One step, on the systems, the rates and the counter that are on the device."""
        self.gradients()
        self.update(self.moments, self.gradient, self.outcome, self.rates)
        self.rates.within.add_(1)

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        """Record one step. The runs that warm up leave no trace."""
        changed = (*self.moments, self.outcome.alive, self.outcome.report, self.rates.within)
        kept = [tensor.clone() for tensor in changed]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._run()
                    self.rates.within.sub_(1)  # the same step again: the one after it may lie beyond the chunk
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with capturing(), torch.cuda.graph(graph):
                self._run()
        finally:
            for tensor, before in zip(changed, kept, strict=True):
                tensor.copy_(before)
        return graph

    def report(self) -> Report:
        loss, intermediate, norm = self.outcome.report.cpu().unbind(1)
        rate = [learning_rate(c, self.number) if self.number >= 0 else 0.0 for c in self.configs]
        return Report(loss, intermediate, norm, torch.tensor(rate), self.outcome.alive.cpu() > 0)

    def _tensors(self) -> dict[str, Tensor]:
        parts = self.moments._asdict().items()
        return {f"{kind}.{name}": view for kind, flat in parts for name, view in self.flat.views(flat).items()}

    def state(self) -> dict[str, Tensor]:
        return {name: v.cpu() for name, v in self._tensors().items()} | {"alive": self.outcome.alive.cpu() > 0}

    def load(self, state: dict[str, Tensor]) -> None:
        for name, view in self._tensors().items():
            view.copy_(state[name])
        self.outcome.alive.copy_(state["alive"])

    def close(self) -> None:
        """End the thread that draws systems and destroy the captured step: this engine takes no further step."""
        if self.pool.thread is not None:
            self.pool.thread.shutdown(cancel_futures=True)
        self.graph = None


class _Pool:
    """The systems of one chunk of steps, every tensor (E, chunk, B, ...), and the next chunk in the making."""

    def __init__(self, configs: Sequence[Config], device: torch.device):
        self.configs, self.device, self.index = configs, device, -1
        self.chunk: Batch | None = None
        self.thread = ThreadPoolExecutor(1) if device.type == "cuda" else None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.coming: tuple[int, Future[Batch]] | None = None

    def _draw(self, index: int) -> Batch:
        """Chunk ``index`` of every member, ready when this returns."""
        with _CAPTURE, torch.cuda.stream(self.stream):  # no stream on a CPU
            members = [draw_chunk(config, index, self.device) for config in self.configs]
            batch = Batch(*(torch.stack(tensors) for tensors in zip(*members, strict=True)))
            if self.stream is not None:
                self.stream.synchronize()
        return batch

    def prefetch(self, index: int) -> None:
        """Start drawing a chunk, unless that is under way."""
        if self.thread is not None and (self.coming is None or self.coming[0] != index):
            self.coming = (index, self.thread.submit(self._draw, index))

    def load(self, index: int) -> None:
        """Make chunk ``index`` the current one, in place: a graph may read it."""
        coming = self.coming
        batch = coming[1].result() if coming is not None and coming[0] == index else self._draw(index)
        if self.chunk is None:
            self.chunk = batch
        for old, new in zip(self.chunk, batch, strict=True):
            old.copy_(new)
            if self.stream is not None:  # its memory may serve the next draw only when this copy is done
                new.record_stream(torch.cuda.current_stream())
        self.index = index

    def take(self, within: Tensor) -> Batch:
        """The systems of a step of the chunk: every tensor (E, B, ...)."""
        return Batch(*(tensor.index_select(1, within).squeeze(1) for tensor in self.chunk or ()))


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Products of float32 matrices in float32 where the precision is float32, else in tf32; the setting is put back."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        matmul.allow_tf32 = before


# Held by the one thread that captures a graph or draws systems: memory that is allocated invalidates a capture.
_CAPTURE = Lock()


@contextmanager
def capturing() -> Iterator[None]:
    """While a graph is captured, no garbage is collected: destroying the graph of another engine invalidates it."""
    with _CAPTURE:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()
