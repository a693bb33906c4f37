"""nlaformer.petsc on the ranks of mpirun; `make petsc` runs this file on two, in a Python without torch.

Every rank runs every test, and what is asserted is the same on all, or said of the rank: a rank that fails ends all.
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import petsc4py
import pytest
import scipy.sparse as sp

petsc4py.init([])
from petsc4py import PETSc  # noqa: E402

from nlaformer import petsc  # noqa: E402
from nlaformer.errors import DTypeError, MissingPackageError, NLAFormerError, OptionError, ShapeError  # noqa: E402
from nlaformer.solvers import certificate  # noqa: E402
from nlaformer.solvers.operators import SparseOperator  # noqa: E402
from nlaformer.solvers.precondition.named import build  # noqa: E402

RANK, RANKS = PETSc.COMM_WORLD.rank, PETSc.COMM_WORLD.size
KINDS = ["aij", "baij", "sbaij", "dense"]


def poisson(m: int, dimensions: int = 2) -> sp.csr_matrix:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(m, m))
    A = line
    for _ in range(dimensions - 1):
        A = sp.kron(sp.eye_array(m), A) + sp.kron(line, sp.eye_array(A.shape[0]))
    return sp.csr_matrix(A)


def distributed(csr: sp.csr_matrix, kind: str = "aij") -> PETSc.Mat:
    """The matrix on all ranks."""
    A = PETSc.Mat().createAIJ(csr.shape)
    A.setUp()
    first, end = A.getOwnershipRange()
    own = csr[first:end]
    A = PETSc.Mat().createAIJ(csr.shape, csr=(own.indptr, own.indices, own.data))
    A.setOption(PETSc.Mat.Option.SYMMETRIC, kind == "sbaij")
    return A if kind == "aij" else A.convert(kind, PETSc.Mat())


def vector(A: PETSc.Mat, values: np.ndarray) -> PETSc.Vec:
    v = A.createVecLeft()
    v.setArray(values[slice(*v.getOwnershipRange())])
    return v


def gathered(v: PETSc.Vec) -> np.ndarray:
    scatter, every = PETSc.Scatter.toAll(v)
    scatter.scatter(v, every)
    return every.getArray().copy()


def solved(
    A: PETSc.Mat, b: PETSc.Vec, iterations: int = 10_000, pc: object = None, x: PETSc.Vec | None = None
) -> PETSc.KSP:
    """CG with a tolerance of 1e-9 on the residual."""
    ksp = PETSc.KSP().create()
    ksp.setOperators(A)
    ksp.setType("cg")
    ksp.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
    ksp.setTolerances(rtol=1e-9, max_it=iterations)
    ksp.getPC().setType("none" if pc is None else "python")
    if pc is not None:
        ksp.getPC().setPythonContext(pc)
    ksp.solve(b, A.createVecRight())
    return ksp


def right(n: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(n)


def exactly(csr: sp.csr_matrix, b: np.ndarray, x: np.ndarray) -> float:
    """|b - A x| in exact arithmetic, rounded once."""
    total = Fraction(0)
    for i in range(len(b)):
        row = range(csr.indptr[i], csr.indptr[i + 1])
        total += (Fraction(b[i]) - sum(Fraction(csr.data[k]) * Fraction(x[csr.indices[k]]) for k in row)) ** 2
    return float(total) ** 0.5


# --- the certificate ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_certificate_agrees_with_the_serial_one(kind: str) -> None:
    csr = poisson(12)
    A = distributed(csr, kind)
    b = right(len(csr.indptr) - 1)
    ksp = solved(A, vector(A, b))
    found, x = petsc.certify(ksp, rtol=1e-8), gathered(ksp.getSolution())
    serial = certificate.certify(SparseOperator(csr), b, x, found.tolerance)
    errors = (found.residual_bound - found.residual_norm) + (serial.bound - serial.norm)
    assert found.converged and serial.holds
    assert abs(found.residual_norm - serial.norm) <= errors
    assert found.residual_norm <= found.residual_bound <= found.tolerance <= 1e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("iterations", [0, 3, 10_000])
def test_the_bound_is_no_less_than_the_exact_residual(iterations: int) -> None:
    csr = poisson(8)
    A, b = distributed(csr), right(64)
    ksp = solved(A, vector(A, b), iterations)
    found = petsc.certify(ksp, rtol=1e-8)
    exact = exactly(csr, b, gathered(ksp.getSolution()))
    assert exact <= found.residual_bound <= exact * (1 + 1e-12) + 1e-12
    assert found.converged == (iterations > 3)


def test_an_x_that_was_changed_after_the_solve_is_refused() -> None:
    A = distributed(poisson(8))
    ksp = solved(A, vector(A, right(64)))
    assert petsc.certify(ksp, rtol=1e-8).converged
    x = ksp.getSolution()
    if RANK == RANKS - 1:
        x.getArray()[-1] += 1e-6
    x.assemble()
    assert not petsc.certify(ksp, rtol=1e-8).converged
    assert petsc.certify(ksp, rtol=1e-4).converged


def test_the_tolerances_are_those_of_the_ksp_unless_others_are_given() -> None:
    A = distributed(poisson(8))
    b = right(64)
    ksp = solved(A, vector(A, b))
    size = np.linalg.norm(b)
    assert petsc.certify(ksp).tolerance == pytest.approx(1e-9 * size)
    assert petsc.certify(ksp, atol=0.5).tolerance == 0.5
    assert petsc.certify(ksp, rtol=1e-3, atol=0.0).tolerance == pytest.approx(1e-3 * size)


def test_twice_the_precision_proves_what_float64_does_not() -> None:
    csr = poisson(10)
    x = np.round(1e8 * right(100))
    A = distributed(csr)
    ksp = solved(A, vector(A, csr @ x), 0)
    ksp.getSolution().setArray(x[slice(*A.getOwnershipRange())])
    rough = petsc.certify(ksp, rtol=0.0, atol=1.0)
    assert rough.residual_norm < 1e-300 < rough.residual_bound < 1e-4  # b = A x in integers
    fine = petsc.certify(ksp, rtol=0.0, atol=1.5 * rough.residual_bound)
    assert fine.converged and fine.residual_bound < 1e-6 * rough.residual_bound
    assert not petsc.certify(ksp, rtol=0.0, atol=0.5 * rough.residual_bound).converged


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["A", "b", "x"])
def test_numbers_that_are_not_finite_are_never_certified(where: str, value: float) -> None:
    csr = poisson(6)
    A, b = distributed(csr), vector(distributed(csr), right(36))
    ksp = solved(A, b)
    if where == "A":
        first = A.getOwnershipRange()[0]
        A.setValue(first, first, value if RANK == 0 else 4.0)
        A.assemble()
    elif RANK == 0:
        (b if where == "b" else ksp.getSolution()).getArray()[0] = value
    found = petsc.certify(ksp, rtol=0.5, atol=1e300)
    assert not found.converged and not found.residual_bound < np.inf


def test_a_rank_without_rows_takes_part() -> None:
    for n in (1, 2, 3):
        A = distributed(sp.csr_matrix(np.diag(np.arange(2.0, n + 2))))
        ksp = solved(A, vector(A, np.ones(n)), pc=petsc.PC("ic"))
        assert petsc.certify(ksp, rtol=1e-12).converged


def test_entries_far_from_one_are_certified() -> None:
    for factor in (1e-160, 1e160):
        A = distributed(poisson(6))
        ksp = solved(A, vector(A, right(36)))
        A.scale(factor)
        ksp.getRhs().scale(factor)  # PETSc's own products of vectors leave the range of float64
        found = petsc.certify(ksp, rtol=1e-8, atol=0.0)
        assert found.converged and 0 < found.residual_norm < 1e-8 * factor * np.linalg.norm(right(36))


def test_a_matrix_of_blocks_of_matrices_is_certified() -> None:
    A = distributed(poisson(6))
    nest = PETSc.Mat().createNest([[A, None], [None, A]])
    b = nest.createVecLeft()
    b.set(1.0)
    ksp = PETSc.KSP().create()
    ksp.setOperators(nest)
    ksp.setType("gmres")
    ksp.getPC().setType("none")
    for iterations in (5, 100):
        ksp.setTolerances(rtol=1e-10, max_it=iterations)
        ksp.solve(b, nest.createVecRight())
        assert petsc.certify(ksp, rtol=1e-8).converged == (iterations > 5)


# --- what is refused ---


def test_what_cannot_be_judged_is_refused() -> None:
    A = distributed(poisson(6))
    b = vector(A, right(36))
    with pytest.raises(DTypeError, match="KSP"):
        petsc.certify(A)
    ksp = PETSc.KSP().create()
    with pytest.raises(OptionError, match="solve"):
        petsc.certify(ksp)
    ksp.setOperators(A)
    with pytest.raises(OptionError, match="solve"):
        petsc.certify(ksp)
    ksp.destroy()
    with pytest.raises(OptionError, match="solve"):
        petsc.certify(ksp)
    ksp = solved(A, b)
    for option in (dict(rtol=-1.0), dict(rtol=np.nan), dict(atol=np.inf), dict(atol=-0.5)):
        with pytest.raises(OptionError, match=next(iter(option))):
            petsc.certify(ksp, **option)


def test_vectors_of_another_size_are_refused() -> None:
    A = distributed(poisson(6))

    class Wrong(PETSc.KSP):
        def getRhs(self) -> PETSc.Vec:
            return distributed(poisson(7)).createVecLeft()

    wrong = Wrong().create()
    wrong.setOperators(A)
    wrong.solve(vector(A, right(36)), A.createVecRight())
    with pytest.raises(ShapeError, match="36 rows"):
        petsc.certify(wrong)


def test_a_matrix_that_is_not_assembled_is_refused() -> None:
    A = distributed(poisson(6))
    ksp = solved(A, vector(A, right(36)))
    A.setValue(A.getOwnershipRange()[0], A.getOwnershipRange()[0], 5.0)
    with pytest.raises(OptionError, match="assembled"):
        petsc.certify(ksp)
    A.assemble()
    assert not petsc.certify(ksp).converged  # of another matrix


def test_a_matrix_known_by_its_products_alone_is_refused() -> None:
    class Twice:
        def mult(self, A: PETSc.Mat, x: PETSc.Vec, y: PETSc.Vec) -> None:
            x.copy(y)
            y.scale(2.0)

    A = PETSc.Mat().createPython((6, 6), Twice())
    A.setUp()
    ksp = solved(A, vector(A, np.ones(6)))
    with pytest.raises(OptionError, match="python"):
        petsc.certify(ksp)


def test_a_petsc_of_other_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    A = distributed(poisson(6))
    ksp = solved(A, vector(A, right(36)))
    for kind in (np.complex128, np.float32):
        monkeypatch.setattr(PETSc, "ScalarType", kind)
        with pytest.raises(DTypeError, match=np.dtype(kind).name):
            petsc.certify(ksp)
        with pytest.raises(DTypeError, match=np.dtype(kind).name):
            petsc.PC().setUp(ksp.getPC())


# --- the preconditioner ---


def own_block(csr: sp.csr_matrix, A: PETSc.Mat) -> sp.csr_matrix:
    own = slice(*A.getOwnershipRange())
    return csr[own, own].tocsr()


def applied(pc: petsc.PC, A: PETSc.Mat, x: np.ndarray) -> np.ndarray:
    """M x, gathered."""
    outer = PETSc.PC().create()
    outer.setOperators(A)
    outer.setType("python")
    outer.setPythonContext(pc)
    outer.setUp()
    y = A.createVecRight()
    outer.apply(vector(A, x), y)
    return gathered(y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["jacobi", "ssor", "ic", "ilu"])
def test_the_preconditioner_is_that_of_the_block_of_each_rank(name: str, kind: str) -> None:
    csr = poisson(10)
    A, x = distributed(csr, kind), right(100)
    own = slice(*A.getOwnershipRange())
    expected = build(name, own_block(csr, A), "gmres")(x[own])
    assert np.array_equal(applied(petsc.PC(name), A, x)[own], expected)


def test_what_couples_the_ranks_is_left_out() -> None:
    csr = poisson(20, dimensions=1)  # tridiagonal: without fill the factorization of a block is complete
    A, x = distributed(csr), right(20)
    own = slice(*A.getOwnershipRange())
    b = np.zeros(20)
    b[own] = own_block(csr, A) @ x[own]
    assert np.allclose(applied(petsc.PC("ic"), A, b)[own], x[own], rtol=1e-12)
    whole = applied(petsc.PC("ic"), A, csr @ x)
    assert np.allclose(whole, x, rtol=1e-12) == (RANKS == 1)
    other = x.copy()
    other[:1] += 1.0  # of the first rank
    same = applied(petsc.PC("ic"), A, x) == applied(petsc.PC("ic"), A, other)
    assert same[A.getOwnershipRanges()[1] :].all() and not same.all()


@pytest.mark.parametrize("name", ["jacobi", "ssor", "ic"])
def test_cg_with_a_preconditioner_is_certified(name: str) -> None:
    csr = poisson(30)
    scaled = sp.diags_array(10.0 ** np.linspace(0, 2, 900))
    csr = sp.csr_matrix(scaled @ csr @ scaled)
    A = distributed(csr)
    b = vector(A, right(900))
    plain, ksp = solved(A, b), solved(A, b, pc=petsc.PC(name))
    assert petsc.certify(ksp, rtol=1e-8).converged
    assert ksp.getIterationNumber() < plain.getIterationNumber() / 2


def test_the_options_database_chooses_the_preconditioner() -> None:
    options = PETSc.Options()
    given = {"pc_type": "python", "pc_python_type": "nlaformer.petsc.PC", "pc_nlaformer": "ic"}
    for name, value in given.items():
        options.setValue(f"mine_{name}", value)
    A = distributed(poisson(10))
    ksp = PETSc.KSP().create()
    ksp.setOptionsPrefix("mine_")
    ksp.setOperators(A)
    ksp.setType("cg")
    ksp.setFromOptions()
    ksp.solve(vector(A, right(100)), A.createVecRight())
    assert ksp.getPC().getPythonContext().M == "ic"
    assert petsc.certify(ksp, rtol=1e-3).converged


def test_the_preconditioner_follows_the_matrix() -> None:
    csr = poisson(6)
    A, pc, x = distributed(csr), petsc.PC("jacobi"), np.ones(36)
    ksp = solved(A, vector(A, right(36)), pc=pc)
    A.scale(2.0)
    y = A.createVecRight()
    ksp.setUp()
    ksp.getPC().apply(vector(A, x), y)
    assert np.allclose(gathered(y), 1 / 8)


def test_a_function_makes_the_preconditioner_of_a_block() -> None:
    csr = poisson(6)
    A, x = distributed(csr), right(36)
    own = slice(*A.getOwnershipRange())
    found = applied(petsc.PC(lambda block: lambda r: 3 * block.diagonal() * r), A, x)
    assert np.array_equal(found[own], 12 * x[own])
    with pytest.raises(NLAFormerError):
        applied(petsc.PC(lambda block: lambda r: r[:-1]), A, x)
    with pytest.raises(NLAFormerError):
        applied(petsc.PC(7), A, x)


@pytest.mark.parametrize("name", ["ic", "ssor"])
def test_a_block_that_cannot_be_factored_is_refused_on_every_rank(name: str) -> None:
    csr = poisson(6).tolil()
    csr[35, 35] = -4.0  # of the last rank
    A = distributed(csr.tocsr())
    with pytest.raises(OptionError, match="positive" if RANK == RANKS - 1 else "rank"):
        applied(petsc.PC(name), A, right(36))


def test_names_that_do_not_exist_are_refused_and_a_learned_one_asks_for_torch() -> None:
    A = distributed(poisson(6))
    with pytest.raises(MissingPackageError, match="torch"):
        applied(petsc.PC("learned-preconditioner"), A, right(36))
    with pytest.raises(NLAFormerError, match="jacobi"):
        applied(petsc.PC("no-such-thing"), A, right(36))


def test_a_matrix_without_square_blocks_is_refused() -> None:
    A = PETSc.Mat().createAIJ(((4, None), (3, None)), nnz=1)
    A.setUp()
    A.assemble()
    pc = PETSc.PC().create()
    pc.setOperators(A)
    pc.setType("python")
    pc.setPythonContext(petsc.PC())
    with pytest.raises((ShapeError, PETSc.Error)):
        pc.setUp()


def test_the_program_of_the_page_is_certified(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[1] / "docs" / "solve.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```py\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert "nlaformer.petsc" in page
    exec(compile(program, "docs/solve.md", "exec"), {})
