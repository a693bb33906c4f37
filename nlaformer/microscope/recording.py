"""nf.trace: one run of a model, with every intermediate by name (``places``).

What is recorded are the tensors of the ordinary run, seen by hooks; what a part adds to P is computed beside the sum,
from the same numbers. The results are those of the ordinary run to the last bit. A batch runs in one piece, so that a
name has one array.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import torch
from torch import Tensor

from nlaformer.arrays import ArrayT, full_precision, give, to_tensor
from nlaformer.errors import OptionError, ShapeError, UnknownNameError, look_up, shown
from nlaformer.microscope.pages import About, trace_page, trace_panel
from nlaformer.microscope.places import (
    Model,
    fits,
    matching,
    names,
    places,
    register,
    register_names,
    unknown_place,
    watching,
)
from nlaformer.microscope.runs import planned, refuse_what_cannot_be_held
from nlaformer.program.run import array_library

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
    run = planned(model, operands, options)
    if (count := len(places(model)) * run.passes) > _MOST_NAMES:
        raise OptionError(
            f"{run.passes:,} passes have {count:,} names, more than {_MOST_NAMES:,}; ask for fewer passes"
        )
    known = [*names(model, range(run.passes)), *register_names(model, range(run.passes + 1))]
    wanted = matching(patterns, known)
    refuse_what_cannot_be_held(model, run, wanted)
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
