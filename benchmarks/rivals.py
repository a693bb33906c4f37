"""Solvers side by side: each run in a process of its own, with limits of CPU time and memory, in turns.

A process is forked where everything is imported and compiled, so that it measures the solve alone. What is reported is
the median CPU time, deciding and set-up included; of short runs that of a repetition.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

RTOL = 1e-8
MOST_SECONDS, MOST_BYTES = 60.0, 5 * 2**30
ROUNDS = 5
LONG = 5.0  # seconds after which a run is not repeated
SHORT, TOGETHER = 0.05, 0.25  # a run as short is repeated for so long: the clock of a process may tick in milliseconds
_DRIFT = 2.0  # times the tolerance, that the residual of a rival without a certificate may be

Solver = Callable[[], Any]  # gives x, or x and what is to be kept of it


@dataclass(frozen=True)
class Run:
    """What became of a solver: median CPU seconds of so many runs, or why there is none."""

    seconds: float | None
    runs: int
    residual: float | None
    failure: str = ""
    told: str = ""

    def in_words(self) -> str:
        """The seconds, or the failure."""
        return self.failure if self.seconds is None else f"{self.seconds:.3g}"


def race(
    solvers: Mapping[str, Solver], A: Any, b: Any, limit: Callable[[dict[str, Run]], float] = lambda found: MOST_SECONDS
) -> dict[str, Run]:
    """Each solver's median over the rounds; ``limit`` gives the seconds from the first runs of those before it."""
    first: dict[str, Run] = {}
    for name, solver in solvers.items():
        first[name] = _in_a_process(solver, A, b, limit(first))
    times = {name: [run.seconds] for name, run in first.items() if run.seconds is not None}
    for _ in range(ROUNDS - 1):
        for name, known in times.items():
            if known[0] <= LONG:
                again = _in_a_process(solvers[name], A, b, MOST_SECONDS).seconds
                known.extend([] if again is None else [again])
    medians = {name: statistics.median(known) for name, known in times.items()}
    return {
        name: Run(medians.get(name), len(times.get(name, ())), run.residual, run.failure, run.told)
        for name, run in first.items()
    }


def _in_a_process(solver: Solver, A: Any, b: Any, seconds: float) -> Run:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            spent = int(time.process_time() + seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (spent, spent))
            _answer(write, asdict(_run(solver, A, b, seconds)))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = pipe.read()
    _, status = os.waitpid(child, 0)
    if not found:
        return Run(None, 1, None, f"> {seconds:.3g} s" if os.WIFSIGNALED(status) else "stopped")
    return Run(**json.loads(found))


def _answer(write: int, run: dict[str, Any]) -> None:
    with os.fdopen(write, "w") as pipe:
        pipe.write(json.dumps(run))


def _run(solver: Solver, A: Any, b: Any, seconds: float) -> Run:
    begun = time.process_time()
    try:
        found = solver()
    except MemoryError:
        return Run(None, 1, None, "memory")
    except Exception as error:
        return Run(None, 1, None, f"{type(error).__name__}: {error}"[:60])
    taken = time.process_time() - begun
    if taken < SHORT:
        count, begun = 0, time.process_time()
        while time.process_time() - begun < TOGETHER:
            solver()
            count += 1
        taken = (time.process_time() - begun) / count
    x, told = found if isinstance(found, tuple) else (found, "")
    residual = float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))
    if not residual <= _DRIFT * RTOL:
        return Run(None, 1, residual, "not converged", str(told))
    if taken > seconds:
        return Run(None, 1, residual, f"> {seconds:.3g} s", str(told))
    return Run(taken, 1, residual, "", str(told))


def one_thread() -> None:
    """Start again with one thread in every library, since that is read where they are loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    if any(os.environ.get(name) != "1" for name in names):
        os.environ.update(dict.fromkeys(names, "1"))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
