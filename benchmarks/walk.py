"""What a reader meets who follows a call: the files and functions of the package that it enters, and the hops between.

    python -m benchmarks.walk                            # half a minute
    python -m benchmarks.walk --out benchmarks/results   # and keep the numbers, with the files in order of first use

A call is made twice; the second is watched by ``sys.setprofile``, so imports and caches do not count. Functions count
once. A hop is a function that is entered first right after one of another file was: who reads the functions in the
order in which they are needed changes the file so often. Lines are those of all files that are entered.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import nlaformer as nf
from benchmarks import command
from nlaformer.console import Sheet

PACKAGE = Path(nf.__file__).parent
N = 20


class HeavyBall(nf.Program):
    """The user's own program of the README."""

    step_size, momentum = 0.02, 0.8

    def start(self, A: Any, b: Any, x0: Any) -> dict[str, Any]:
        return dict(x=x0, previous=x0)

    def step(self, A: Any, b: Any, x: Any, previous: Any) -> dict[str, Any]:
        return dict(x=x + self.step_size * (b - A @ x) + self.momentum * (x - previous), previous=x)


def calls() -> dict[str, Callable[[], Any]]:
    """The calls that are followed."""
    systems = nf.problems.SPD(n=N, sigma=(1.2,)).sample(1, seed=0)
    S, c = systems.A[0], systems.b[0]
    heavy_ball = nf.compile(HeavyBall(), n=N)
    X, Y = np.random.default_rng(0).standard_normal((2, N, N))
    config = nf.recipe("quickstart").replace(steps=6, warmup=2)

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            nf.train(config, out=Path(folder) / "run", device="cpu", progress=False)

    return {
        "nf.compile(HeavyBall(), n=20)": lambda: nf.compile(HeavyBall(), n=N),
        "compiled.run(A, b, iterations=50)": lambda: heavy_ball.run(S, c, iterations=50),
        'nf.solve(A, b, model="cg-accelerated")': lambda: nf.solve(S, c, model="cg-accelerated"),
        'nf.train(nf.recipe("quickstart"))': train,
        'nf.operation("matmul", n=20)(A, B)': lambda: nf.operation("matmul", n=N)(X, Y),
    }


def walked(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """File and name of each function of the package that a warm call enters, in the order in which it first does."""
    entered: dict[tuple[str, str, int], None] = {}

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            code = frame.f_code
            entered.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno))

    call()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [(Path(file).relative_to(PACKAGE).as_posix(), name) for file, name, _ in entered]


def summary(functions: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What is kept of a walk.

    >>> summary([("io.py", "read"), ("errors.py", "shown"), ("io.py", "write")])["hops"]
    2
    """
    files = [file for file, _ in functions]
    return {
        "files": len(set(files)),
        "functions": len(functions),
        "hops": sum(one != other for one, other in pairwise(files)),
        "lines": sum(len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) for file in set(files)),
        "entered": dict(Counter(files)),
    }


def measure(quick: bool) -> command.Measured:
    """Follow every call; ``quick`` leaves the training out."""
    found = {name: summary(walked(call)) for name, call in calls().items() if not (quick and "train" in name)}
    columns = ("files", "functions", "hops", "lines")
    lines = tuple((f"`{name}`", *(f"{walk[column]:,}" for column in columns)) for name, walk in found.items())
    return {"walks": found}, [Sheet("What a call enters", ("call", *columns), lines)]


def main(given: Sequence[str] | None = None) -> dict[str, Any]:
    return command.run("walk", (__doc__ or "").partition("\n")[0], "without the training", measure, given)


if __name__ == "__main__":
    main()
