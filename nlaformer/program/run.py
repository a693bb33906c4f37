"""Runs: what they take, what they return, how they ended; and the plain run of a program, on arrays, no transformer.

The plain run (``run_program``) is the reference of the compiled one (``Algorithm.run``). Both check their inputs and
keep a record of their iterates with the functions of this module; it is judged when someone asks how the run ended.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import (
    ArrayT,
    FloatArray,
    ObjectArray,
    check_memory,
    common_kind,
    full_precision,
    give,
    operands,
    to_tensor,
    whole,
)
from nlaformer.errors import OptionError, ShapeError
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.inputs import padded, size_of
from nlaformer.program.ir import AXES, Shape
from nlaformer.program.ir import size_of as entries_of
from nlaformer.program.language import KINDS, Program
from nlaformer.program.status import Diagnosis, Record, RunStatus
from nlaformer.program.trace import inputs_of, refuse_open_parts, trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# The values of a program after its start and after each of so many steps.
_Iteration = Callable[[Mapping[str, Tensor], int], Iterable[dict[str, Tensor]]]


@dataclass(frozen=True)
class Run(Generic[ArrayT]):
    """The iterates of a program, compiled or plain. What is said of them is computed when it is asked for.

    Attributes
    ----------
    x : (..., T + 1, n), the answers; the start's comes first
    state : every state by name, (..., T + 1[, n[, n]])
    """

    x: ArrayT
    state: dict[str, ArrayT]
    record: Record = field(repr=False, compare=False)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("state", {}):
            raise AttributeError(f"a run has no {name}; write run.x for the answers, or run.state[{name!r}]", name=name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @functools.cached_property
    def residual_norms(self) -> ArrayT | None:
        """The norms of the residuals, (..., T + 1), or None where the program has none."""
        found = self.record.residuals
        return None if found is None else self.record.given_back(found[0])

    @functools.cached_property
    def status(self) -> RunStatus | ObjectArray:
        """A RunStatus, or an object array of them in the shape of the batch."""
        found: Any = self.record.status.reshape(self.record.batch)
        return found if self.record.batch else found[()]  # type: ignore[no-any-return]

    @functools.cached_property
    def digits(self) -> dict[str, ArrayT]:
        """How many significant digits the program determines of each value, in operations of 33 bits (float32: 10).

        (..., T + 1) of every state by name, of the answer as "finish()", and as "x" where no state is called so. 0: the
        program determines nothing, as of r and d of conjugate gradients after convergence; 16: it is exact.

        >>> import numpy as np, nlaformer as nf
        >>> run = nf.algorithm("cg", n=2, verify=False).run(np.diag([1.0, 2.0]), np.ones(2), iterations=3)
        >>> bool(run.digits["x"][-1] > 8), float(run.digits["r"][-1])
        (True, 0.0)
        """
        if not self.record.bands:
            raise OptionError(
                "how many digits there are is not known: a network makes some of the values, or they are those of the "
                "paper's own form, whose states are not all of the program's"
            )
        found = {name: self.record.given_back(band.digits) for name, band in self.record.bands.items()}
        return {"x": found[ANSWER]} | found

    @full_precision()
    def diagnose(self) -> Diagnosis:
        """Where a value of the weights cannot be the program's own; ``print`` it.

        Returns
        -------
        Diagnosis : how many bars each value is off at every step, the first that is too far, and its line
        """
        if not self.record.of_weights:
            raise OptionError(
                "this is a run of the program itself, so there is nothing to compare it with; diagnose a run of its "
                "weights, nf.compile(program, n).run(...)"
            )
        return self.record.diagnosis()

    def check(self, program: Program | None = None) -> Diagnosis:
        """Compare this run with the program's own lines on arrays, on the data of this run; ``print`` the result.

        A program is traced once, and its runs are judged by what was traced. Its lines may do what a graph cannot hold:
        decide by the kind of a value, or keep something that is no state.

        Parameters
        ----------
        program : the program, which an algorithm that was loaded does not know

        Examples
        --------
        >>> import numpy as np, nlaformer as nf
        >>> cg = nf.algorithm("cg", n=2)
        >>> bool(cg.run(np.diag([1.0, 2.0]), np.ones(2), iterations=2).check())
        True
        """
        from nlaformer.program.lines import beside_lines

        program = self.record.program if program is None else program
        if program is None:
            raise OptionError(
                "the lines of this program are not known, as of an algorithm that was loaded: check(program)"
            )
        return beside_lines(self.record, program)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(np.shape(value))}" for name, value in {"x": self.x, **self.state}.items())
        return f"<run: {shapes}; {self.status}{self._digits_left('; ')}>"

    def _digits_left(self, before: str) -> str:
        """The digits of the last answer of weights, of several systems the fewest."""
        bands = self.record.bands if self.record.of_weights else {}
        return f"{before}x has {float(bands[ANSWER].digits[:, -1].min()):.0f} digits" if bands else ""

    @property
    def finding(self) -> str:
        """How it ended, after how many iterations, with which residual; of several systems, how many ended how."""
        from nlaformer.report.curves import outcome

        residuals = [] if self.residual_norms is None else _numbers(self.residual_norms)[..., -1].ravel().tolist()
        names = [status.name for status in np.ravel(np.asarray(self.status, dtype=object))]
        count = np.shape(self.x)[self._axis] - 1
        ended = outcome(names or ["no systems"], residuals, f"{count:,} iteration" + "s" * (count != 1))
        return ended + self._digits_left(", ")

    def plot(self) -> Figure:
        """Draw the residuals over the iterations; without a residual, how far the answer moves in each of them.

        Returns
        -------
        matplotlib.figure.Figure : notebooks show it, ``savefig`` writes it

        Examples
        --------
        >>> import numpy as np, nlaformer as nf
        >>> run = nf.algorithm("cg", n=2, verify=False).run(np.diag([1.0, 2.0]), np.ones(2), iterations=4)
        >>> run.plot().axes[0].get_title() == run.finding
        True
        """
        from nlaformer.report.curves import history_figure

        if self.residual_norms is not None:
            return history_figure(_numbers(self.residual_norms), self.finding, "norm of the residual")
        moved = np.diff(_numbers(self.x), axis=self._axis)
        moved = np.sqrt(np.square(moved).sum(axis=tuple(range(self._axis + 1, moved.ndim))))
        return history_figure(moved, self.finding, "|x_(t+1) - x_t|")

    @property
    def _axis(self) -> int:
        """The axis of the iterations, which comes after those of the systems."""
        return len(self.record.batch)

    def _repr_html_(self) -> str:
        from nlaformer.report.html import panel, rows, spark

        shapes = {name: str(tuple(np.shape(value))) for name, value in {"x": self.x, **self.state}.items()}
        told = {"status": str(self.status)} if isinstance(self.status, RunStatus) else {}
        told |= {"states": ", ".join(f"{name} {shape}" for name, shape in shapes.items())}
        if self.record.of_weights and self.record.bands:
            least = {name: float(band.digits[:, -1].min()) for name, band in self.record.bands.items()}
            told |= {"digits at the end": ", ".join(f"{name} {digits:.1f}" for name, digits in least.items())}
        parts = [rows(told)]
        if self.residual_norms is not None and not self._axis:
            parts.append(
                spark(_numbers(self.residual_norms).tolist(), "norm of the residual by iteration, logarithmic")
            )
        return panel(f"Run: {self.finding}", *parts)


def _numbers(value: Any) -> FloatArray:
    found: FloatArray = to_tensor("values", value).detach().double().cpu().numpy()
    return found


def run_program(program: Program, given: Mapping[str, Any], iterations: int) -> Run[Any]:
    """A program on NumPy or torch arrays, all systems at once: the reference, no transformer."""
    kinds = inputs_of(program)
    n = size_of(given, KINDS | kinds)
    graph = None if n is None else trace(program, n)  # what is wrong with the program comes first
    given = padded(program.name, given, kinds, n, program.rectangular)
    inputs = take_any_size(program.name, kinds, given)
    graph = graph or trace(program, size_of(inputs, kinds) or 1)
    refuse_open_parts(graph)
    return run_graph(graph, inputs, iterations, array_library(*given.values()), own=program)


@full_precision()
def run_graph(
    program: ProgramGraph,
    inputs: dict[str, Tensor],
    iterations: int,
    library: str,
    iterate: _Iteration | None = None,
    pieces: Callable[..., Iterable[tuple[Tensor, ...]]] | None = None,
    own: Program | None = None,
) -> Run[Any]:
    """A program as data on tensors of one batch shape, judged; in the caller's library.

    ``iterate`` stands for the program's own where its learned parts are filled in. ``pieces`` splits tensors along
    their first axis into systems that are computed at once; by default, all are.
    """
    batch, flat = flatten(inputs, program.kinds)
    count = check_iterations(iterations, (node.shape for node in program.values.values()), flat)
    split = [tuple(flat.values())] if pieces is None else pieces(*flat.values())
    iterate = iterate or program.iterate
    found = [_iterates(program, dict(zip(flat, piece, strict=True)), count, iterate) for piece in split]
    values = {name: torch.cat([piece[name] for piece in found]) for name in found[0]}
    broken = values.pop("broken promises")
    return recorded_run(values, flat, program, program.name, batch, library, broken=broken, program=own)


def _iterates(program: ProgramGraph, inputs: dict[str, Tensor], count: int, iterate: _Iteration) -> dict[str, Tensor]:
    """Every state and the answer, (systems, T + 1, ...), and at which iterates promises were broken."""
    like = next(iter(inputs.values()))
    records: dict[str, list[Tensor]] = {name: [] for name in program.values}
    broken = torch.zeros(like.shape[0], count + 1, dtype=torch.bool, device=like.device)
    for t, values in enumerate(iterate(inputs, count)):
        for name, record in records.items():
            record.append(values[name])
        for name, node in program.promises.items():
            if name in values:  # of the step that led here: it counts with the state which that step started from
                negative = values[name] < 0
                broken[:, max(t - 1, 0)] |= negative.flatten(-node.ndim).any(-1) if node.ndim else negative
    # A state may be set to a constant, which has no axis of systems; so may the answer.
    shapes = {name: (like.shape[0], *node.shape) for name, node in program.values.items()}
    found = {name: torch.stack([v.expand(shapes[name]) for v in record], 1) for name, record in records.items()}
    return found | {"broken promises": broken}


def array_library(*given: Any) -> str:
    """The library of the results, torch or numpy; lists get NumPy arrays."""
    return "torch" if common_kind(given) == "torch" else "numpy"


def take_any_size(
    name: str, needs: Mapping[str, str], given: Mapping[str, Any], dtype: torch.dtype | None = None, device: Any = None
) -> dict[str, Tensor]:
    """The inputs, in the size they came in; unless said otherwise, in the wider precision and on the device too."""
    tensors = {key: to_tensor(key, value) for key, value in given.items() if value is not None}
    n = size_of(tensors, needs) or 1
    arrays = [tensor for key, tensor in tensors.items() if not isinstance(given[key], float)]  # a number has no dtype
    floating = {tensor.dtype for tensor in arrays if tensor.is_floating_point()}
    dtype = dtype or (torch.float32 if floating == {torch.float32} else torch.float64)
    tensors = {key: t.to(dtype) if t.dtype in (torch.float32, torch.float64) else t for key, t in tensors.items()}
    devices = [device, *(value.device for value in given.values() if isinstance(value, Tensor)), torch.device("cpu")]
    return take_inputs(name, needs, tensors, n, dtype, next(found for found in devices if found is not None))


def take_inputs(
    owner: str, needs: Mapping[str, str], given: Mapping[str, Any], n: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """The inputs a program needs, by name and kind, as tensors of one batch shape; x0 is 0 where it is not given."""
    given = {name: value for name, value in given.items() if value is not None}
    if extra := [name for name in given if name not in needs]:
        raise ShapeError(f"{owner} takes {', '.join(needs)}; {extra[0]} was given too. Omit it")
    # Zeros need something to take their shape from.
    optional = {"x0"} if len(needs) > 1 else set()
    if missing := [name for name in needs if name not in given and name not in optional]:
        raise ShapeError(f"{owner} needs {', '.join(missing)}; run({', '.join(needs)})")
    shapes = {name: (n,) * AXES[kind] for name, kind in needs.items()}
    tensors = operands(owner, given, shapes, dtype, device)
    if "x0" in needs and "x0" not in tensors:
        name, like = next(iter(tensors.items()))
        batch = like.shape[: like.dim() - len(shapes[name])]
        tensors["x0"] = torch.zeros(*batch, n, dtype=dtype, device=device)
    return {name: tensors[name] for name in needs}


def flatten(inputs: Mapping[str, Tensor], kinds: Mapping[str, str]) -> tuple[tuple[int, ...], dict[str, Tensor]]:
    """The leading dimensions that all inputs share, and the inputs with a single one."""
    name, value = next(iter(inputs.items()))
    batch = tuple(value.shape[: value.dim() - AXES[kinds[name]]])
    return batch, {name: value.reshape(math.prod(batch), *value.shape[len(batch) :]) for name, value in inputs.items()}


def check_iterations(iterations: Any, shapes: Iterable[Shape], flat: Mapping[str, Tensor]) -> int:
    """The number of iterations, if every iterate of states of these shapes can be kept."""
    count = whole("iterations", iterations, 0)
    like = next(iter(flat.values()))
    entries = len(like) * sum(map(entries_of, shapes))
    remedy = ". Ask for fewer, and give the last x as x0 to continue"
    needed = (count + 1) * entries * like.element_size()
    check_memory(f"iterations is {count:,}: keeping every iterate", needed, like.device, remedy)
    return count


def recorded_run(
    values: dict[str, Tensor],
    inputs: dict[str, Tensor],
    graph: ProgramGraph,
    name: str,
    batch: tuple[int, ...],
    library: str,
    of_weights: bool = False,
    broken: Tensor | None = None,
    program: Program | None = None,
) -> Run[Any]:
    """Everything as arrays of the caller's library, with a record of what it is judged by.

    ``values`` has every state and, under ``ANSWER``, the answer, (systems, T + 1, ...); the rest is as in ``Record``.
    The record has copies: the caller may change arrays in place.
    """

    def kept(of: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {key: value.detach().to(torch.float64, copy=True) for key, value in of.items()}

    dtype = values[ANSWER].dtype
    record = Record(kept(inputs), kept(values), dtype, graph, name, batch, library, of_weights, broken, program)
    back = {key: give(value.reshape(*batch, *value.shape[1:]), library) for key, value in values.items()}
    return Run(back.pop(ANSWER), back, record)
