"""The names of the intermediates of a model, and hooks on them while it runs.

    pre.layer[k].PART      loop[i].layer[k].PART      post.layer[k].PART

is a part of layer k in pass i of a block. A compiled algorithm applies its post block after every number t of passes:
``post[t].layer[k].PART``. The transformer of a learned part has the part's name in front: ``propose.loop[i]...``.
PART is

==================  ================================================================================
input               P before the layer, (..., row, token)
attention.weights   the softmax of every head, (..., head, query, key); every query sums to 1
attention.heads     W_U P times the weights, for every head, (..., head, width, token)
attention           what the heads add to P, (..., row, token)
middle              P between the parts: input + attention
ffn.hidden          ReLU(W_1 X + b_1), (..., unit, token)
ffn                 what the FFN adds to P
output              P after the layer: middle + ffn
==================  ================================================================================

``registers.STATE[t]`` is a state of a program after t steps, decoded.

In a pattern, ``*`` stands for any characters. Rows come first, as in the paper; inside, tensors are (..., token, row).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from nlaformer.compiler.algorithm import Algorithm
from nlaformer.errors import OptionError, UnknownNameError, shown
from nlaformer.express.operation import Operation
from nlaformer.learn.model import Solver
from nlaformer.learn.parts import PartNetwork
from nlaformer.learn.programs import TrainedProgram
from nlaformer.program.data import ANSWER
from nlaformer.transformer import NLAFormer, Point

Model: TypeAlias = Operation | Algorithm | Solver | TrainedProgram | NLAFormer
# Sees a value in the orientation of the paper, under its name; what it returns, if anything, replaces the value.
See: TypeAlias = Callable[[str, Tensor], Tensor | None]
_NAME = re.compile(r"(\w+)(?:\[(\d+)\])?\.layer\[(\d+)\]\.(.*)")  # of ``NLAFormer.hooks``


def transformers(model: object) -> dict[str, NLAFormer]:
    """The transformers of a model, each under what its names start with."""
    if isinstance(model, NLAFormer):
        return {"": model}
    if isinstance(model, (Operation, Algorithm)):
        return {"": model.model}
    if isinstance(model, (Solver, TrainedProgram)) and model.stacked:
        raise OptionError("a stack of models has no names of its own; take one of its models with member(model, k)")
    if isinstance(model, Solver):
        return {"": model.blocks}
    if isinstance(model, TrainedProgram):
        networks: dict[str, PartNetwork] = dict(model.networks.items())  # type: ignore[arg-type]
        return {f"{name}.": network.blocks for name, network in networks.items()}
    raise OptionError(
        f"{shown(model)} is not a model of this package; expected what nf.operation, nf.algorithm, nf.compile or "
        "nf.load gives, or an nf.NLAFormer. A name is loaded with nf.load(name)"
    )


@dataclass(frozen=True)
class Place:
    """A part of a layer; ``own`` is the only pass it belongs to, where passes do not share layers."""

    prefix: str
    block: str
    layer: int
    part: str
    point: Point
    own: int | None

    def name(self, where: str) -> str:
        """Its name in a pass, such as ``loop[3]``."""
        return f"{self.prefix}{where}.layer[{self.layer}].{self.part}"

    def names(self, passes: Sequence[int], each: bool) -> list[str]:
        """Its names in these passes; ``each``: the post block has one more than there are passes."""
        if self.block == "pre" or (self.block == "post" and not each):
            return [self.name(self.block)]
        if self.block == "post":
            passes = sorted({0, *passes, *(i + 1 for i in passes)})
        return [self.name(f"{self.block}[{i}]") for i in passes if self.own in (None, i)]

    def turned(self, value: Tensor) -> Tensor:
        """From (..., token, row) to (..., row, token) and back; attention weights stay as they are."""
        return value if self.part == "attention.weights" else value.mT


def places(model: object) -> list[Place]:
    """Every place of a model."""
    found = []
    for prefix, transformer in transformers(model).items():
        for name, point in transformer.hooks.items():
            parts = _NAME.fullmatch(name)
            assert parts is not None
            block, own, layer, part = parts.groups()
            found.append(Place(prefix, block, int(layer), part, point, None if own is None else int(own)))
    return found


def names(model: object, passes: Sequence[int]) -> list[str]:
    """The names of all places in these passes."""
    each = isinstance(model, Algorithm)
    return list(dict.fromkeys(name for place in places(model) for name in place.names(passes, each)))


def registers(model: object) -> list[str]:
    """The states of a program; a model that is none has no registers."""
    if isinstance(model, Algorithm):
        return [state for state in model.config.state if state != ANSWER]
    return [state for state in model.program.values if state != ANSWER] if isinstance(model, TrainedProgram) else []


def register(state: str, step: int) -> str:
    """The name of a state after so many steps."""
    return f"registers.{state}[{step}]"


def register_names(model: object, steps: Sequence[int]) -> list[str]:
    """The names of all registers after these numbers of steps."""
    return [register(state, t) for state in registers(model) for t in steps]


def matching(patterns: Iterable[str], known: Iterable[str], beside: Iterable[str] = ()) -> set[str]:
    """The names that match. A pattern that matches nothing is refused with what is near it, ``beside`` included."""
    known = dict.fromkeys(known)
    found: set[str] = set()
    for pattern in patterns:
        matched = [pattern] if pattern in known else [name for name in known if fits(pattern, name)]
        if not matched:
            raise unknown_place(pattern, [*known, *beside])
        found.update(matched)
    return found


def fits(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern."""
    return bool(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name))


