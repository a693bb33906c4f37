"""The artefact: weights for every n, and their runs."""

from __future__ import annotations

import functools
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from nlaformer import io
from nlaformer.arrays import check_memory, full_precision, whole
from nlaformer.compiler.anysize import entries
from nlaformer.compiler.anysize.gather import Matrices, Pass, Rows
from nlaformer.compiler.anysize.lower import Lowering, Stored, lower
from nlaformer.compiler.anysize.plan import Plan, plan
from nlaformer.compiler.anysize.program import AnySize, any_size, traced_for_any
from nlaformer.compiler.anysize.reading import LayerForm, Reader
from nlaformer.compiler.anysize.reference import Reference
from nlaformer.compiler.anysize.result import Given, run_of
from nlaformer.compiler.anysize.weights import ABSENT, BITS, layout_of, weights_of
from nlaformer.errors import DomainError, OptionError, ShapeError
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.language import Program
from nlaformer.program.run import Run
from nlaformer.program.tensors import size
from nlaformer.prompt import Layout, exponent, scale
from nlaformer.transformer import NLAFormer

SLOTS = 16
# The entries of a matrix are below the gain of its heads: those of one that a run scales, and of one that it does not.
_SCALED, _UNSCALED = 2.0, 4096.0
Attention = Literal["gathered", "dense"]


@dataclass(frozen=True)
class AnySizeConfig:
    """What ``save`` writes beside the weights: the program at a few sizes, from which all else follows."""

    name: str
    inputs: list[str]
    slots: int
    attends: dict[str, list[list[str]]]
    graphs: list[dict[str, Any]]
    n: str = "any"
    dtype: str = "float64"


