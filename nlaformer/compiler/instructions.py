"""Registers and instructions: what the compiler's target machine can do, and when.

The instructions, all of them heads and hidden units of ``express.heads``:

=========  ======================================================  ==========================================
scale      t_j = v_j e^{F_j}                                       1 head
matvec     t = e^F (C v) for an input matrix C, kept as logarithms 2 heads
dot        t = sum_i u_i v_i, the softmax linearized               2 heads for each order
product    t_j = u_j v_j                                           2 heads for each order
row dots   t_j = sum_k X_jk Y_jk                                   2 heads for each order
matmul     T = X Y or X^T Y, outer T = u v^T                       6 heads
encode     log |C| and the masks of its signs, in four layers      2 x FFN, 2 x n heads and FFN
log        l = log s, interpolated                                 FFN
refine     g = s e^-l at the first token; l = l + log g            1 or 2 heads, FFN
trip       grows where a dot falls into its noise (see below)      FFN
coarse     l = log |v| within a few hundredths                     FFN
peak       the largest l over the tokens                           1 head
beneath    min(log s + 16, 0) of a sum of absolute values          FFN
ratio      s e^-l and l of the first token                         2 heads
sum        over tokens; pick: the first token's value, exact       1 head
move       entries, rows and columns to other places, exact        1 head, n heads between tokens and rows
row sums   t_j = sum_k X_jk; absolute: sum_k |X_jk|, exact         FFN
relu       max(s, 0); below, flip: signs by masks, exact           FFN
diag       diagonal, triangle, constant: masks, exact              FFN
transpose  n shifts between masks (skew first), exact              FFN; n heads, FFN
squares    row sums of C * C                                       2 heads
read in    and tell, network, hear: a trained network (``filled``)
=========  ======================================================  ==========================================

Three rules come from rounding. A scalar is read from the first token by all tokens (``refine``): a dot amplifies
rounding by 1/c, and copies that differ in the last digits would break r = b - A x. A step length whose sign is not
known, alpha = (r . d) / (d . q), is therefore e^F - e^H with the logarithms of alpha and of -alpha, and no product: it
would cost x the digits below 1e-13. A logarithm is refined, because interpolation alone leaves h^2/8. And where a dot
falls into its own noise or turns negative, a *trip* row grows without bound and takes the floating states to zero that
vanish with it (``vanishing``), and the dot with them: x then stays as it is (sudden convergence, b = 0, an indefinite
A), and so does what the program sums up beside it.

Each instruction is placed in the first layer that its operands allow: attention reads what earlier layers wrote, the
FFN also what the attention of its own layer wrote, and there is no limit to the heads of a layer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from nlaformer.compiler.places import Place
from nlaformer.compiler.terms import Combination, Operator, Terms, combine, registers_of
from nlaformer.express.linearize import Linearization, design, exponent_rounding

if TYPE_CHECKING:
    from nlaformer.compiler.filled import Network

Block = Literal["input", "pre", "loop", "post"]
ONE, EYE = 0, 1  # the first registers of every selection: 1 in every token, and row j of the identity in token j
ATTENTION, FFN = 0, 1
ENTRY = (-1, FFN)  # written before the block began
HEADROOM = 4.0  # how far a mantissa may grow within one step before products lose accuracy
MATRIX_NORM = 2.0**0.5  # the largest Frobenius norm of A in the prompt
# The logarithm of 0 is -FARTHEST. FARTHEST > 1455 = log(largest / smallest double): e^-FARTHEST times any number is 0.
# Of entries of A and of a dot that has a trip it is -ZERO, with ZERO < 708: e^-ZERO is a normal double, and so is its
# root, the scale of the states that the trip clears. They are divided by e^TRIP too: TRIP > 745, and so they are 0.
ZERO, FARTHEST, TRIP = 200.0, 2000.0, 1000.0
# What a run takes for 0 and for its root: a step may have made e^10 times as much of e^-ZERO and of e^(-ZERO/2).
STANDS_FOR_ZERO, STANDS_FOR_ROOT = math.exp(10.0 - ZERO), math.exp(10.0 - ZERO / 2)
# The instructions of the FFN, and those of attention and the FFN of the same layer. All others are attention's.
BY_FFN = {"log", "coarse", "beneath", "trip", "encode", "relu", "absolute", "below", "flip", "constant"}
BY_FFN |= {"diag", "diagonal", "triangle", "skew", "row sums", "write"}
BY_BOTH = {"refine", "transpose", "network", "hear"}


def first_half(ready: int, half: int) -> int:
    """The first half layer from ``ready`` on that is attention's (2 layer) or the FFN's (2 layer + 1)."""
    return ready + (ready + half) % 2


@dataclass
class Register:
    """Rows of P: ``time`` is the layer and the half of it that writes them, in their block."""

    name: str
    height: int
    block: Block
    time: tuple[int, int]
    scalar: bool = False
    bound: float = 1.0
    size: float = 1.0  # what is expected; the bound leaves room above it
    tame: bool = True  # whether the bound is near the truth, so that rows may stand in a score


@dataclass(frozen=True)
class Instruction:
    """What is done in one layer; ``sources`` and ``exponent`` are combinations of registers."""

    op: str
    layer: int
    target: int
    sources: tuple[Combination, ...] = ()
    exponent: Combination = ()
    parameters: tuple[Any, ...] = ()
    extra: tuple[int, ...] = ()  # further registers it writes
    reads: frozenset[int] = frozenset()
    place: Place | None = None  # the line of the program that it was first needed for


@dataclass(frozen=True)
class Target:
    """What the weights are made for: the size of the systems, the precision, the order of inner products, the bound."""

    n: int
    dtype: torch.dtype
    order: int
    bound: float

    @property
    def is_double(self) -> bool:
        return self.dtype == torch.float64

    @property
    def log_units(self) -> int:
        """Hidden units of an interpolated logarithm."""
        return 1024 if self.is_double else 256

    @property
    def refine_units(self) -> int:
        """Hidden units of the refinement of a logarithm."""
        return 512 if self.is_double else 48


@dataclass
class Selection:
    """Everything later stages need: registers, instructions by block, what each block writes back."""

    target: Target
    registers: list[Register] = field(default_factory=list)
    instructions: dict[Block, list[Instruction]] = field(default_factory=lambda: {"pre": [], "loop": [], "post": []})
    writes: dict[Block, dict[int, Combination]] = field(default_factory=lambda: {"pre": {}, "loop": {}, "post": {}})
    state: dict[str, StateRows] = field(default_factory=dict)
    answer: StateRows | None = None
    linearizations: dict[int, Linearization] = field(default_factory=dict)
    matrices: dict[int, MatrixRows] = field(default_factory=dict)  # by the register of the input
    # Of inputs that the run does not scale: the rows of size 1 and of the logarithm of their scale.
    scales: dict[str, tuple[int, int]] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    # Of learned parts that are filled in: the network, and the registers in which the layers of a block work.
    networks: dict[str, Network] = field(default_factory=dict)
    hidden: dict[str, dict[Block, int]] = field(default_factory=dict)

    def first_layer(self, block: Block, reads: Iterable[int], half: int) -> int:
        """The first layer of a block in which attention, or the FFN, may read these registers."""
        known = (self.registers[register] for register in reads)
        written = (each.time if each.block == block else ENTRY for each in known)
        return first_half(max((2 * layer + by + 1 for layer, by in written), default=0), half) // 2


@dataclass(frozen=True)
class StateRows:
    """Where a state stands: its register, and that of the logarithm of its scale, if it has one.

    ``logarithm``: the register holds the logarithm of the value, which is positive.
    """

    kind: str
    register: int
    scale: int | None = None
    logarithm: bool = False


@dataclass(frozen=True)
class MatrixRows:
    """The registers of an encoded matrix A: its positive and negative part, the masks of both, work, log |A|."""

    part: int
    signs: int
    ratio: int
    logs: int


class Builder:
    """Makes registers and instructions, puts values into rows, takes logarithms; ``select`` builds on it."""

    def __init__(self, target: Target):
        self.n, self.target = target.n, target
        self.block: Block = "pre"
        self.out = Selection(target)
        self.made: dict[tuple[Any, ...], int] = {}
        self.counts: Counter[Block] = Counter()  # registers of each block
        # Of each trip, the states that it takes to 0.
        self.trips: dict[Block, dict[int, set[str]]] = {"pre": {}, "loop": {}, "post": {}}
        self.tripped: dict[int, int] = {}  # of a refined logarithm: its trip
        self.one = self._register("one", "input", scalar=True)
        self.eye = self._register("eye", "input", height=self.n)
        assert (self.one, self.eye) == (ONE, EYE)
        self.inputs = self.out.inputs
        self.normal: dict[str, int] = {}  # of inputs: the row of size 1
        self.sizes: set[int] = set()  # the logarithms of sizes found at run time
        self.interpolated: dict[int, int] = {}  # of a refined logarithm: a rougher one that is known before it
        self.place: Place | None = None  # of the node that is being selected

    # --- registers and instructions ---

    def _register(self, name: str, block: Block, **more: Any) -> int:
        self.out.registers.append(Register(name, more.pop("height", 1), block, more.pop("time", ENTRY), **more))
        self.counts[block] += 1
        return len(self.out.registers) - 1

    def _temporary(self, **more: Any) -> int:
        return self._register(f"{self.block} t{self.counts[self.block] + 1}", self.block, **more)

    def emit(
        self,
        op: str,
        sources: Sequence[Combination],
        exponent: Combination = (),
        parameters: tuple[Any, ...] = (),
        *,
        extra: tuple[int, ...] = (),
        also: Iterable[int] = (),
        **more: Any,
    ) -> int:
        """The register that holds the result; equal instructions are one. ``also``: further registers it reads."""
        # A column as a vector and a matrix with that column alone are read alike.
        key = (self.block, op, tuple(sources), exponent, parameters, more.get("height"))
        if key in self.made:
            return self.made[key]
        reads = registers_of(*sources, exponent) | {*also}
        layer = self.out.first_layer(self.block, reads, FFN if op in BY_FFN else ATTENTION)
        written_by = FFN if op in BY_FFN | BY_BOTH else ATTENTION
        more.setdefault("tame", all(self._tame(source) for source in sources))
        more.setdefault("size", more.get("bound", HEADROOM) / HEADROOM)
        target = self._temporary(time=(layer, written_by), **more)
        for other in extra:
            self.out.registers[other].time = (layer, ATTENTION)
        self.made[key] = target
        self.out.instructions[self.block].append(
            Instruction(op, layer, target, tuple(sources), exponent, parameters, extra, frozenset(reads), self.place)
        )
        return target

    @contextmanager
    def within(self, block: Block, place: Place | None = None) -> Iterator[None]:
        previous, self.block, self.place = (self.block, self.place), block, place or self.place
        try:
            yield
        finally:
            self.block, self.place = previous

    def _bound(self, source: Combination) -> float:
        return sum(abs(c) * self.out.registers[register].bound for register, c in source)

    def _size(self, source: Combination) -> float:
        return sum(abs(c) * self.out.registers[register].size for register, c in source)

    def _like(self, source: Combination) -> dict[str, Any]:
        """What ``emit`` is told of a result that is of the height, the bound and the size of its source."""
        return {"height": self._height(source), "bound": self._bound(source), "size": self._size(source)}

    def _tame(self, source: Combination) -> bool:
        return all(self.out.registers[register].tame for register, _ in source)

    # --- values in rows ---

    def materialize(self, value: Terms, target: Combination = ()) -> Combination:
        """A combination of rows that equals value / e^target; terms with the same exponent share a head."""
        groups: dict[tuple[Operator, Combination], dict[int, float]] = {}
        for term in value:
            entries = groups.setdefault((term.operator, combine((1.0, term.exponent), (-1.0, target))), {})
            entries[term.register] = entries.get(term.register, 0.0) + term.coefficient
        plain = groups.pop(("", ()), {})  # rows that stand at this exponent already
        for (operator, difference), entries in groups.items():
            source = combine((1.0, entries.items()))
            factor = source[0][1]  # taken out, so that q and -q are one row
            source = tuple((register, c / factor) for register, c in source)
            row = self._product_row(operator, difference, source, tame=bool(target))
            plain[row] = plain.get(row, 0.0) + factor
        return combine((1.0, plain.items()))

    def _product_row(self, operator: Operator, exponent: Combination, source: Combination, tame: bool) -> int:
        """The row operator source e^exponent; ``tame``: it was brought to the scale of its kin."""
        height = self._height(source)
        tame = self._tame(source) and (tame or not self._scalar_part(exponent))
        if operator and self._height(exponent) == 1:
            encoded = self._encoded(operator)
            first = self.out.first_layer(self.block, registers_of(exponent), ATTENTION)
            if first <= self.out.first_layer(self.block, [*registers_of(source), *encoded], ATTENTION):
                # One layer either way: the exponent joins the logarithms of A in the score.
                more: dict[str, Any] = {"height": height, "bound": MATRIX_NORM * self._bound(source), "tame": tame}
                return self.emit("matvec", [source], exponent, (operator,), also=encoded, **more)
        if operator:
            source = ((self._product_row(operator, (), source, tame), 1.0),)
        scalar = all(self.out.registers[r].scalar for r, _ in (*source, *exponent))
        bound = max(self._bound(source), HEADROOM) if not scalar else 1.0
        height = max(height, self._height(exponent))
        return self.emit("scale", [source], exponent, height=height, scalar=scalar, bound=bound, tame=tame)

    def _height(self, source: Combination) -> int:
        return max((self.out.registers[register].height for register, _ in source), default=1)

    def _encoded(self, operator: Operator) -> list[int]:
        """The logarithms of an input matrix and the masks of its signs, made by four layers of the pre block."""
        name = operator.removesuffix(".T")
        if (register := self.normal[name]) not in self.out.matrices:
            part = self._register(f"parts of {name}", "pre", height=2 * self.n, time=(0, FFN))
            signs = self._register(f"signs of {name}", "pre", height=2 * self.n, time=(1, FFN))
            ratio = self._register(f"ratios of {name}", "pre", height=self.n, time=(3, ATTENTION))
            logs = self._register(f"log |{name}|", "pre", height=self.n, time=(3, FFN))
            self.out.matrices[register] = MatrixRows(part, signs, ratio, logs)
            self.out.instructions["pre"] += [
                Instruction("encode", layer, logs, parameters=(name, register), extra=(part, signs, ratio))
                for layer in range(4)
            ]
        return [self.out.matrices[register].logs, self.out.matrices[register].signs]

    def _scalar_part(self, exponent: Combination) -> Combination:
        return tuple((register, c) for register, c in exponent if self.out.registers[register].scalar)

    # --- scalars ---

    def _dot_of(self, u: Combination, v: Combination, *, spread: bool, ordered: bool = False, room: float = 1.0) -> int:
        """Their dot. ``ordered``: u stands in the score; ``spread``: no few entries make up most of its norm.

        ``room``: how far u is expected to exceed its size.
        """
        key, value = (u, v) if ordered else sorted((u, v), key=self._unruly)
        typical = 2 * self._bound(key) / HEADROOM / math.sqrt(self.n) if spread else 0.7 * self._size(key)
        lin = design(self.n, self.target.dtype, room * typical, order=self.target.order, summands=self.n)
        row = self.emit(
            "dot", [key, value], (), (lin,), bound=self._bound(u) * self._bound(v), size=self._size(u) * self._size(v)
        )
        if self._tame(value):  # else the size of the dot is not known
            self.out.linearizations[row] = lin
        return row

    def _unruly(self, source: Combination) -> tuple[int, Combination]:
        """How likely a vector is to outgrow its bound, which costs the accuracy of a key but not that of a value.

        A v is tame, since A has norm 1; d = r + beta d may be hundreds of times longer than r on hard systems.
        """
        made_by = {i.target: i.op for i in self.out.instructions[self.block]}
        ranks = {"matvec": 0, "scale": 2}
        return max(ranks.get(made_by.get(register, ""), 1) for register, _ in source), source

    def _log_of(
        self, source: Combination, policy: str, scalar: bool, clears: Set[str] | None = None
    ) -> tuple[float, Combination]:
        """(c, F) with source = c e^F: interpolated, then refined; with a trip where it ``clears`` states."""
        if not source:
            return 1.0, ((self.one, FARTHEST if policy == "den" else -FARTHEST),)
        factor = max(abs(c) for _, c in source)
        source = tuple((register, c / factor) for register, c in source)
        lowest, highest = self._range(source)
        more: dict[str, Any] = {"scalar": scalar, "height": self._height(source), "tame": False}
        trips = clears is not None
        # Where nothing trips, 0 is a power of e that underflows, whatever it is multiplied with.
        zero = ZERO if trips else FARTHEST
        first = self.emit("log", [source], (), (lowest, highest, zero if policy == "den" else -zero), **more)
        sources: list[Combination] = [source, ((first, 1.0),)]
        extra = [self._work("ratio", source, policy, trips, height=self._height(source))]
        if clears is not None:
            sources.append(((self.emit("trip", [source], (), (lowest,)), 1.0),))
            extra.append(self._work("tripped", source, policy, scalar=True))
            self.trips[self.block].setdefault(extra[-1], set()).update(clears)
        refined = self.emit("refine", sources, (), (lowest, highest, policy, scalar), extra=tuple(extra), **more)
        self.interpolated[refined] = first
        if trips:
            self.tripped[refined] = extra[-1]
        return factor, ((refined, 1.0),)

    def _work(self, *key: Any, **more: Any) -> int:
        """A register that an instruction writes beside its result."""
        key = (self.block, *key)
        if key not in self.made:
            self.made[key] = self._temporary(**more)
        return self.made[key]

    def _range(self, source: Combination) -> tuple[float, float]:
        """Where the logarithm is interpolated: from the noise of a dot to well above its bound."""
        bound = self._bound(source) if self._tame(source) else sum(abs(c) for _, c in source)
        lin = next((self.out.linearizations[r] for r, _ in source if r in self.out.linearizations), None)
        if lin is not None:
            rounding = 10 * lin.steps * exponent_rounding(lin.C, lin.dtype)  # relative to the factors of the dot
            return rounding**2 * bound, 1e3 * self.n * bound
        reach = 1e16 if self.target.is_double else 1e7
        return bound / reach, bound * reach