def unknown_place(given: object, names: Iterable[str]) -> UnknownNameError:
    """The error for a name or pattern that nothing has, with those that are near."""
    known = list(names)
    word = re.compile(rf"(?<!\w){re.escape(str(given))}(?!\w)")  # "r" is near registers.r[2]
    near = [name for name in known if word.search(name)][:5]
    near = near or difflib.get_close_matches(str(given), known, n=5, cutoff=0.0)
    return UnknownNameError(
        f"there is no intermediate {shown(given)}; near it: {', '.join(near) or 'none'}. There are {len(known):,}, and "
        "* stands for any characters"
    )


class _Clock:
    """Where a transformer is: told of every pass of a block before it starts."""

    def __init__(self, each: bool) -> None:
        self.each, self.passes, self.where = each, 0, ""

    def __call__(self, block: str) -> None:
        if block == "pre":
            self.passes = 0
        if block == "loop":
            self.where, self.passes = f"loop[{self.passes}]", self.passes + 1
        else:
            self.where = f"post[{self.passes}]" if block == "post" and self.each else block


@contextmanager
def watching(model: object, names: Iterable[str], see: See) -> Iterator[None]:
    """While this runs, ``see`` is called with every intermediate that has one of the names in some pass.

    Nothing is left behind, whatever happens.
    """
    parts = {_stem(name) for name in names}
    each = isinstance(model, Algorithm)
    with ExitStack() as stack:
        clocks = {prefix: _Clock(each) for prefix in transformers(model)}
        for prefix, transformer in transformers(model).items():
            transformer.observers.append(clocks[prefix])
            stack.callback(transformer.observers.remove, clocks[prefix])
        for place in places(model):
            if _stem(place.name(place.block)) in parts:
                hook = _hook(place, clocks[place.prefix], transformers(model)[place.prefix].observers, see)
                stack.callback(place.point.register_forward_hook(hook).remove)
        yield


def _hook(
    place: Place, clock: _Clock, observers: Sequence[object], see: See
) -> Callable[[object, object, Tensor], Tensor | None]:
    def hook(point: object, given: object, value: Tensor) -> Tensor | None:
        if clock not in observers:  # a run inside of a function that is called during another run
            return None
        other = see(place.name(clock.where), place.turned(value))
        return None if other is None else place.turned(other)

    return hook


@contextmanager
def unwatched(model: object) -> Iterator[None]:
    """While this runs, runs of the model are as without patches and recordings, which do not notice them."""
    lists: list[list[Any]] = [transformer.observers for transformer in transformers(model).values()]
    lists += [model.observers] if isinstance(model, Algorithm) else []
    lists += [model.interventions] if isinstance(model, TrainedProgram) else []
    kept = [list(each) for each in lists]
    try:
        for each in lists:
            each.clear()
        yield
    finally:
        for each, before in zip(lists, kept, strict=True):
            each[:] = before


def _stem(name: str) -> str:
    """A name without the number of its pass."""
    return re.sub(r"(loop|post)\[\d+\]\.", r"\1.", name, count=1)
