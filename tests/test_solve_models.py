"""nf.solve with models from exact to malicious: answers stay right, bad models cost little, good ones save work."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

import nlaformer as nf
from benchmarks import solve_stress as stress
from nlaformer import problems
from nlaformer.errors import FileError, OptionError, UnfamiliarWarning
from nlaformer.learn.model import initial
from nlaformer.solvers.guided import POLICIES
from nlaformer.solvers.proposers import iterations_per_call

MODELS = stress.corrupted(np.random.default_rng(0))


class Pupil:
    """Stands in for a trained model: solves systems of n unknowns up to a relative error, and keeps what it saw."""

    def __init__(self, n: int, error: float) -> None:
        self.config = nf.recipe("quickstart", n=n)
        self.error, self.seen = error, []
        self.generator = torch.Generator().manual_seed(0)

    def iterates(self, A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a solve reads what the probes read, without a warning")

    def readings(self, A: torch.Tensor, b: torch.Tensor, iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
        assert A.shape[-1] == b.shape[-1] == self.config.n and iterations == self.config.T
        self.seen.append((A, b))
        x = torch.linalg.solve(A, b)
        noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
        x = x * (1 + self.error * noise)
        return torch.stack([torch.zeros_like(x), x], -2), torch.zeros_like(x)[:, None]


def family(n: int = 12, count: int = 64, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    A, b, _ = problems.SPD(n=n).sample(count, seed)
    return A.numpy(), b.numpy()


def test_no_converged_answer_of_two_thousand_solves_misses_its_tolerance() -> None:
    tally = stress.stress(2000, seed=12, trained=Pupil(8, 1e-2))
    assert tally.solves >= 2000 and tally.statuses["CONVERGED"] > 500
    assert not tally.lies and not tally.losses


@pytest.mark.parametrize("method", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_no_model_spoils_an_answer(name: str, method: str) -> None:
    A, b = family()
    result = nf.solve(A, b, model=MODELS[name], method=method, rtol=1e-8)
    assert result.converged
    assert np.all(np.linalg.norm(b - (A @ result.x[..., None])[..., 0], axis=-1) <= 1e-8 * np.linalg.norm(b, axis=-1))


@pytest.mark.parametrize("name", ["constant", "zero", "nan", "infinite", "huge", "random", "raises", "wrong shape"])
def test_auto_with_a_bad_model_is_cg_and_at_most_two_products(name: str) -> None:
    A, b = family(n=20)
    result, own = nf.solve(A, b, model=MODELS[name], rtol=1e-6), nf.cg(A, b, rtol=1e-6)
    assert not result.model.accepted.any() and len(result.model.reasons) >= 1
    assert np.array_equal(result.x, own.x) and np.array_equal(result.iterations, own.iterations)
    assert np.all(result.matvecs <= own.matvecs + 2)


def test_a_useless_answer_to_one_system_does_not_affect_the_others() -> None:
    A, b = family(count=10)

    def half(A: Any, b: Any) -> Any:
        x = np.linalg.solve(A, b[..., None])[..., 0]
        if len(b) == 10:
            x[::2] = np.nan
        return x

    result = nf.solve(A, b, model=half, rtol=1e-6)
    assert result.converged and result.model.accepted.tolist() == [0, 1] * 5
    assert np.all(result.iterations[1::2] == 1) and np.all(result.iterations[::2] > 1)
    assert "5 of 10" in str(result)


@pytest.mark.parametrize("method", ["auto", "refine", "flexible"])
def test_a_good_model_halves_the_products_at_least(method: str) -> None:
    A, b = family(n=20)
    result, own = nf.solve(A, b, model=Pupil(20, 1e-3), method=method, rtol=1e-6), nf.cg(A, b, rtol=1e-6)
    assert result.converged and result.matvecs.max() <= own.matvecs.min() / 2
    assert result.model_seconds > 0 and result.model.reduction.max() < 1e-3


def test_loading_a_model_counts_as_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("nlaformer.solvers.proposers")
    read_model = module.read_model

    def slowly(*given: Any) -> Any:
        time.sleep(0.2)
        return read_model(*given)

    monkeypatch.setattr(module, "read_model", slowly)
    A, b = family(n=8, count=1)
    result = nf.solve(A, b, model=Pupil(8, 1e-3))
    assert result.setup_seconds > 0.2
    assert result.seconds == result.setup_seconds + result.model_seconds + result.classical_seconds


def test_flexible_ends_within_n_proposals_while_all_directions_are_kept() -> None:
    n = POLICIES["flexible"].memory - 2
    generator = np.random.default_rng(0)
    Q = np.linalg.qr(generator.normal(size=(n, n)))[0]
    A, b = (Q * np.linspace(1, 30, n)) @ Q.T, generator.normal(size=n)

    def proposal(A: Any, b: Any) -> Any:  # another map at every call
        return np.linalg.solve(A, b) * (1 + 0.9 * generator.uniform(-1, 1, size=n))

    result = nf.solve((A + A.T) / 2, b, model=proposal, method="flexible", rtol=1e-12)
    assert result.converged and result.iterations <= n


def test_warm_start_uses_an_answer_only_if_it_lowers_the_residual() -> None:
    A, b = (v[0] for v in family())
    near = nf.solve(A, b, model=Pupil(12, 1e-4), method="warm-start", rtol=1e-8)
    assert near.model.accepted == near.model.applications == 1 and near.model.reduction < 1e-2
    flipped = nf.solve(A, b, model=MODELS["sign-flipped"], method="warm-start", rtol=1e-8)
    assert flipped.model.accepted == 0 and len(flipped.model.reasons) == 1
    assert np.array_equal(flipped.x, nf.cg(A, b, rtol=1e-8).x)


@pytest.mark.parametrize("exponents", [(0, 0), (9, -40), (-120, 80), (-7, -7)])
def test_a_trained_model_helps_at_any_scale_of_a_system_and_with_any_right_hand_side(
    exponents: tuple[int, int],
) -> None:
    A, b = family(n=20, count=8)
    for right in (b, np.random.default_rng(0).standard_normal(b.shape)):
        i, j = exponents
        result = nf.solve(A * 10.0**i, right * 10.0**j, model="cg-accelerated", rtol=1e-6)
        assert result.converged and np.all(result.iterations <= 3)


def test_smaller_systems_are_filled_up_and_larger_ones_shown_in_blocks() -> None:
    A, b = family(n=9)
    result = nf.solve(A, b, model=Pupil(14, 1e-3), rtol=1e-8)
    assert result.converged and np.all(result.model.accepted >= 2)
    grid, right, _ = problems.Poisson2D(n=100, sigma=0.0).sample(1, seed=0)
    for matrix in (grid[0].numpy(), sp.csr_array(grid[0].numpy())):
        pupil = Pupil(30, 1e-4)
        blocks = nf.solve(matrix, right[0].numpy(), model=pupil, method="flexible", rtol=1e-8)
        assert pupil.seen[0][0].shape == (4, 30, 30)  # 30 + 30 + 30 + the last 30, which overlap
        assert blocks.converged and blocks.model.accepted > 0
        assert blocks.iterations < nf.cg(matrix, right[0].numpy(), rtol=1e-8).iterations
        auto = nf.solve(matrix, right[0].numpy(), model=pupil)
        assert auto.converged and auto.model.applications == 0 and "30" in auto.model.reasons[0]


def test_systems_that_are_not_definite_are_never_called_converged_wrongly() -> None:
    n = 10
    for eigenvalues in ([1.0] * 9 + [-1.0], list(-np.arange(1.0, 11)), [0.0] + [1.0] * 9):
        A = problems.PrescribedSpectrum(n=n, eigenvalues=eigenvalues).sample(8, seed=1).A.numpy()
        b = np.random.default_rng(0).standard_normal((8, n))
        for method in POLICIES:
            result = nf.solve(A, b, model=Pupil(n, 1e-2), method=method, check="ignore")
            for k, status in enumerate(result.status):
                right = np.linalg.norm(b[k] - A[k] @ result.x[k]) <= 1e-5 * np.linalg.norm(b[k])
                assert right if status is nf.Status.CONVERGED else status.name in ("NOT_SPD", "STAGNATED", "MAXITER")


def test_a_function_is_shown_A_and_b_as_given() -> None:
    A, b = family(n=6, count=2)
    seen = []

    def look(A: Any, b: Any) -> Any:
        seen.append((A, b))
        return b

    nf.solve(A, b, model=look)
    nf.solve(torch.from_numpy(A[0]), torch.from_numpy(b[0]), model=look)
    assert np.array_equal(seen[0][0], A) and np.allclose(seen[0][1], b, rtol=1e-14)
    assert isinstance(seen[-1][0], torch.Tensor) and seen[-1][0].shape == (6, 6) and seen[-1][1].shape == (6,)


def test_an_untrained_model_is_refused_and_a_saved_one_is_loaded(tmp_path: Path) -> None:
    A, b = family(n=8)
    model = initial(nf.recipe("quickstart"))
    with torch.no_grad():
        model.probe_x.weight.normal_(generator=torch.Generator().manual_seed(0))
    model.save(tmp_path / "model")
    for given in (model, tmp_path / "model", str(tmp_path / "model")):
        result = nf.solve(A, b.astype(np.float32), model=given)
        assert result.converged and result.model.applications.min() == 1


def test_a_model_solves_where_the_family_of_its_training_is_not_installed() -> None:
    A, b = family(n=8)
    model = initial(nf.recipe("quickstart", T=4, d=16, heads=2))
    model.config = model.config.replace(family="nowhere:Family")
    result = nf.solve(A, b, model=model, method="flexible", rtol=1e-8)
    assert result.converged and result.model.applications.min() == 1


def test_a_model_that_fails_in_any_way_does_not_stop_the_solve() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError

    def raises(A: np.ndarray, b: np.ndarray) -> None:
        raise MuteError

    A, b = family(count=3)
    for model, reason in ((lambda A, b: 0.0, "it returned"), (raises, "it raised")):
        for system in ((A, b), (A[0], b[0]), (A[0], b.T)):
            result = nf.solve(*system, model=model, rtol=1e-8)
            assert result.converged and result.model.reasons[0].startswith(reason)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1e9])
def test_what_is_solved_without_a_model_is_solved_with_a_bad_one(share: float, columns: bool) -> None:
    rng = np.random.default_rng(5)
    A = rng.standard_normal((12, 12))
    for matrix in (A + A.T, A, -A @ A.T - np.eye(12)):
        b = rng.standard_normal((12, 2)) if columns else rng.standard_normal(12)
        assert nf.solve(matrix, b, rtol=1e-8).converged
        assert nf.solve(matrix, b, rtol=1e-8, model=lambda A, b: share * b).converged


def test_a_matrix_too_large_to_be_shown_is_solved_without_the_model() -> None:
    n = 1_000_000
    A, b = sp.diags_array(np.full(n, 2.0)).tocsr(), np.ones(n)
    result = nf.solve(A, b, model=lambda A, b: b)
    assert result.converged and "GB of memory" in result.model.reasons[0]
    with pytest.raises(OptionError, match="GB of memory"):
        nf.solve(A, b, model=lambda A, b: b, method="refine")


def test_a_linear_operator_is_solved_without_the_model() -> None:
    A, b = (v[0] for v in family())
    result = nf.solve(spla.aslinearoperator(A), b, model=Pupil(12, 1e-3))
    assert result.converged and result.model.applications == 0 and "LinearOperator" in result.model.reasons[0]
    with pytest.raises(OptionError, match="LinearOperator"):
        nf.solve(spla.aslinearoperator(A), b, model=Pupil(12, 1e-3), method="flexible")


@pytest.mark.parametrize("given", ["name", "model", "operator", "function"])
def test_a_model_that_is_refused_warns_at_the_line_of_the_user_and_leaves_the_answer_alone(given: str) -> None:
    A, b = (v[0] for v in family(n=24))
    model: Any = {"name": "cg-accelerated", "model": Pupil(12, 1e-3)}.get(given, lambda A, b: b)
    matrix = spla.aslinearoperator(A) if given in ("operator", "function") else A
    model = "guided-cg" if given == "operator" else model
    with pytest.warns(UnfamiliarWarning) as caught:
        result = nf.solve(matrix, b, model=model)
    assert caught[0].filename == __file__ and result.model.reasons
    assert result.model.applications == 0 and np.array_equal(result.x, nf.solve(matrix, b).x)
    many = nf.solve(np.stack([A, A]), np.stack([b, b]), model=Pupil(12, 1e-3))
    assert many.model.accepted.tolist() == [0, 0]


def test_a_model_that_is_refused_is_not_loaded() -> None:
    code = (
        "import sys, numpy as np, nlaformer as nf; nf.solve(np.eye(30), np.ones(30), model='cg-accelerated');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0


def test_several_right_hand_sides_and_preconditioners_go_with_a_model() -> None:
    A, b = family(n=10, count=7)
    result = nf.solve(A[0], b.T, model=Pupil(10, 1e-2), M="jacobi", rtol=1e-9)
    assert result.converged and result.model.accepted.shape == (7,)
    assert np.all(np.linalg.norm(b.T - A[0] @ result.x, axis=0) <= 1e-9 * np.linalg.norm(b, axis=-1))


@pytest.mark.parametrize("method", ["auto", "flexible"])
def test_the_bundled_model_needs_at_most_half_of_the_products_of_cg(method: str) -> None:
    A, b = family(n=20, count=24, seed=11)
    result, own = nf.solve(A, b, model="cg-accelerated", method=method, rtol=1e-6), nf.cg(A, b, rtol=1e-6)
    assert result.converged and result.matvecs.sum() <= own.matvecs.sum() / 2
    assert np.all(result.matvecs <= own.matvecs + 2)


@pytest.mark.parametrize(("name", "expected"), [("pcg-accelerated", 10), ("cg-imitation", 20), ("quickstart", 8)])
def test_a_model_trained_towards_the_solution_runs_ten_iterations_at_most(name: str, expected: int) -> None:
    assert iterations_per_call(nf.recipe(name)) == expected


def test_the_name_of_a_recipe_that_is_not_bundled_says_how_to_train_it() -> None:
    A, b = np.eye(2), np.ones(2)
    for given in (dict(model="guided-gcr"), dict(M="learned-preconditioner-diffusion")):
        (name,) = given.values()
        with pytest.raises(FileError, match=f"recipe.*nlaformer train {name}"):
            nf.solve(A, b, **given)
