"""Time and peak memory of the operations against torch's own, on the CPU, in float64.

    python -m benchmarks.operations --out benchmarks/results      # four minutes; --quick: half a minute

*Time.* Torch's operation, the forward pass alone (``op.model``) and the whole call (``op(A, B)``: checks, scaling,
prompt, forward pass, read-out) take turns in one process, so that whatever disturbs the machine disturbs all three;
ratios are of medians. *Memory.* The most that is allocated at once during a call, its result included, from the
allocation events of torch's profiler: what the process holds on to, and what another case left behind, do not count.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import command
from nlaformer.console import Sheet
from nlaformer.express import accuracy
from nlaformer.express.operation import operation, operations
from nlaformer.express.theorem import RECORDS
from nlaformer.transformer import NLAFormer

# (n, batch): batches of about the same number of entries; None is a single call without batch dimensions.
CASES = tuple(
    case for n, batch in ((20, 4096), (64, 512), (128, 64), (256, 16), (512, 4)) for case in ((n, None), (n, batch))
)
# About how many seconds the repeated runs of a case may take.
BUDGET = 1.0
QUICK_CASES = ((20, None), (20, 4096), (64, None))
QUICK_NAMES = ("matrix_transpose", "matmul", "matvec")

# Torch's own function where it is not the reference of the operation's record: that gives views where data only move.
_TORCH: dict[str, Callable[..., Any]] = {
    "column_shift": lambda a, b: (b.clone(), a.clone()),
    "row_shift": lambda a, b: (b.clone(), a.clone()),
    "vector_transpose": lambda a: a[..., None].clone(),
    "inner_product": torch.linalg.vecdot,
    "matrix_transpose": lambda A: A.mT.contiguous(),
}


@dataclass(frozen=True)
class Measurement:
    """One case: medians in seconds, peak bytes; ``batch`` is None for a single call."""

    name: str
    n: int
    batch: int | None
    torch_seconds: float
    forward_seconds: float
    call_seconds: float
    torch_bytes: int
    call_bytes: int

    @property
    def forward_ratio(self) -> float:
        return self.forward_seconds / self.torch_seconds

    @property
    def call_ratio(self) -> float:
        return self.call_seconds / self.torch_seconds


def measure(name: str, n: int, batch: int | None) -> Measurement:
    """Measure one case."""
    op = operation(name, n=n, f=RECORDS[name].f)
    operands = _operands(name, n, batch)
    P = op.prompt(*operands)
    own = own_function(name)
    with torch.no_grad():
        theirs, forward, call = interleaved(
            [lambda: own(*operands), lambda: forward_pass(op.model, P), lambda: op(*operands)], BUDGET
        )
        return Measurement(
            name,
            n,
            batch,
            torch_seconds=theirs,
            forward_seconds=forward,
            call_seconds=call,
            torch_bytes=peak_bytes(lambda: own(*operands)),
            call_bytes=peak_bytes(lambda: op(*operands)),
        )


def forward_pass(model: NLAFormer, P: Tensor) -> list[Tensor]:
    """The model on a batch of prompts, in the pieces in which an operation runs it."""
    return [model(part) for (part,) in model.pieces(*P.shape[-2:], P.reshape(-1, *P.shape[-2:]))]


def own_function(name: str) -> Callable[..., Any]:
    """The function of torch that an operation is compared with."""
    return _TORCH.get(name, RECORDS[name].reference)


def interleaved(functions: Sequence[Callable[[], Any]], budget: float) -> list[float]:
    """Median seconds of each of several functions that take turns, 5 to 100 of them."""
    rounds: list[list[float]] = []
    for function in functions:
        function()
    stop = time.perf_counter() + budget
    while len(rounds) < 5 or (len(rounds) < 100 and time.perf_counter() < stop):
        rounds.append([_seconds(function) for function in functions])
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def peak_bytes(function: Callable[[], Any]) -> int:
    """The most bytes torch's allocator has handed out at once while a function runs."""
    # The profiler reports its own start and stop on standard error unless told not to.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = function()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    del result
    return max(itertools.accumulate((change for _, change in changes), initial=0))


def as_data(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Plain dictionaries, ratios included."""
    return [
        asdict(found) | {"forward_ratio": found.forward_ratio, "call_ratio": found.call_ratio} for found in measurements
    ]


def sheet(measurements: Sequence[Measurement]) -> Sheet:
    """The measurements as a table."""
    return Sheet(
        "Operations against torch's own, CPU, float64",
        ("operation", "n", "batch", "torch", "forward\npass", "whole\ncall", "memory\ntorch", "memory\ncall"),
        tuple(
            (
                found.name,
                str(found.n),
                str(found.batch or "-"),
                _time(found.torch_seconds),
                _ratio(found.forward_ratio),
                _ratio(found.call_ratio),
                _size(found.torch_bytes),
                _size(found.call_bytes),
            )
            for found in measurements
        ),
        "Time: torch's own operation, and the forward pass and the whole call as multiples of it; medians of runs that "
        "take turns. Memory: the most allocated at once, result included (torch's profiler).",
    )


def names(quick: bool) -> Sequence[str]:
    """The operations a benchmark covers."""
    return QUICK_NAMES if quick else operations()


def _operands(name: str, n: int, batch: int | None) -> list[Tensor]:
    """Five systems of ``accuracy.draw`` over and over: time does not depend on the numbers."""
    drawn = [torch.from_numpy(operand) for operand in accuracy.draw(name, n)]
    if batch is None:
        return [operand[0] for operand in drawn]
    return [operand[torch.arange(batch) % len(operand)] for operand in drawn]


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _ratio(value: float) -> str:
    return f"{value:.1f} x" if value < 100 else f"{value:,.0f} x"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _size(count: int) -> str:
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def document(quick: bool) -> command.Measured:
    """Every case, as plain data and as a table."""
    cases = QUICK_CASES if quick else CASES
    found = [measure(name, n, batch) for name in names(quick) for n, batch in cases]
    return {"measurements": as_data(found)}, [sheet(found)]


def main(arguments: Sequence[str] | None = None) -> int:
    quick, about = "three operations, three sizes", "Time and peak memory of the operations beside torch's own."
    command.run("operations", about, quick, document, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