class AnySizeAlgorithm:
    """A program as a looped transformer whose weights know neither n nor A. Made with ``n="any"``.

    Attributes
    ----------
    model : NLAFormer, the transformer
    """

    def __init__(self, config: AnySizeConfig, model: NLAFormer, traced: AnySize, program: Program | None = None):
        self.config, self.model, self.program = config, model, program
        self._traced, self.lowered = traced, lower(traced)
        self._plans: dict[object, Plan] = {}
        self._forms: tuple[object, dict[str, list[LayerForm]]] = (None, {})

    n = "any"
    dtype = torch.float64

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def slots(self) -> int:
        return self.config.slots

    def __repr__(self) -> str:
        layers = len(self.model.loop)
        return f"<algorithm {self.name!r}, any n, {self.slots} slots a row: {layers} layers an iteration>"

    def layout(self, n: int) -> Layout:
        """The named rows of the prompt for n rows: their names and numbers do not depend on n."""
        return layout_of(self.lowered, self.slots, n + 1)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write config.json and model.safetensors into a folder; ``nf.load`` reads it back."""
        return io.save(path, "algorithm for any n", self.model, asdict(self.config))

    # --- runs ---

    @full_precision()
    def run(
        self,
        A: Any = None,
        b: Any = None,
        x0: Any = None,
        iterations: int = 30,
        *,
        attention: Attention = "gathered",
        keep: Literal["all", "last"] = "all",
        **further: Any,
    ) -> Run[Any]:
        """Start, ``iterations`` steps, finish, for A of any size.

        Parameters
        ----------
        A : (n, n), SciPy's or torch's sparse or dense matrix, with no more entries in a row than there are slots
        b, x0 : (..., n), NumPy in, NumPy out; torch in, torch out. x0 is 0 by default
        iterations : passes of the loop block
        attention : "gathered": each head reads the tokens that it declares to attend to; "dense": the softmax over
            all n + 1 tokens, through ``model``, which hooks can watch
        keep : "last" keeps the last iterate alone, (..., 1, n)
        further : what else the program declares, by name

        Returns
        -------
        Run
        """
        if attention not in ("gathered", "dense"):
            raise OptionError(f'attention is {attention!r}; expected "gathered" or "dense"')
        if keep not in ("all", "last"):
            raise OptionError(f'keep is {keep!r}; expected "all" or "last"')
        count = whole("iterations", iterations, 0)
        given = self._take(A=A, b=b, x0=x0, **further)
        if attention == "gathered" and any(point.watched for point in self.model.hooks.values()):
            raise OptionError('the model has hooks, which gathered heads do not pass; run(..., attention="dense")')
        kept = (count + 1 if keep == "all" else 1) * given.systems * given.n * 8
        vectors = sum(stored.kind == "vector" for stored in self.lowered.state.values()) + 1
        what = f"iterations is {count:,}: keeping every iterate"
        check_memory(what, kept * vectors, torch.device("cpu"), '. Ask for fewer, or keep="last"')
        matrices = Matrices(self.slots_of(given.matrices), self.gains)
        records = []
        for system in range(given.systems):
            inputs = {name: value[system] for name, value in given.scaled.items()}
            passes = (self._gathered if attention == "gathered" else self._dense)(given, inputs, matrices, count)
            values: list[dict[str, Any]] = []
            for rows, after in passes:
                values = (
                    [*values, self._read(rows, after, given.n)] if keep == "all" else [self._read(rows, after, given.n)]
                )
            records.append(values)
        found = {name: np.stack([[v[name] for v in values] for values in records]) for name in records[0][0]}
        return run_of(found, given, self, count if keep == "all" else None)

    def prompt(self, A: Any = None, b: Any = None, x0: Any = None, **further: Any) -> Tensor:
        """The token matrix P of one system, (rows, tokens)."""
        given = self._take(A=A, b=b, x0=x0, **further)
        if given.systems != 1:
            raise ShapeError(f"{given.systems} systems; the prompt of one at a time is given")
        return self._prompt(given, {name: value[0] for name, value in given.scaled.items()}).mT

    def _gathered(
        self, given: Given, inputs: Mapping[str, Any], matrices: Matrices, count: int
    ) -> Iterator[tuple[Rows, Rows]]:
        """The rows after the pre block and each pass of the loop, and after the post block on them."""
        layout, rows = self.layout(1), Rows()
        for name, number in self.lowered.inputs.items():
            if np.any(inputs[name]):
                rows[self._places[number]] = inputs[name]
        for name, number in self.lowered.of_rows.items():
            rows[self._places[number]] = entries.beside(name, given.matrices, given.n)
        ready: dict[object, Pass] = {}

        def through(block: str, rows: Rows) -> Rows:
            kinds = tuple(sorted((row, not isinstance(value, np.ndarray)) for row, value in rows.items()))
            if (block, kinds) not in ready:
                ready[block, kinds] = Pass(self._plan(block, kinds, layout), given.n, matrices)
            with np.errstate(all="ignore"):
                return ready[block, kinds].run(rows)

        rows = through("pre", rows)
        yield rows, self._post(through, rows)
        for _ in range(count):
            rows = through("loop", rows)
            yield rows, self._post(through, rows)

    def _post(self, through: Any, rows: Rows) -> Rows:
        return through("post", rows) if len(self.model.post) else rows  # type: ignore[no-any-return]

    def _dense(
        self, given: Given, inputs: Mapping[str, Any], matrices: Matrices, count: int
    ) -> Iterator[tuple[Rows, Rows]]:
        tokens = given.n + 1
        widest = max(layer.width(tokens) for layer in self.model.loop)  # type: ignore[operator]
        check_memory(f"dense attention over {tokens:,} tokens", 8 * tokens * widest, torch.device("cpu"))
        X = self._prompt(given, inputs)

        def rows(X: Tensor) -> Rows:
            return dict(enumerate(X[1:].mT.numpy()))

        with torch.no_grad():
            X = self.model.through("pre", X)
            yield rows(X), rows(self.model.through("post", X))
            for _ in range(count):
                X = self.model.through("loop", X)
                yield rows(X), rows(self.model.through("post", X))

    def _plan(self, block: str, kinds: tuple[tuple[int, bool], ...], layout: Layout) -> Plan:
        """The plan of a block for rows of these kinds, read from the weights as they are now."""
        tensors = [tensor.detach().cpu().numpy() for tensor in self.model.state_dict().values()]
        mark = tuple(zlib.crc32(np.ascontiguousarray(tensor).tobytes()) for tensor in tensors)
        if self._forms[0] != mark:
            reader, attends = Reader(layout), self.config.attends
            self._plans = {}
            self._forms = (
                mark,
                {
                    name: [
                        reader.layer(layer, words) for layer, words in zip(getattr(self.model, name), said, strict=True)
                    ]
                    for name, said in attends.items()
                },
            )
        if (block, kinds) not in self._plans:
            self._plans[block, kinds] = plan(self._forms[1][block], dict(kinds), layout["one"][0])
        return self._plans[block, kinds]

    def _read(self, rows: Rows, after: Rows, n: int) -> dict[str, Any]:
        """The states, still scaled, after a pass, and the answer after the post block."""
        assert self.lowered.answer is not None
        values = {name: self._value(rows, stored, n) for name, stored in self.lowered.state.items()}
        return values | {ANSWER: self._value(after, self.lowered.answer, n)}

    def _value(self, rows: Rows, stored: Stored, n: int) -> Any:
        held = rows.get(self._places[stored.row], 0.0)
        if stored.kind == "vector":
            return held if np.ndim(held) else np.full(n, held)
        number = float(held if not np.ndim(held) else held[0])
        return math.exp(min(number, 709.0)) if stored.logarithm else number

    def _prompt(self, given: Given, inputs: Mapping[str, Any]) -> Tensor:
        """P of one system, (tokens, rows)."""
        n, lowered = given.n, self.lowered
        layout = self.layout(n)
        what = f"n is {n:,}: the prompt"
        check_memory(what, 8 * layout.rows * (n + 1), torch.device("cpu"), "; gathered heads need none")
        X = torch.zeros(n + 1, layout.rows, dtype=torch.float64)

        def write(name: str, value: Any) -> None:
            columns = torch.as_tensor(np.asarray(value, dtype=float))
            X[1:, layout[name].start : layout[name].stop] = columns.mT if columns.dim() == 2 else columns[..., None]

        X[0, layout["sink"][0]] = 1.0
        X[1, layout["first"][0]] = 1.0
        write("one", np.ones(n))
        write("address", entries.bits(np.arange(n), BITS))
        for name, slots in self.slots_of(given.matrices).items():
            column, entry = slots.tables(self.slots)
            codes = entries.code(entry, self.gains[name.removesuffix(".T")])
            for s in range(self.slots):
                write(f"{name} {s} address", entries.bits(column[:, s], BITS))
                write(f"{name} {s} +", np.where(entry[:, s] > 0, codes[:, s], ABSENT))
                write(f"{name} {s} -", np.where(entry[:, s] < 0, codes[:, s], ABSENT))
        for name in lowered.of_rows:
            write(name, entries.beside(name, given.matrices, n) * np.ones(n))
        for name, number in lowered.inputs.items():
            write(lowered.machine.rows[number].name, inputs[name] * np.ones(n))
        return X

    # --- what is given ---

    @functools.cached_property
    def _places(self) -> dict[int, int]:
        """The rows of P of the machine's rows, the same for every n."""
        layout = self.layout(1)
        return {k: layout[row.name][0] for k, row in enumerate(self.lowered.machine.rows)}

    @functools.cached_property
    def gains(self) -> dict[str, float]:
        """What bounds the entries of each matrix, by name."""
        return gains(self.lowered)

    def slots_of(self, matrices: Mapping[str, sp.csr_array]) -> dict[str, entries.Slots]:
        """The matrices whose slots the heads read, A^T as "A.T"; ShapeError if a row has too many entries."""
        found = {}
        for name in self.lowered.matrices:
            matrix = matrices[name.removesuffix(".T")]
            found[name] = entries.Slots.of(entries.transposed(matrix) if name.endswith(".T") else matrix)
            entries.longest_row(name, [found[name]], self.slots)
        return found

    @functools.cached_property
    def reference(self) -> Reference:
        """The program itself, by which runs are judged."""
        return Reference.of(self._traced)

    @property
    def traced(self) -> AnySize:
        """The program for any n."""
        return self._traced

    def _take(self, **given: Any) -> Given:
        """What a run is given: matrices as CSR, vectors (systems, n), scaled by powers of two."""
        kinds = self._traced.graph.kinds
        given = {name: value for name, value in given.items() if value is not None}
        if extra := [name for name in given if name not in kinds]:
            raise ShapeError(f"{self.name} takes {', '.join(kinds)}; {extra[0]} was given too. Omit it")
        if missing := [name for name in kinds if name not in given and name != "x0"]:
            raise ShapeError(f"{self.name} needs {', '.join(missing)}; run({', '.join(kinds)})")
        library = "torch" if any(isinstance(value, Tensor) for value in given.values()) else "numpy"
        matrices = {name: entries.sparse(name, given[name]) for name, kind in kinds.items() if kind == "matrix"}
        vectors = {
            name: np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=float)
            for name, value in given.items()
            if kinds[name] != "matrix"
        }
        n = self._size(matrices, {name: v for name, v in vectors.items() if kinds[name] == "vector"})
        axes = {name: int(kinds[name] == "vector") for name in vectors}
        batch = np.broadcast_shapes(*(v.shape[: v.ndim - axes[name]] for name, v in vectors.items()), ())
        flat = {}
        for name, value in vectors.items():
            if not np.isfinite(value).all():
                raise DomainError(f"{name} has entries that are not finite")
            if axes[name]:
                value = np.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, n - value.shape[-1])])
            flat[name] = np.broadcast_to(value, (*batch, *value.shape[value.ndim - axes[name] :])).reshape(
                -1, *[n] * axes[name]
            )
        if "x0" in kinds and "x0" not in flat:
            flat["x0"] = np.zeros((math.prod(batch), n))
        matrices = {name: entries.padded(matrix, n) for name, matrix in matrices.items()}
        return self._scaled(Given(n, batch, library, matrices, flat, {}, {}))

    def _size(self, matrices: Mapping[str, sp.csr_array], vectors: Mapping[str, np.ndarray]) -> int:
        """The n of matrices and vectors: the largest side."""
        sizes = {name: value.shape[-1] if value.ndim else 0 for name, value in vectors.items()}
        sides = {side for matrix in matrices.values() for side in matrix.shape} | set(sizes.values())
        n = max(sides, default=0)
        if not n or min(sides) == 0:
            raise ShapeError(f"{self.name}: systems of size 0")
        if n > 2**BITS:
            raise ShapeError(f"n is {n:,}; addresses of {BITS} bits reach {2**BITS:,} rows")
        if len(sides) > 1 and not self._traced.graph.rectangular:
            shapes = {name: value.shape for name, value in {**matrices, **vectors}.items()}
            raise ShapeError(
                f"{self.name}: the sizes differ, {shapes}. A program that says rectangular = True takes rectangular "
                "matrices, padded with zeros"
            )
        return n

    def _scaled(self, given: Given) -> Given:
        """A divided by one power of two for all systems, b by one for each, the rest by what follows."""
        facts = self._traced.facts
        units = facts.units
        step = math.lcm(*(f.denominator for pair in units.values() for f in pair))

        def up(e: Any) -> Any:
            return -(np.floor_divide(-np.asarray(e), step)) * step

        e_A, e_b = 0, np.zeros(given.systems, np.int64)
        if "A" in facts.scaled and given.matrices["A"].nnz:
            e_A = int(up(int(np.frexp(np.abs(given.matrices["A"].data).max())[1])))
        # One matrix serves all systems, which are scaled each by its own power.
        if "b" in facts.scaled and not any(name in units and units[name][1] for name in given.matrices):
            sizes = size(torch.tensor(given.vectors["b"]), 1)
            if "x0" in given.vectors and units["x0"][1] == 1:
                there = size(torch.tensor(given.vectors["x0"]), 1) * 2.0 ** -float(units["x0"][0] * e_A)
                sizes = torch.maximum(sizes, there)
            e_b = np.asarray(up(exponent(sizes).numpy()))
        powers = {}
        for name, (of_A, of_b) in units.items():
            powers[name] = np.floor_divide(e_A * of_A.numerator, of_A.denominator) + np.floor_divide(
                e_b * of_b.numerator, of_b.denominator
            )
        matrices = {}
        for name, matrix in given.matrices.items():
            data = np.ldexp(matrix.data, -int(np.max(powers.get(name, 0))))
            matrices[name] = sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
            gain, largest = self.gains[name], np.abs(matrices[name].data).max(initial=0.0)
            if largest >= gain and {name, f"{name}.T"} & set(self.lowered.matrices):
                raise DomainError(
                    f"{self.name}: {name} has the entry {largest:.6g}; weights for every n take less than {gain:.0f} "
                    f"of a matrix that is not scaled. Divide {name} by a number, and the program's constants with it"
                )
        scaled = {
            name: scaled_by(value, -powers.get(name, np.zeros(1, np.int64))) for name, value in given.vectors.items()
        }
        return Given(given.n, given.batch, given.library, matrices, given.vectors, scaled, powers, given.matrices)


