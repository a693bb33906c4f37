"""The rows of P that weights work on, what is known of each, and in which layer it is written.

An instruction gets its layer when it is made, the first that its operands allow. A layer has two halves, attention and
the FFN; half ``2 layer + by`` counts them through, and a row is ``ready`` in the first half that may read it: attention
reads what earlier layers wrote, the FFN also what the attention of its own layer wrote. There is no limit to the heads
of a layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from nlaformer.compiler.terms import Combination

if TYPE_CHECKING:
    from nlaformer.compiler.machine.instructions import Instruction

Block = Literal["input", "pre", "loop", "post"]
BLOCKS: tuple[Block, ...] = ("pre", "loop", "post")
ATTENTION, FFN = 0, 1
ONE, EYE = 0, 1  # the first rows of every machine: 1 in every token, and row j of the identity in token j
HEADROOM = 4.0  # how far a mantissa may grow within one step before products lose accuracy
MATRIX_NORM = 2.0**0.5  # the largest Frobenius norm of A in the prompt
# The logarithm of 0 is -FARTHEST. FARTHEST > 1455 = log(largest / smallest double): e^-FARTHEST times any number is 0.
# Of entries of A and of a dot that has a stop it is -ZERO, with ZERO < 708: e^-ZERO is a normal double, and so is its
# root, the scale of the states that the stop clears. They are divided by e^STOP too: STOP > 745, and so they are 0.
ZERO, FARTHEST, STOP = 200.0, 2000.0, 1000.0


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


@dataclass(frozen=True)
class Range:
    """What is known of a row's content when the weights are made.

    Attributes
    ----------
    bound, typical : the largest norm it may have, and the one that is expected
    calibrated : whether the bound is near the truth, so that the row may stand in a score
    scalar : whether it is the same in every token
    noise : of a product across tokens, what its rounding is relative to the bound; 0 where that is not known
    rough : of a logarithm, a rougher one that is ready before it
    stop : of a logarithm, the row that grows where its value falls into noise
    of_size : whether it is the logarithm of a size that was found at run time
    of_either_sign : whether it is the logarithm of a value, or of its opposite, whose sign is not known
    """

    bound: float = 1.0
    typical: float = 1.0
    calibrated: bool = True
    scalar: bool = False
    noise: float = 0.0
    rough: int | None = None
    stop: int | None = None
    of_size: bool = False
    of_either_sign: bool = False


UNKNOWN = Range(calibrated=False)
UNKNOWN_SCALAR = Range(calibrated=False, scalar=True)


@dataclass
class Row:
    """A row of P, or ``height`` of them: a matrix has one for each column.

    ``view``: not rows of its own but those of others, (number, which of its rows) each, or None for zeros.
    """

    name: str
    height: int
    block: Block
    ready: int
    range: Range
    view: tuple[tuple[int, int] | None, ...] = ()


@dataclass(frozen=True)
class Placed:
    """An instruction in its layer, the row that it makes, those that it writes beside, and the line it was made for."""

    instruction: Instruction
    layer: int
    target: int
    beside: tuple[int, ...]
    reads: frozenset[int]
    line: Any = None

    @property
    def written(self) -> tuple[int, ...]:
        return (self.target, *self.beside)


@dataclass(frozen=True)
class Stored:
    """Where a state or the answer stands: its row and that of the logarithm of its scale, if it has one.

    ``logarithm``: the row holds the logarithm of the value, which is positive.
    """

    kind: str
    row: int
    scale: int | None = None
    logarithm: bool = False


class EncodedMatrix(NamedTuple):
    """The rows of an encoded matrix: itself, its positive and negative part, the masks of both, work, log |A|."""

    matrix: int = 0
    part: int = 0
    signs: int = 0
    ratio: int = 0
    logs: int = 0


class Machine:
    """Rows and placed instructions of the three blocks, and what each block writes back."""

    def __init__(self, target: Target):
        self.n, self.target = target.n, target
        self.block: Block = "pre"
        self.line: Any = None  # of the node that is being lowered
        self.rows: list[Row] = []
        self.placed: dict[Block, list[Placed]] = {"pre": [], "loop": [], "post": []}
        self.writes: dict[Block, dict[int, Combination]] = {"pre": {}, "loop": {}, "post": {}}
        self._made: dict[tuple[Block, Instruction, int], Placed] = {}
        self._counts: Counter[Block] = Counter()
        self.one = self.row("one", "input", range=Range(scalar=True))
        self.eye = self.row("eye", "input", self.n, Range())

    # --- rows ---

    def row(self, name: str, block: Block, height: int = 1, range: Range = UNKNOWN, ready: int = 0) -> int:
        """The number of a new row."""
        self.rows.append(Row(name, height, block, ready, range))
        self._counts[block] += 1
        return len(self.rows) - 1

    def temporary(self, height: int, range: Range, ready: int = 0) -> int:
        return self.row(f"{self.block} t{self._counts[self.block] + 1}", self.block, height, range, ready)

    def view(self, parts: Sequence[tuple[int, int] | None], range: Range) -> int:
        """Rows of other rows, in another order; no instruction, no layer."""
        roots = tuple(part and self._root(*part) for part in parts)
        known = [number for number, row in enumerate(self.rows) if row.view == roots and row.range == range]
        if known:
            return known[0]
        self.rows.append(Row("", len(parts), "input", 0, range, roots))
        return len(self.rows) - 1

    def _root(self, number: int, which: int) -> tuple[int, int] | None:
        view = self.rows[number].view
        return view[which] if view else (number, which)

    def roots(self, *sources: Iterable[tuple[int, float]]) -> set[int]:
        """The rows that combinations read, views resolved."""
        found: set[int] = set()
        for source in sources:
            for number, _ in source:
                view = self.rows[number].view
                found |= {part[0] for part in view if part} if view else {number}
        return found

    def learn(self, number: int, **more: Any) -> None:
        """Note more of what is known of a row."""
        self.rows[number].range = replace(self.rows[number].range, **more)

    # --- what is known of combinations ---

    def bound(self, source: Combination) -> float:
        return sum(abs(c) * self.rows[row].range.bound for row, c in source)

    def typical(self, source: Combination) -> float:
        return sum(abs(c) * self.rows[row].range.typical for row, c in source)

    def calibrated(self, source: Combination) -> bool:
        return all(self.rows[row].range.calibrated for row, _ in source)

    def is_scalar(self, source: Combination) -> bool:
        return all(self.rows[row].range.scalar for row, _ in source)

    def height(self, source: Combination) -> int:
        return max((self.rows[row].height for row, _ in source), default=1)

    def like(self, source: Combination, **more: Any) -> Range:
        """The range of something of the bound, the size and the calibration of a combination."""
        known: dict[str, Any] = {"bound": self.bound(source), "typical": self.typical(source)}
        return Range(**({"calibrated": self.calibrated(source)} | known | more))

    # --- instructions ---

    def ready(self, reads: Iterable[int]) -> int:
        """The first half of a layer of this block that may read all of these rows."""
        return max((row.ready for row in map(self.rows.__getitem__, reads) if row.block == self.block), default=0)

    def first_layer(self, reads: Iterable[int], half: int) -> int:
        """The first layer of this block in which attention, or the FFN, may read these rows."""
        ready = self.ready(reads)
        return (ready + (ready + half) % 2) // 2

    def add(
        self,
        instruction: Instruction,
        height: int = 1,
        range: Range = UNKNOWN,
        beside: Sequence[tuple[int, Range] | int] = (),
    ) -> int:
        """The row that holds what an instruction makes; equal instructions are one.

        ``beside``: rows that it writes in attention besides, as height and range; or rows that are there already.
        """
        # A column as a vector and a matrix with that column alone are read alike.
        key = (self.block, instruction, height)
        if key not in self._made:
            reads = self.roots(*instruction.sources)
            layer = self.first_layer(reads, FFN if instruction.half == "ffn" else ATTENTION)
            own = [each if isinstance(each, int) else self.temporary(*each) for each in beside]
            for each in own:
                self.rows[each].ready = 2 * layer + ATTENTION + 1
            written_by = ATTENTION if instruction.half == "attention" else FFN
            target = self.temporary(height, range, 2 * layer + written_by + 1)
            self.place(Placed(instruction, layer, target, tuple(own), frozenset(reads), self.line))
            self._made[key] = self.placed[self.block][-1]
        return self._made[key].target

    def place(self, placed: Placed) -> None:
        """Put an instruction into a layer that is known."""
        self.placed[self.block].append(placed)

    def maker(self, number: int) -> type[Instruction] | None:
        """The instruction of this block that makes a row."""
        return next((type(each.instruction) for each in self.placed[self.block] if each.target == number), None)

    def beside(self, instruction: Instruction, height: int = 1) -> tuple[int, ...]:
        """The rows that an instruction, which was added, writes beside its result."""
        return self._made[(self.block, instruction, height)].beside

    @contextmanager
    def within(self, block: Block, line: Any = None) -> Iterator[None]:
        """Instructions of another block, for a line of the program."""
        previous, self.block, self.line = (self.block, self.line), block, line or self.line
        try:
            yield
        finally:
            self.block, self.line = previous


@dataclass
class Plan:
    """A lowered program: the machine with its instructions, and where inputs, states and the answer stand.

    Attributes
    ----------
    inputs : the row of each input
    scales : of inputs that the run does not scale, the rows of size 1 and of the logarithm of their scale
    networks : of learned parts that are filled in
    hidden : of these, the rows in which the layers of a block work
    """

    machine: Machine
    inputs: dict[str, int] = field(default_factory=dict)
    scales: dict[str, tuple[int, int]] = field(default_factory=dict)
    state: dict[str, Stored] = field(default_factory=dict)
    answer: Stored | None = None
    networks: dict[str, Any] = field(default_factory=dict)
    hidden: dict[str, dict[Block, int]] = field(default_factory=dict)
