"""nf.cg with M="ic" against SciPy's cg with Jacobi and AMG, and SuperLU, on twelve families of matrices.

Matrices, their seeds and the limits stand in ``matrices`` and ``rivals``, and were fixed before the first timing.
Times are CPU seconds on one thread, with set-up and the choice of the order; the certificate is in ours alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import nlaformer as nf
from benchmarks.command import Measured, run
from benchmarks.matrices import FAMILIES, THREE_DIMENSIONAL
from benchmarks.rivals import RTOL, Run, one_thread, race
from nlaformer.console import Sheet
from nlaformer.solvers.precondition.incomplete import incomplete_cholesky

SIZES = (40_000, 250_000)
ORDERS = ("rcm", "rcm2", "mdf")
WITHIN = 1.1  # of the best candidate's iterations


def ours(A: Any, b: Any) -> tuple[Any, str]:
    """The answer and its iterations of nf.cg."""
    result = nf.cg(A, b, M="ic", rtol=RTOL, check="ignore")
    return result.x, str(result.iterations)


def _theirs(precondition: Callable[[Any], Any]) -> Callable[[Any, Any], tuple[Any, str]]:
    def solve(A: Any, b: Any) -> tuple[Any, str]:
        from scipy.sparse.linalg import cg

        count: list[int] = []
        x, _ = cg(A, b, rtol=RTOL, M=precondition(A), callback=lambda x: count.append(1))
        return x, str(len(count))

    return solve


def _jacobi(A: Any) -> Any:
    from scipy.sparse.linalg import LinearOperator

    inverse = 1 / A.diagonal()
    return LinearOperator(A.shape, matvec=lambda r: inverse * r, dtype=np.float64)


def _amg(kind: str) -> Callable[[Any], Any]:
    def precondition(A: Any) -> Any:
        import pyamg

        return getattr(pyamg, kind)(A).aspreconditioner()

    return precondition


def superlu(A: Any, b: Any) -> Any:
    """SciPy's direct solver in its form for symmetric matrices."""
    from scipy.sparse.linalg import splu

    options = dict(SymmetricMode=True)
    return splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options).solve(b)


RIVALS: dict[str, Callable[[Any, Any], Any]] = {
    "ic": ours,
    "Jacobi": _theirs(_jacobi),
    "AMG, RS": _theirs(_amg("ruge_stuben_solver")),
    "AMG, SA": _theirs(_amg("smoothed_aggregation_solver")),
    "SuperLU": superlu,
}


def by_order(A: Any, b: Any) -> dict[str, int]:
    """The iterations with every candidate, and with the order that is chosen."""
    counts = {}
    for order in (None, *ORDERS):
        M = _operator(A, incomplete_cholesky(A, order).apply)
        counts[order or "chosen"] = int(nf.cg(A, b, M=M, rtol=RTOL, maxiter=3000, check="ignore").iterations)
    return counts


def _operator(A: Any, apply: Callable[[Any], Any]) -> Any:
    from scipy.sparse.linalg import LinearOperator

    return LinearOperator(A.shape, matvec=apply, dtype=np.float64)


def measure(quick: bool) -> Measured:
    """The times and the iterations of all families."""
    rows: list[dict[str, Any]] = []
    _warm_up()
    for n in SIZES[:1] if quick else SIZES:
        for name, make in FAMILIES.items():
            A = make(n)
            b = np.random.default_rng(1).standard_normal(A.shape[0])
            found = race({rival: _bound(solve, A, b) for rival, solve in RIVALS.items()}, A, b)
            begun = time.process_time()
            choice = incomplete_cholesky(A)
            seconds = time.process_time() - begun
            rows.append(dict(
                family=name, n=A.shape[0], counts=by_order(A, b), order=choice.order, setup_seconds=seconds,
                **{rival: vars(one) for rival, one in found.items()},
            ))  # fmt: skip
            print(f"{name}, n = {A.shape[0]}: " + ", ".join(f"{k} {v.in_words()}" for k, v in found.items()),
                  file=sys.stderr, flush=True)  # fmt: skip
    return dict(rows=rows, summary=summary(rows)), [_times(rows), _orders(rows)]


def _bound(solve: Callable[[Any, Any], Any], A: Any, b: Any) -> Callable[[], Any]:
    return lambda: solve(A, b)


def _warm_up() -> None:
    """Import and compile everything, so that no run pays for it."""
    A = FAMILIES["jumps"](400)
    b = np.ones(A.shape[0])
    for solve in RIVALS.values():
        solve(A, b)
    for order in ORDERS:
        incomplete_cholesky(A, order)


def ratio(row: dict[str, Any]) -> float:
    """The time of "ic" over that of the best of the others."""
    others = [row[name]["seconds"] for name in RIVALS if name != "ic" and row[name]["seconds"] is not None]
    own = row["ic"]["seconds"]
    return float("inf") if own is None else own / min(others) if others else 0.0


def near_best(row: dict[str, Any]) -> bool:
    """Whether the chosen order is within 10 % of the best candidate's iterations."""
    best = min(row["counts"][order] for order in ORDERS)
    return bool(row["counts"]["chosen"] <= WITHIN * best)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is asked of the rule."""
    sizes = sorted({(row["n"] > 100_000, row["n"]) for row in rows})
    groups = {"small": [r for r in rows if r["n"] <= 100_000], "large": [r for r in rows if r["n"] > 100_000]}
    return dict(
        sizes=len(sizes),
        fastest_in_three_dimensions=[ratio(row) <= 1 for row in rows if row["family"] in THREE_DIMENSIONAL],
        near_the_best_order={name: sum(map(near_best, group)) for name, group in groups.items()},
        fastest={name: sum(ratio(row) <= 1 for row in group) for name, group in groups.items()},
    )


def _times(rows: Sequence[dict[str, Any]]) -> Sheet:
    head = ("family", "n", *RIVALS, "iterations", "set-up", "ic to the best")
    table = tuple(
        (row["family"], f"{row['n']:,}", *(Run(**row[name]).in_words() for name in RIVALS), row["ic"]["told"],
         f"{row['setup_seconds']:.3g}", f"{ratio(row):.2f}")
        for row in rows
    )  # fmt: skip
    return Sheet("CPU seconds to a relative residual of 1e-8", head, table, "Medians of five in turns.")


def _orders(rows: Sequence[dict[str, Any]]) -> Sheet:
    head = ("family", "n", *ORDERS, "chosen", "its iterations")
    table = tuple(
        (row["family"], f"{row['n']:,}", *(str(row["counts"][order]) for order in ORDERS), row["order"],
         str(row["counts"]["chosen"]))
        for row in rows
    )  # fmt: skip
    return Sheet("Iterations by order", head, table, "The relaxation is the same for all orders.")


if __name__ == "__main__":
    one_thread()
    text = 'Time nf.cg with M="ic" against others.'
    run("preconditioners", text, "n = 40,000 alone", measure)
