"""nf.trace: one run of a model, with every intermediate by name (``places``).

What is recorded are the tensors of the ordinary run, seen by hooks; what a part adds to P is computed beside the sum,
from the same numbers. The results are those of the ordinary run to the last bit. A batch runs in one piece, so that a
name has one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import ArrayT, check_memory, flag, full_precision, give, to_tensor, whole
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.result import Run, array_library, flatten
from nlaformer.errors import DTypeError, OptionError, ShapeError, UnknownNameError, look_up, shown
from nlaformer.express.operation import Operation
from nlaformer.learn.model import Solver
from nlaformer.learn.programs import TrainedProgram
from nlaformer.microscope.pages import About, trace_page, trace_panel
from nlaformer.microscope.places import (
    Model,
    fits,
    matching,
    names,
    places,
    register,
    register_names,
    transformers,
    unknown_place,
    watching,
)
from nlaformer.transformer import Layer, NLAFormer

_MOST_NAMES = 2**20
_WITHOUT = {
    "register": "registers are the states of a program, and this model is none; see trace.probes and nf.probe",
    "probe": "trained solvers have probes, and this model is none; see trace.registers and nf.probe",
}


class Named(dict[str, ArrayT]):
    """Arrays by name; a name that is not there is refused with those that are."""

    def __init__(self, what: str, arrays: Mapping[str, ArrayT]):
        super().__init__(arrays)
        self.what = what

    def __missing__(self, name: str) -> ArrayT:
        if not self:
            raise UnknownNameError(f"there is no {self.what} {shown(name)}: {_WITHOUT[self.what]}")
        return look_up(self.what, name, dict(self))


@dataclass(frozen=True, repr=False, eq=False)
class Trace(Generic[ArrayT]):
    """A run of a model with its intermediates. Made by ``nf.trace``.

    ``trace[name]`` is an array with the leading dimensions of what was given, in its kind. A name with ``*`` stands for
    all that match, stacked along a new axis after the leading dimensions: ``trace["loop[*].layer[0].output"]``.
    ``trace["registers.r[3]"]`` is the state r of a program after three steps, as in ``trace.registers["r"]``, which is
    there whatever is kept.

    Attributes
    ----------
    names : the names that were kept, in the order of the run; then the registers
    output : what the run gave: an operation's result, the answer after every iteration, or P of an ``nf.NLAFormer``
    iterates : the answers after each iteration, (..., T + 1, n); None for an operation
    registers : the states of a program by name, decoded, (..., T + 1[, n[, n]]); empty where there are none
    probes : what the probes of a trained solver read at every iterate, (..., T + 1, n), of the system as it sees it
    features : the last token of a trained solver at every iterate, which the probes read, (..., T + 1, d); else None
    memory : bytes that the kept intermediates take
    """

    output: ArrayT
    iterates: ArrayT | None
    registers: Named[ArrayT]
    probes: Named[ArrayT]
    features: ArrayT | None
    batch: tuple[int, ...]
    kind: str
    kept: dict[str, Tensor] = field(repr=False)
    about: About = field(repr=False, default_factory=lambda: About("recording"))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.kept)

    def __getitem__(self, name: str) -> ArrayT:
        if name in self.kept:
            return self._given(self.kept[name])
        chosen = [value for known, value in self.kept.items() if "*" in str(name) and fits(name, known)]
        if not chosen:
            raise unknown_place(name, self.kept)
        if len(shapes := {value.shape for value in chosen}) > 1:
            raise ShapeError(
                f"{name} stands for {len(chosen)} intermediates of {len(shapes)} shapes; take one at a time"
            )
        return self._given(torch.stack(chosen, 1))

    def __iter__(self) -> Iterator[str]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def __contains__(self, name: object) -> bool:
        return name in self.kept

    def keys(self) -> KeysView[str]:
        """The names, so that ``dict(trace)`` is a dictionary of arrays."""
        return self.kept.keys()

    def items(self) -> Iterator[tuple[str, ArrayT]]:
        """Every name with its array."""
        return ((name, self[name]) for name in self)

    @property
    def attention(self) -> Attention[ArrayT]:
        """The attention weights of every layer: ``trace.attention["loop[3].layer[0]"]``, (..., head, query, key)."""
        return Attention(self)

    @property
    def memory(self) -> int:
        storages = [value.untyped_storage() for value in self.kept.values()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def __repr__(self) -> str:
        return f"<trace of {len(self.kept):,} intermediates, {self.memory / 1e6:,.1f} MB>"

    def to_html(self, system: int = 0) -> str:
        """A page of the run: P before and after each layer, the attention of each head, the registers at each step.

        Parameters
        ----------
        system : which one of a batch, counted through all its dimensions

        Returns
        -------
        str : a document complete in itself, which works from disk: ``Path("trace.html").write_text(trace.to_html())``

        Examples
        --------
        >>> import numpy as np, nlaformer as nf
        >>> nf.trace(nf.operation("matvec", n=2), np.eye(2), np.ones(2)).to_html()[:15]
        '<!doctype html>'
        """
        return trace_page(self, system)

    def _repr_html_(self) -> str:
        return trace_panel(self)

    def _given(self, value: Tensor) -> ArrayT:
        # A copy: one layer's output is the next one's input.
        result: ArrayT = give(value.reshape((*self.batch, *value.shape[1:])).clone(), self.kind)
        return result


class Attention(Mapping[str, ArrayT]):
    """The attention weights of a recording by layer."""

    end = ".attention.weights"

    def __init__(self, record: Trace[ArrayT]):
        self.record = record

    def __getitem__(self, where: str) -> ArrayT:
        return self.record[f"{where}{self.end}"]

    def __contains__(self, where: object) -> bool:
        return f"{where}{self.end}" in self.record

    def __iter__(self) -> Iterator[str]:
        return (name.removesuffix(self.end) for name in self.record if name.endswith(self.end))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@torch.no_grad()
@full_precision()
def trace(model: Model, *operands: ArrayT, keep: str | Sequence[str] = "*", **options: Any) -> Trace[ArrayT]:
    """Run a model and record its intermediates.

    Parameters
    ----------
    model : an operation, a compiled algorithm, a trained model, a program with a learned part, or an ``nf.NLAFormer``
    operands : what the model takes, such as A and b: torch in, torch out; otherwise the intermediates are NumPy's. An
        ``nf.NLAFormer`` takes P, (..., rows, tokens)
    keep : names or patterns of what is kept, for example ``"loop[*].attention.weights"`` or ``["*.input", "*.output"]``
    options : what else the run takes: ``iterations``, ``x0`` and further inputs of a program, ``normalize`` of a
        trained solver, ``loops`` of an ``nf.NLAFormer``

    Returns
    -------
    Trace

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> record = nf.trace(nf.algorithm("cg", n=2, verify=False), A, b, iterations=2)
    >>> record["loop[1].layer[0].input"].shape == record["loop[*].layer[0].input"].shape[1:]
    True
    >>> record.registers["r"].round(6)[1]  # the residual after one step
    array([-0.5 ,  0.25])
    >>> weights = record.attention["loop[1].layer[0]"]  # (head, query, key)
    >>> bool(np.allclose(weights.sum(-1), 1))
    True
    """
    patterns = [keep] if isinstance(keep, str) else keep
    if not isinstance(patterns, list | tuple | set) or not all(isinstance(pattern, str) for pattern in patterns):
        raise OptionError(f"keep is {shown(keep)}; expected a name or pattern, or several in a list")
    run = _run(model, operands, options)
    if (count := len(places(model)) * run.passes) > _MOST_NAMES:
        raise OptionError(
            f"{run.passes:,} passes have {count:,} names, more than {_MOST_NAMES:,}; ask for fewer passes"
        )
    known = [*names(model, range(run.passes)), *register_names(model, range(run.passes + 1))]
    wanted = matching(patterns, known)
    _check_memory(model, run, wanted)
    kept: dict[str, Tensor] = {}

    def see(name: str, value: Tensor) -> None:
        if name in wanted:
            kept[name] = value

    with watching(model, wanted, see):
        found = run.start()
    kept |= _registers(found.registers, run.batch, wanted)
    return Trace(
        found.output,
        found.iterates,
        Named("register", found.registers),
        Named("probe", found.probes),
        found.features,
        run.batch,
        array_library(*operands, *options.values()),
        kept,
        About.of(model),
    )


def _registers(states: Mapping[str, Any], batch: tuple[int, ...], wanted: set[str]) -> dict[str, Tensor]:
    """The registers that are wanted, by name, (systems, ...)."""
    found: dict[str, Tensor] = {}
    for state, value in states.items():
        tensor = to_tensor(state, value)
        steps = tensor.reshape(-1, *tensor.shape[len(batch) :]).unbind(1)
        found |= {name: each for t, each in enumerate(steps) if (name := register(state, t)) in wanted}
    return found


# --- models ---


@dataclass(frozen=True)
class _Found:
    """What a run gives beside the intermediates."""

    output: Any
    iterates: Any = None
    registers: Mapping[str, Any] = field(default_factory=dict)
    probes: Mapping[str, Any] = field(default_factory=dict)
    features: Any = None


@dataclass(frozen=True)
class _Run:
    """A run to come: the shape of its systems and of a prompt, the passes of its loop, and how to start it."""

    batch: tuple[int, ...]
    rows: int
    tokens: int
    passes: int
    start: Callable[[], _Found]


def _run(model: Model, operands: Sequence[Any], options: dict[str, Any]) -> _Run:
    transformers(model)  # refuses what is none
    if isinstance(model, Operation):
        _refuse(options, ())
        *batch, rows, tokens = np.shape(model.prompt(*operands))
        return _Run(tuple(batch), rows, tokens, 0, lambda: _Found(model(*operands)))
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


def _of_algorithm(model: Algorithm, operands: Sequence[Any], options: dict[str, Any]) -> _Run:
    passes = whole("iterations", options.get("iterations", 30), 0)
    inputs = {name: value for name, value in options.items() if name != "iterations"}
    _refuse_many(operands)
    *batch, rows, tokens = np.shape(model.prompt(*operands, **inputs))
    return _Run(tuple(batch), rows, tokens, passes, lambda: _of_run(model.run(*operands, **options)))


def _of_run(run: Run[Any]) -> _Found:
    return _Found(run.x, run.x, run.state)


def _of_solver(model: Solver, operands: Sequence[Any], options: dict[str, Any]) -> _Run:
    _refuse(options, ("iterations", "normalize"))
    if len(operands) != 2:
        raise ShapeError(f"a trained solver takes A and b; {len(operands)} arrays were given")
    config = model.config
    iterations = whole("iterations", options.get("iterations", config.T), 0)
    flag("normalize", options.get("normalize", True))
    seen: list[Tensor] = []

    def run() -> _Found:
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
        return _Found(x, x, {}, probes, give(last.reshape(*batch, *last.shape[1:]), kind))

    loops = max(iterations - (len(model.blocks.post) > 0), 0)
    return _Run(_batch(*operands), config.d, config.n + 1, loops, run)


def _batch(A: Any, b: Any) -> tuple[int, ...]:
    """The leading dimensions of A and b together."""
    try:
        return tuple(torch.broadcast_shapes(to_tensor("A", A).shape[:-2], to_tensor("b", b).shape[:-1]))
    except RuntimeError:
        return ()  # the run refuses them


def _of_program(model: TrainedProgram, operands: Sequence[Any], options: dict[str, Any]) -> _Run:
    passes = whole("iterations", options.get("iterations", model.config.T), 0)
    _refuse_many(operands)
    further = {name: value for name, value in options.items() if name != "iterations"}
    named = dict(zip(("A", "b", "x0"), operands, strict=False)) | further
    batch, _ = flatten(model.inputs(named), model.program.inputs)
    rows, tokens = model.config.d, model.config.n + 1
    return _Run(batch, rows, tokens, passes, lambda: _of_run(model.run(*operands, **options)))


def _of_transformer(model: NLAFormer, operands: Sequence[Any], options: dict[str, Any]) -> _Run:
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

    def run() -> _Found:
        output = model(flat, passes)
        return _Found(give(output.reshape(*batch, *output.shape[1:]), array_library(*operands)))

    return _Run(tuple(batch), rows, tokens, passes, run)


# --- memory ---


def _check_memory(model: Model, run: _Run, wanted: set[str]) -> None:
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
