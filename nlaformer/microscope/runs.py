"""How a model of each kind is run for a recording: the shape of its prompt, its passes, and what the run gives.

A recording that cannot be held is refused before the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import check_memory, flag, give, to_tensor, whole
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.errors import DTypeError, OptionError, ShapeError
from nlaformer.express.operation import Operation
from nlaformer.learn.model import Solver
from nlaformer.learn.programs import TrainedProgram
from nlaformer.microscope.places import Model, places, transformers
from nlaformer.program.run import Run, array_library, flatten
from nlaformer.transformer import Layer, NLAFormer


@dataclass(frozen=True)
class Found:
    """What a run gives beside the intermediates."""

    output: Any
    iterates: Any = None
    registers: Mapping[str, Any] = field(default_factory=dict)
    probes: Mapping[str, Any] = field(default_factory=dict)
    features: Any = None


@dataclass(frozen=True)
class PlannedRun:
    """A run to come: the shape of its systems and of a prompt, the passes of its loop, and how to start it."""

    batch: tuple[int, ...]
    rows: int
    tokens: int
    passes: int
    start: Callable[[], Found]


def planned(model: Model, operands: Sequence[Any], options: dict[str, Any]) -> PlannedRun:
    transformers(model)  # refuses what is none
    if isinstance(model, Operation):
        _refuse(options, ())
        *batch, rows, tokens = np.shape(model.prompt(*operands))
        return PlannedRun(tuple(batch), rows, tokens, 0, lambda: Found(model(*operands)))
    if isinstance(model, Algorithm):
        return _of_algorithm(model, operands, options)
    if isinstance(model, Solver):
        return _of_solver(model, operands, options)
    if isinstance(model, TrainedProgram):
        return _of_program(model, operands, options)
    return _of_transformer(model, operands, options)


def _refuse(options: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in options.keys() - set(known):
        raise OptionError(f"{name}= is not an option of this run; it takes {', '.join(known) or 'none'}")


def _refuse_many(operands: Sequence[Any]) -> None:
    if len(operands) > 3:
        raise ShapeError(f"a program takes A, b and x0, and further inputs by name; {len(operands)} arrays were given")


def _of_algorithm(model: Algorithm, operands: Sequence[Any], options: dict[str, Any]) -> PlannedRun:
    passes = whole("iterations", options.get("iterations", 30), 0)
    inputs = {name: value for name, value in options.items() if name != "iterations"}
    _refuse_many(operands)
    *batch, rows, tokens = np.shape(model.prompt(*operands, **inputs))
    return PlannedRun(tuple(batch), rows, tokens, passes, lambda: _of_run(model.run(*operands, **options)))


def _of_run(run: Run[Any]) -> Found:
    return Found(run.x, run.x, run.state)


def _of_solver(model: Solver, operands: Sequence[Any], options: dict[str, Any]) -> PlannedRun:
    _refuse(options, ("iterations", "normalize"))
    if len(operands) != 2:
        raise ShapeError(f"a trained solver takes A and b; {len(operands)} arrays were given")
    config = model.config
    iterations = whole("iterations", options.get("iterations", config.T), 0)
    flag("normalize", options.get("normalize", True))
    seen: list[Tensor] = []

    def run() -> Found:
        handle = model.probe_x.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            x = model.iterates(*operands, **options)
        finally:
            handle.remove()
        batch = np.shape(x)[:-2]
        (last,) = seen
        read = model.probe_rd(last)
        kind = array_library(*operands)
        names = config.probe or ("r", "d")
        split = read.split(config.n, -1) if read.shape[-1] == config.n * len(names) else ()
        probes = {name: give(v.reshape(*batch, *v.shape[1:]), kind) for name, v in zip(names, split, strict=False)}
        return Found(x, x, {}, probes, give(last.reshape(*batch, *last.shape[1:]), kind))

    loops = max(iterations - (len(model.blocks.post) > 0), 0)
    return PlannedRun(_batch(*operands), config.d, config.n + 1, loops, run)


def _batch(A: Any, b: Any) -> tuple[int, ...]:
    """The leading dimensions of A and b together."""
    try:
        return tuple(torch.broadcast_shapes(to_tensor("A", A).shape[:-2], to_tensor("b", b).shape[:-1]))
    except RuntimeError:
        return ()  # the run refuses them


def _of_program(model: TrainedProgram, operands: Sequence[Any], options: dict[str, Any]) -> PlannedRun:
    passes = whole("iterations", options.get("iterations", model.config.T), 0)
    _refuse_many(operands)
    further = {name: value for name, value in options.items() if name != "iterations"}
    named = dict(zip(("A", "b", "x0"), operands, strict=False)) | further
    batch, _ = flatten(model.inputs(named), model.program.kinds)
    rows, tokens = model.config.d, model.config.n + 1
    return PlannedRun(batch, rows, tokens, passes, lambda: _of_run(model.run(*operands, **options)))


def _of_transformer(model: NLAFormer, operands: Sequence[Any], options: dict[str, Any]) -> PlannedRun:
    _refuse(options, ("loops",))
    if len(operands) != 1 or to_tensor("P", operands[0]).dim() < 2:
        raise ShapeError("an nf.NLAFormer takes one array, P (..., rows, tokens), and loops=")
    passes = whole("loops", options.get("loops", 0), 0)
    P = to_tensor("P", operands[0])
    if not P.is_floating_point():
        raise DTypeError(f"P is {P.dtype}; expected real numbers in floating point")
    *batch, rows, tokens = P.shape
    layers: list[Layer] = [layer for block in (model.pre, model.loop, model.post) for layer in block]  # type: ignore[misc]
    if wanted := {layer.heads.W_Q.shape[1] for layer in layers if layer.heads is not None} - {rows}:
        raise ShapeError(f"P has {rows} rows; this nf.NLAFormer takes {wanted.pop()}")
    flat = P.reshape(-1, rows, tokens)

    def run() -> Found:
        output = model(flat, passes)
        return Found(give(output.reshape(*batch, *output.shape[1:]), array_library(*operands)))

    return PlannedRun(tuple(batch), rows, tokens, passes, run)


def refuse_what_cannot_be_held(model: Model, run: PlannedRun, wanted: set[str]) -> None:
    """Refuse a recording that cannot be held.

    The input of a layer is the output of the one before; registers are part of every run's result.
    """
    found = transformers(model)
    weights = (tensor for transformer in found.values() for tensor in transformer.state_dict().values())
    like = next(filter(torch.is_floating_point, weights), None)
    if like is None:
        return
    each: dict[str, int] = {}
    for place in places(model):
        blocks: list[Layer] = list(getattr(found[place.prefix], place.block))
        for name in place.names(range(run.passes), isinstance(model, Algorithm)):
            each[name] = _entries(blocks[place.layer], place.part, run.rows, run.tokens)
    needed = like.element_size() * int(np.prod(run.batch)) * sum(each[name] for name in wanted & each.keys())
    check_memory(f"keeping {len(wanted):,} intermediates", needed, like.device, ". Keep fewer with keep=")


def _entries(layer: Layer, part: str, rows: int, tokens: int) -> int:
    """Numbers that a part of a layer takes for one system, beside what it shares with the layer before."""
    if part == "attention.weights" and layer.heads is not None:
        return layer.heads.count * tokens**2
    if part == "attention.heads" and layer.heads is not None:
        return layer.heads.W_U.shape[0] * tokens
    if part == "ffn.hidden" and layer.ffn is not None:
        return layer.ffn.width * tokens
    return 0 if part == "input" else rows * tokens