def scaled_by(value: np.ndarray, e: Any) -> np.ndarray:
    """Values of each system times 2^e."""
    e = torch.as_tensor(np.asarray(e)).expand(len(value)).reshape(-1, *[1] * (value.ndim - 1))
    return scale(torch.tensor(value), e).numpy()


def gains(lowered: Lowering) -> dict[str, float]:
    """What bounds the entries of each matrix."""
    names = [name for name, node in lowered.program.core.inputs.items() if node.ndim == 2]
    return {name: _SCALED if name in lowered.program.facts.scaled else _UNSCALED for name in names}


@full_precision()
def compile_for_any(program: Program, slots: int | None = None, dtype: Any = torch.float64) -> AnySizeAlgorithm:
    """The weights of a looped transformer that runs a program on systems of any size."""
    slots = SLOTS if slots is None else whole("slots", slots, 1)
    if dtype not in (torch.float64, "float64", np.float64):
        raise OptionError(
            f"dtype is {dtype}; weights for every n are in float64: in float32 an address has no digits left"
        )
    traced = traced_for_any(program)
    lowered = lower(traced)
    made = weights_of(lowered, slots, gains(lowered))
    graphs = [graph.data() for graph in traced.graphs]
    config = AnySizeConfig(traced.graph.name, list(traced.graph.inputs), slots, made.attends, graphs)
    return AnySizeAlgorithm(config, made.model, traced, program)


def from_config(config: dict[str, Any], model: NLAFormer) -> AnySizeAlgorithm:
    """The algorithm that ``save`` wrote."""
    known = AnySizeConfig(**config)
    return AnySizeAlgorithm(known, model, any_size([ProgramGraph.read(data) for data in known.graphs]))
