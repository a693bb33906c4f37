"""Batched CG and PCG: SciPy's iterates, exact rest after convergence, no waiting for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator
from scipy.sparse.linalg import cg as scipy_cg

from nlaformer.compiler.library.krylov import ConjugateGradient
from nlaformer.errors import DTypeError, OptionError, ShapeError, UnknownNameError
from nlaformer.learn.teachers import cg, pcg
from nlaformer.problems import SPD, Poisson1D, Poisson2D, PrescribedSpectrum, RBFKernel

EPS = torch.finfo(torch.float64).eps
FAMILIES = [SPD(20), Poisson1D(12, 0.5), Poisson2D(16, 0.5), RBFKernel(15), PrescribedSpectrum(20, cond=1e3)]


def scipy_iterates(A: torch.Tensor, b: torch.Tensor, x0: torch.Tensor, steps: int, method: str) -> np.ndarray:
    iterates = [x0.numpy().copy()]
    inverse = 1 / A.diagonal().numpy()
    M = LinearOperator(A.shape, matvec=lambda r: inverse * r, dtype=np.float64) if method == "pcg" else None
    scipy_cg(
        A.numpy(),
        b.numpy(),
        x0.numpy(),
        rtol=0,
        atol=0,
        maxiter=steps,
        M=M,
        callback=lambda x: iterates.append(x.copy()),
    )
    return np.array(iterates)  # (T+1, n)


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("method", ["cg", "pcg"])
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_iterates_equal_scipys_up_to_rounding(family, method: str, start: str) -> None:
    """... up to rounding, that is: as near as SciPy's own are when the unknowns are numbered backwards."""
    steps, count = family.n // 2, 16
    A, b, x = family.sample(count, seed=0)
    x0 = torch.zeros_like(b) if start == "zero" else family.sample(count, seed=1).x
    ours = (cg(A, b, steps, x0=x0) if method == "cg" else pcg(A, b, steps, M="jacobi", x0=x0)).x.numpy()
    scipys = np.stack([scipy_iterates(A[i], b[i], x0[i], steps, method) for i in range(count)])
    backwards = np.stack(
        [scipy_iterates(A[i].flip(0, 1), b[i].flip(0), x0[i].flip(0), steps, method) for i in range(count)]
    )
    rounding = np.abs(scipys - backwards[..., ::-1]).max((0, 2)) + EPS * x.abs().max().item()  # (T+1,)
    assert (np.abs(ours - scipys).max((0, 2)) <= 20 * rounding).all()
    assert np.abs(ours - scipys)[:, :5].max() <= 1e-10


def test_every_state_satisfies_the_papers_iteration() -> None:
    A, b, _ = SPD(10).sample(1, seed=3)
    run = cg(A[0], b[0], 6)
    papers = ConjugateGradient().run(A[0].numpy(), b[0].numpy(), iterations=6).state
    for name in ("x", "r", "d"):
        mine = getattr(run, name).numpy()
        np.testing.assert_allclose(mine, papers[name], rtol=0, atol=1e-9 * np.linalg.norm(b))


@pytest.mark.parametrize("method", [cg, pcg])
def test_directions_are_conjugate_and_residuals_equal_b_minus_a_x(method) -> None:
    A, b, _ = SPD(20).sample(16, seed=4)
    run = method(A, b, 6)
    true = b[:, None] - run.x @ A
    assert (run.r - true).norm(dim=-1).max() <= 1e-12 * b.norm(dim=-1).max()
    products = run.d @ A @ run.d.mT
    lengths = products.diagonal(dim1=-2, dim2=-1).sqrt()
    cosines = products / lengths[:, :, None] / lengths[:, None, :]
    assert cosines.diagonal(1, dim1=-2, dim2=-1).abs().max() < 1e-12  # neighbours
    assert cosines.triu(1).abs().max() < 1e-5  # all, as far as rounding lets them


