"""SciPy's own tests of cg, gmres, minres and lsmr, from the installed SciPy, with our functions in their place.

Left out are tests of what nlaformer refuses (complex numbers, ``shift``, a matrix for MINRES that is not symmetric), of
the legacy callbacks of SciPy's gmres, whose ``maxiter`` counts restarts, and of counts by its stopping rule.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.sparse import linalg as theirs

import nlaformer as nf
from nlaformer.errors import ConvergenceWarning

pytest.importorskip("scipy.sparse.linalg._isolve.tests.test_iterative")
pytestmark = pytest.mark.filterwarnings("ignore::nlaformer.errors.ConvergenceWarning")


def as_theirs(ours: Callable[..., Any]) -> Callable[..., Any]:
    """One of our functions, which also takes x0="Mb" and an infinite tolerance, as SciPy's do."""

    def solver(A: Any, b: Any, x0: Any = None, **more: Any) -> Any:
        M = more.get("M")
        if isinstance(x0, str):
            x0 = b if M is None else M @ b
        for name in ("rtol", "atol"):
            if isinstance(more.get(name), float) and more[name] == np.inf:
                more[name] = 1e300
        more.pop("check", None)
        return tuple(ours(A, b, x0, **more))

    solver.__name__ = ours.__name__
    return solver


def lsmr(A: Any, b: Any, x0: Any = None, maxiter: int | None = None) -> tuple[Any, ...]:
    """Our LSMR with what SciPy's returns."""
    right = np.atleast_1d(np.asarray(b)).ravel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = nf.solve(A, right, method="lsmr", rtol=1e-9, x0=x0, maxiter=maxiter)
    r = right - A @ found.x
    return found.x, 1, found.iterations, np.linalg.norm(r), found.residual_norm, None, None, np.linalg.norm(found.x)


SOLVERS = {name: as_theirs(getattr(nf, name)) for name in ("cg", "gmres", "minres")}
ITERATIVE, MINRES, LSMR = (
    importlib.import_module(f"scipy.sparse.linalg._isolve.tests.test_{name}")
    for name in ("iterative", "minres", "lsmr")
)
CASES = [
    case
    for case in ITERATIVE.cases
    if case.solver.__name__ in SOLVERS and not np.iscomplexobj(np.zeros(0, case.A.dtype))
]


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def case(request: pytest.FixtureRequest) -> Any:
    given = request.param
    return ITERATIVE.SingleTest(given.A, given.b, SOLVERS[given.solver.__name__], given.name, given.convergence)


@pytest.fixture(params=SOLVERS)
def solver(request: pytest.FixtureRequest) -> Any:
    return SOLVERS[request.param]


def test_all_of_their_cases_of_real_matrices_are_ours() -> None:
    assert len(CASES) >= 30 and {case.solver for case in CASES} == {theirs.cg, theirs.gmres, theirs.minres}


@pytest.mark.parametrize("name", ["test_maxiter", "test_convergence", "test_precond_dummy", "test_x0_equals_Mb"])
def test_their_tests_of_a_case_hold(name: str, case: Any) -> None:
    getattr(ITERATIVE, name)(case)


@pytest.mark.parametrize(
    "name", ["test_atol", "test_zero_rhs", "test_x0_working", "test_x0_solves_problem_exactly", "test_positional_error"]
)
def test_their_tests_of_a_solver_hold(name: str, solver: Any) -> None:
    getattr(ITERATIVE, name)(solver)


@pytest.mark.parametrize("atol", ["legacy", None, -1])
def test_their_invalid_tolerances_are_refused(atol: Any, solver: Any) -> None:
    ITERATIVE.test_invalid_atol(solver, atol)


@pytest.mark.parametrize("name", ["poisson1d", "poisson2d"])
def test_their_exact_preconditioners_solve_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = next(case for case in ITERATIVE.IterativeParams().cases if case.name == name)
    given.skip = [SOLVERS.get(solver.__name__) for solver in given.skip]
    monkeypatch.setattr(ITERATIVE, "_SOLVERS", list(SOLVERS.values()))
    ITERATIVE.test_precond_inverse(given)


@pytest.mark.parametrize(
    "name", ["test_atol_legacy", "test_defective_precond_breakdown", "test_defective_matrix_breakdown"]
)
def test_their_tests_of_gmres_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ITERATIVE, "gmres", SOLVERS["gmres"])
    getattr(ITERATIVE.TestGMRES(), name)()


LEFT_OUT = ("testComplex", "testInitialization")  # the second counts steps by SciPy's stopping rule


def _tests(module: ModuleType, *without: str) -> list[str]:
    return [name for name in vars(module) if name.startswith("test") and name not in without]


@pytest.mark.parametrize("name", _tests(MINRES, "test_singular", "test_shift"))
def test_their_tests_of_minres_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MINRES, "minres", SOLVERS["minres"])
    getattr(MINRES, name)()


@pytest.mark.parametrize("kind", ["TestLSMR", "TestLSMRReturns"])
def test_their_tests_of_lsmr_hold(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LSMR, "lsmr", lsmr)
    names = [name for name in dir(getattr(LSMR, kind)) if name.startswith("test") and not name.startswith(LEFT_OUT)]
    assert len(names) >= 4
    for name in names:
        one = getattr(LSMR, kind)()
        one.setup_method()
        getattr(one, name)()
