"""What nlaformer.petsc needs of the package, without PETSc; its own tests are in tests/petsc_ranks.py."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import nlaformer as nf
from nlaformer import problems
from nlaformer.errors import DTypeError, NLAFormerError, ShapeError
from nlaformer.solvers.precondition.block import on_block
from nlaformer.solvers.precondition.named import NAMES

STUB = """
import sys, types
package, module = types.ModuleType("petsc4py"), types.ModuleType("petsc4py.PETSc")
package.PETSc = module
sys.modules |= {"petsc4py": package, "petsc4py.PETSc": module}
import numpy as np, scipy.sparse as sp, nlaformer.petsc
from nlaformer.solvers.certificate import certify
from nlaformer.solvers.operators import SparseOperator
block = sp.csr_matrix(np.diag([2.0, 4.0]))
assert certify(SparseOperator(block), np.ones(2), nlaformer.petsc.on_block("ic", block)(np.ones(2)), 1e-9).holds
sys.exit("torch" in sys.modules)
"""


def _system() -> tuple[sp.csr_matrix, np.ndarray]:
    A, b, _ = problems.SPD(n=20).sample(count=1, seed=3)
    return sp.csr_matrix(A[0].numpy()), b[0].numpy()


def test_neither_the_certificate_nor_named_preconditioners_import_torch() -> None:
    subprocess.run([sys.executable, "-c", STUB], check=True)


@pytest.mark.parametrize("name", [*NAMES, "learned-preconditioner"])
def test_a_preconditioner_of_a_block_improves_its_condition(name: str) -> None:
    A, _ = _system()
    A = sp.csr_matrix(sp.block_diag([A, 100 * A]))  # more unknowns than the model was made for
    function = on_block(name, A)
    M = np.stack([function(e) for e in np.eye(40)], 1)
    assert np.linalg.cond(M @ A.toarray()) < np.linalg.cond(A.toarray()) / 20
    if name not in ("ilu", "amg"):
        assert np.abs(M - M.T).max() <= 1e-12 * np.abs(M).max() and np.linalg.eigvalsh(M + M.T)[0] > 0


@pytest.mark.parametrize("M", ["jacobi", "ic", "learned-preconditioner", nf.load("learned-preconditioner")])
def test_a_preconditioner_scales_as_the_inverse(M: object) -> None:
    A, b = _system()
    one, other = (on_block(M, factor * A)(b) for factor in (1.0, 2.0**70))
    assert np.allclose(one, 2.0**70 * other, rtol=1e-10)


def test_an_empty_block_has_a_preconditioner() -> None:
    for name in NAMES:
        assert on_block(name, sp.csr_matrix((0, 0)))(np.empty(0)).shape == (0,)


def test_what_is_no_preconditioner_is_refused() -> None:
    A, b = _system()
    with pytest.raises(NLAFormerError, match="jacobi"):
        on_block("no-such-thing", A)
    with pytest.raises(NLAFormerError):
        on_block("cg-accelerated", A)  # it solves
    with pytest.raises(DTypeError):
        on_block(7, A)
    with pytest.raises(ShapeError):
        on_block(lambda block: lambda r: r[1:], A)(b)
    own = on_block(lambda block: lambda r: 2 * r, A)(b)
    assert np.array_equal(own, 2 * b)