def test_a_batch_gives_the_iterates_of_its_single_systems() -> None:
    A, b, _ = SPD(7).sample(6, seed=0)
    batch = pcg(A.reshape(2, 3, 7, 7), b.reshape(2, 3, 7), 5)
    assert batch.x.shape == batch.r.shape == batch.d.shape == (2, 3, 6, 7)
    for i in range(6):
        for mine, single in zip(batch, pcg(A[i], b[i], 5), strict=True):
            torch.testing.assert_close(mine[i // 3, i % 3], single, rtol=1e-11, atol=1e-12)


def test_leading_dimensions_broadcast() -> None:
    A, b, _ = SPD(5).sample(4, seed=0)
    for one, other in zip(cg(A[0], b, 3), cg(A[:1].expand(4, -1, -1), b, 3), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert cg(A, b[0], 3).x.shape == (4, 4, 5)
    assert cg(A[0], b[0], 3, x0=b).x.shape == (4, 4, 5)
    assert cg(A, b.expand(3, 4, 5), 3, x0=b[0]).x.shape == (3, 4, 4, 5)


@pytest.mark.parametrize("n", [1, 2, 5, 20])
@pytest.mark.parametrize("method", [cg, pcg])
def test_a_solved_system_keeps_its_state_without_nan(method, n: int) -> None:
    A, b, x = SPD(n).sample(32, seed=0)
    run = method(A, b, 40 * n + 60)
    assert all(part.isfinite().all() for part in run)
    assert ((run.x[:, -1] - x).norm(dim=-1) <= 100 * n * EPS * torch.linalg.cond(A) * x.norm(dim=-1)).all()
    for part in run:
        assert torch.equal(part[:, -1], part[:, -2])


def test_a_system_solved_exactly_keeps_its_state() -> None:
    A = torch.diag(torch.tensor([2.0, 4.0, 8.0]))
    run = cg(A, torch.tensor([0.0, 4.0, 0.0]), 5)  # an eigenvector: one step
    assert run.x[1:].tolist() == [[0.0, 1.0, 0.0]] * 5
    assert not run.r[1:].any() and not run.d[1:].any()


@pytest.mark.parametrize("method", [cg, pcg])
def test_a_zero_right_hand_side_gives_zero(method) -> None:
    A, b, _ = SPD(6).sample(3, seed=0)
    b[1] = 0
    run = method(A, b, 10)
    assert not run.x[1].any() and not run.d[1].any()
    assert run.x[0].any() and run.x.isfinite().all()


@pytest.mark.parametrize(
    "A", [torch.zeros(3, 3), torch.diag(torch.tensor([1.0, -1.0, 0.0]))], ids=["zero", "indefinite"]
)
@pytest.mark.parametrize("method", [cg, pcg])
def test_a_breakdown_stays_finite(method, A: torch.Tensor) -> None:
    assert all(part.isfinite().all() for part in method(A, torch.tensor([1.0, 1.0, 0.0]), 5))


def test_preconditioners_of_every_kind_agree() -> None:
    A, b, _ = SPD(9).sample(4, seed=0)
    inverse = 1 / A.diagonal(dim1=-2, dim2=-1)
    expected = pcg(A, b, 6)
    for M in (inverse, inverse.numpy(), lambda r: inverse * r):
        for one, other in zip(pcg(A, b, 6, M=M), expected, strict=True):
            assert torch.equal(one, other)
    for one, other in zip(pcg(A, b, 6, M=torch.ones(9)), cg(A, b, 6), strict=True):
        assert torch.equal(one, other)


def test_the_exact_inverse_as_preconditioner_solves_in_one_step() -> None:
    A, b, x = SPD(6).sample(1, seed=0)
    inverse = torch.linalg.inv(A[0])
    torch.testing.assert_close(pcg(A[0], b[0], 1, M=lambda r: r @ inverse).x[-1], x[0], rtol=1e-10, atol=1e-12)


def test_the_iteration_never_waits_for_the_device() -> None:
    """On the meta device there are no numbers: whatever branches on one, or waits for one, fails there."""
    A, b = torch.empty(3, 4, 5, 5, device="meta"), torch.empty(3, 4, 5, device="meta")
    for run in (cg(A, b, 3), pcg(A, b, 3)):
        assert run.x.shape == (3, 4, 4, 5) and run.x.device.type == "meta"


def test_input_of_any_kind_is_solved_in_float64() -> None:
    expected = cg(torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64), torch.tensor([1.0, 2.0]), 2).x
    for A, b in (
        (np.array([[4, 1], [1, 3]]), [1, 2]),
        ([[4.0, 1.0], [1.0, 3.0]], np.array([1, 2], np.float32)),
        (torch.tensor([[4, 1], [1, 3]], dtype=torch.float16), torch.tensor([1, 2])),
    ):
        x = cg(A, b, 2).x
        assert x.dtype == torch.float64 and torch.equal(x, expected)


EYE, ONES = torch.eye(3), torch.ones(3)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((torch.ones(3, 2), ONES, 1), {}, ShapeError, "A has shape"),
        ((ONES, ONES, 1), {}, ShapeError, "A has shape"),
        ((torch.ones(0, 0), torch.ones(0), 1), {}, ShapeError, r"A has shape \(0, 0\)"),
        ((EYE, torch.ones(2), 1), {}, ShapeError, r"b has shape \(2,\)"),
        ((EYE, torch.tensor(1.0), 1), {}, ShapeError, "b has shape"),
        ((EYE.expand(2, 3, 3), torch.ones(4, 3), 1), {}, ShapeError, "b has shape"),
        ((EYE, ONES, 1), {"x0": torch.ones(4)}, ShapeError, "x0 has shape"),
        ((EYE, ONES, 1), {"M": EYE}, ShapeError, "M=lambda"),
        ((EYE, ONES, 1), {"M": torch.ones(2)}, ShapeError, "M has shape"),
        ((EYE, ONES, 1), {"M": "jacoby"}, UnknownNameError, "'jacobi'"),
        (("matrix", ONES, 1), {}, DTypeError, "A is a str"),
        ((EYE * 1j, ONES, 1), {}, DTypeError, "A is complex"),
        ((EYE, ONES * 1j, 1), {}, DTypeError, "b is complex"),
        ((EYE, ONES, -1), {}, OptionError, "iterations is -1"),
        ((EYE, ONES, 2.5), {}, OptionError, "iterations is 2.5"),
        ((EYE, ONES, True), {}, OptionError, "iterations is True"),
    ],
)
def test_bad_systems_and_options_are_refused(
    arguments: tuple, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        pcg(*arguments, **options)
