"""nf.solve(A, b) with nothing chosen against every method that one might have chosen, on sixteen systems.

Systems, their seeds and the limits stand in ``matrices`` and ``rivals``, and were fixed before the first timing. Times
are CPU seconds on one thread, deciding, set-up and, in ours alone, the certificate included. No rival matters that
takes more than twice as long as ours does, so that is its limit (5 s at least, 60 s at most).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

import nlaformer as nf
from benchmarks.command import Measured, run
from benchmarks.matrices import SYSTEMS
from benchmarks.preconditioners import superlu
from benchmarks.rivals import MOST_SECONDS, RTOL, Run, one_thread, race
from nlaformer.console import Sheet
from nlaformer.solvers.precondition.named import build

WITHIN, NEVER = 1.3, 3.0
BARE = "NLAFORMER_WITHOUT_EXTRAS"  # set in the process that must not find numba and PyAMG


def ours(A: Any, b: Any) -> tuple[Any, str]:
    """The answer and the method of nf.solve."""
    result = nf.solve(A, b, rtol=RTOL, check="ignore")
    return result.x, result.method


def iterative(method: str, M: str) -> Callable[[Any, Any], Any]:
    """SciPy's method with a preconditioner of a name."""

    def solve(A: Any, b: Any) -> Any:
        import scipy.sparse.linalg as sla

        inverse = None
        if M != "none":
            inverse = sla.LinearOperator(A.shape, matvec=build(M, A, method).apply, dtype=np.float64)
        return getattr(sla, method)(A, b, rtol=RTOL, M=inverse)[0]

    return solve


def splu(A: Any, b: Any) -> Any:
    """SciPy's direct solver as it comes."""
    from scipy.sparse.linalg import spsolve

    return spsolve(A.tocsc(), b)


def cholesky(A: Any, b: Any) -> Any:
    """SciPy's Cholesky factorization."""
    from scipy.linalg import cho_factor, cho_solve

    return cho_solve(cho_factor(A), b)


def lu(A: Any, b: Any) -> Any:
    """SciPy's LU factorization."""
    from scipy.linalg import lu_factor, lu_solve

    return lu_solve(lu_factor(A), b)


def rivals(A: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """What one might choose for a matrix."""
    dense = isinstance(A, np.ndarray)
    symmetric = bool(np.array_equal(A, A.T)) if dense else (A != A.T).nnz == 0
    names = ["none", "jacobi"]
    if not dense:
        names += ["ic", "amg"] if symmetric else ["ilu", "amg"]
    methods = ["cg"] if symmetric else ["gmres", "bicgstab"]
    found: dict[str, Callable[[Any, Any], Any]] = {
        f"{method}, {M}": iterative(method, M) for method, M in product(methods, names)
    }
    if dense:
        return found | dict(Cholesky=cholesky, LU=lu)
    return found | {"SuperLU": splu} | ({"SuperLU, symmetric": superlu} if symmetric else {})


def _limit(found: dict[str, Run]) -> float:
    own = found.get("ours")
    if own is None or own.seconds is None:
        return MOST_SECONDS
    return min(MOST_SECONDS, max(5.0, 2 * own.seconds))


def measure(quick: bool) -> Measured:
    """The times of all systems, with the extras and without."""
    for make in ("square, 18^2", "dense, general, 1,000", "jumps, 300^2", "convection, 250^2"):  # import and compile
        A = SYSTEMS[make]()
        b = np.ones(A.shape[0])
        ours(A, b)
        [solve(A, b) for name, solve in rivals(A).items() if name.startswith(("Super", "LU", "cg, ic"))]
    rows: list[dict[str, Any]] = []
    for name, make_system in SYSTEMS.items():
        A = make_system()
        if quick and A.shape[0] > 2_000:
            continue
        b = np.random.default_rng(1).standard_normal(A.shape[0])
        solvers = {"ours": ours} | ({} if os.environ.get(BARE) else rivals(A))
        found = race({rival: _bound(solve, A, b) for rival, solve in solvers.items()}, A, b, _limit)
        rows.append(dict(system=name, n=A.shape[0], **{rival: vars(one) for rival, one in found.items()}))
        print(f"{name}: " + ", ".join(f"{k} {v.in_words()}" for k, v in found.items()), file=sys.stderr, flush=True)
        print(f"    {found['ours'].told}", file=sys.stderr, flush=True)
    document: dict[str, Any] = dict(rows=rows)
    if not os.environ.get(BARE):
        document["bare"] = _without_extras(quick)
        document["summary"] = summary(rows, document["bare"])
    return document, [_sheet(rows, document.get("bare", []))]


def _bound(solve: Callable[[Any, Any], Any], A: Any, b: Any) -> Callable[[], Any]:
    return lambda: solve(A, b)


def _without_extras(quick: bool) -> list[dict[str, Any]]:
    """The same of ours alone, in a process that finds neither numba nor PyAMG."""
    import json

    code = (
        "import sys; sys.modules.update(numba=None, pyamg=None); import json; from benchmarks.auto import measure;"
        f"found = measure({quick})[0]; print(json.dumps(found['rows']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {BARE: "1"}, check=True, stdout=subprocess.PIPE, text=True
    )
    rows: list[dict[str, Any]] = json.loads(found.stdout.splitlines()[-1])
    return rows


def fastest(row: dict[str, Any]) -> tuple[str, float]:
    """The fastest rival and its seconds."""
    known = {name: run["seconds"] for name, run in row.items() if isinstance(run, dict) and name != "ours"}
    known = {name: seconds for name, seconds in known.items() if seconds is not None}
    if not known:
        return "none", float("inf")
    name = min(known, key=known.__getitem__)
    return name, known[name]


def ratio(row: dict[str, Any], best: float) -> float:
    """Our time over the best."""
    own = row["ours"]["seconds"]
    return float("inf") if own is None else own / best


def summary(rows: Sequence[dict[str, Any]], bare: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is asked of the choice; without the extras, the best is the best of the rivals that need none."""
    plain = [{k: v for k, v in row.items() if not k.endswith((", ic", ", amg"))} for row in rows]
    ratios = [ratio(row, fastest(row)[1]) for row in rows]
    without = [ratio(own, fastest(row)[1]) for own, row in zip(bare, plain, strict=True)]
    return {
        name: dict(of=len(found), within=sum(r <= WITHIN for r in found), beyond=sum(r > NEVER for r in found),
                   worst=max(found))
        for name, found in (("with extras", ratios), ("without", without))
    }  # fmt: skip


def _sheet(rows: Sequence[dict[str, Any]], bare: Sequence[dict[str, Any]]) -> Sheet:
    head = ("system", "nf.solve", "fastest of the others", "its time", "ratio", "without extras", "ratio", "method")
    lines = []
    for row, own in zip(rows, bare or rows, strict=True):
        name, seconds = fastest(row)
        plain = fastest({k: v for k, v in row.items() if not k.endswith((", ic", ", amg"))})[1]
        lines.append((
            row["system"], Run(**row["ours"]).in_words(), name, f"{seconds:.3g}", f"{ratio(row, seconds):.2f}",
            Run(**own["ours"]).in_words(), f"{ratio(own, plain):.2f}", row["ours"]["told"],
        ))  # fmt: skip
    note = "CPU seconds to a relative residual of 1e-8. Without extras, the ratio is to rivals that need none."
    return Sheet("nf.solve(A, b) with nothing chosen", head, tuple(lines), note)


if __name__ == "__main__":
    one_thread()
    run("auto", "Time nf.solve with nothing chosen against others.", "n up to 2,000: a trial", measure)
