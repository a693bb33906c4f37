"""CPU time of nf.cg and nf.gmres beside SciPy's and beside an older commit of this repository, in turns.

    python -m benchmarks.solve_time --json benchmarks/results/solve_time.json     # half an hour on one core

Each case is solved by three workers in turn: this code, SciPy, and the code of the older commit, which is taken from
the history into a folder of its own. A worker is a process with one thread that has loaded everything and made the
system; it tells the CPU seconds of a number of calls. What is reported is the median of five rounds, and ratios of
medians. Reading A, choosing, and the certificate are part of our time; SciPy has no certificate. The residual that
SciPy ends with meets the same tolerance by its own recursion.

``import`` is a fresh process that loads the package, or SciPy, and solves one system of 20 unknowns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

OLDER = "f54e04b"
ROUNDS = 5
_HERE = Path(__file__).resolve()
# The calls of a round.
CASES = {
    "dense 20": 200,
    "dense 300": 5,
    "Poisson 200^2": 2,
    "Poisson 1000^2": 1,
    "GMRES 300, shift 4": 10,
    "GMRES 300, shift 2": 4,
    "GMRES 300, shift 1.2": 2,
    "batch 256 x 20, NumPy": 5,
    "batch 256 x 20, torch": 5,
    "import": 1,
}
RESTART = 256


def system(case: str) -> tuple[Any, np.ndarray, float]:
    """The matrix, or matrices, the right-hand sides and rtol of a case."""
    rng = np.random.default_rng(20261119)

    def positive(n: int, condition: float) -> np.ndarray:
        q, _ = np.linalg.qr(rng.standard_normal((n, n)))
        A = (q * np.geomspace(1, condition, n)) @ q.T
        return (A + A.T) / 2

    if case.startswith("Poisson"):
        from scipy import sparse

        m = int(case.split()[1].partition("^")[0])
        T = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(m, m))
        A = (sparse.kron(T, sparse.eye_array(m)) + sparse.kron(sparse.eye_array(m), T)).tocsr()
        return A, rng.standard_normal(m * m), 1e-8 if m == 200 else 1e-5
    if case.startswith("GMRES"):
        A = rng.standard_normal((300, 300)) / np.sqrt(300) + float(case.split()[-1]) * np.eye(300)
        return A, rng.standard_normal(300), 1e-8
    if case.startswith("batch"):
        return np.stack([positive(20, 20.0) for _ in range(256)]), rng.standard_normal((256, 20)), 1e-8
    n = 300 if case == "dense 300" else 20
    return positive(n, 1e4 if n == 300 else 20.0), rng.standard_normal(n), 1e-8


def call(case: str, solver: str) -> Callable[[], Any]:
    """A solve of a case; its answer is checked once."""
    A, b, rtol = system(case)
    given: Any = (A, b)
    if solver == "scipy":
        from scipy.sparse import linalg

        if case.startswith("batch"):
            return lambda: [linalg.cg(one, right, rtol=rtol) for one, right in zip(A, b, strict=True)]
        if case.startswith("GMRES"):
            return lambda: linalg.gmres(A, b, rtol=rtol, restart=RESTART)
        return lambda: linalg.cg(A, b, rtol=rtol)
    import nlaformer as nf

    if case.endswith("torch"):
        import torch

        torch.set_num_threads(1)
        given = torch.from_numpy(A), torch.from_numpy(b)
    method = "gmres" if case.startswith("GMRES") else "cg"
    return lambda: nf.solve(*given, rtol=rtol, method=method)


def work() -> None:
    """Answer, line by line: a case and a solver, and how often to call it; the CPU seconds of a call."""
    known: dict[tuple[str, str], Callable[[], Any]] = {}
    for line in sys.stdin:
        case, solver, count = json.loads(line)
        if (case, solver) not in known:
            known[case, solver] = call(case, solver)
            result = known[case, solver]()
            assert solver == "scipy" or result.converged, case
        solve = known[case, solver]
        begun = time.process_time()
        for _ in range(count):
            solve()
        print((time.process_time() - begun) / count, flush=True)


class Worker:
    """A process that solves with the package of a folder."""

    def __init__(self, folder: Path) -> None:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.environment = {**os.environ, **one, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-P", str(_HERE), "--worker"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment
        )

    def seconds(self, case: str, solver: str, count: int) -> float:
        """The CPU seconds of a call."""
        if case == "import":
            return self._imported(solver)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([case, solver, count]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def _imported(self, solver: str) -> float:
        module, load = (
            ("linalg", "from scipy.sparse import linalg") if solver == "scipy" else ("nf", "import nlaformer as nf")
        )
        code = f"import numpy as np; {load}; {module}.cg(np.diag(np.arange(1.0, 21.0)), np.ones(20), rtol=1e-8)"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-P", "-c", code], check=True, env=self.environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(cases: list[str], older: str, rounds: int) -> dict[str, dict[str, float]]:
    """The median CPU seconds of every case: ours, SciPy's and those of the older commit."""
    root = _HERE.parents[1]
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", older, "nlaformer"], cwd=root, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        ours, theirs = Worker(root), Worker(Path(folder))
        found: dict[str, dict[str, float]] = {}
        for case in cases:
            who = {"nlaformer": (ours, "nlaformer"), "scipy": (ours, "scipy"), "older": (theirs, "nlaformer")}
            times: dict[str, list[float]] = {name: [] for name in who}
            if case != "import":
                for worker, solver in who.values():  # loads, and solves for the first time
                    worker.seconds(case, solver, 1)
            for _ in range(rounds):
                for name, (worker, solver) in who.items():
                    times[name].append(worker.seconds(case, solver, CASES[case]))
            found[case] = {name: statistics.median(values) for name, values in times.items()}
            print(row(case, found[case]), flush=True)
        ours.close()
        theirs.close()
    return found


def row(case: str, seconds: dict[str, float]) -> str:
    """A line of the table."""
    own = seconds["nlaformer"]
    unit = f"{own * 1e3:,.3g} ms"
    return f"| {case} | {unit} | {own / seconds['scipy']:.2f} | {own / seconds['older']:.2f} |"


HEAD = ["| case | CPU time | over SciPy's | over that of the older commit |", "|---|---:|---:|---:|"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--older", default=OLDER)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.worker:
        work()
        return
    print("\n".join(HEAD))
    found = measure(arguments.cases, arguments.older, arguments.rounds)
    if arguments.json:
        from benchmarks.command import write
        from nlaformer.provenance import provenance

        write(arguments.json, {"older": arguments.older, "seconds": found, "provenance": provenance()})


if __name__ == "__main__":
    main()
