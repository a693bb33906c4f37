"""nf.solve guided by a network, or with a learned preconditioner: any network costs little, a good one saves work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
import torch

import nlaformer as nf
from benchmarks import foreign
from benchmarks.outlook_columns import Exact
from nlaformer import problems
from nlaformer.errors import OptionError, UnfamiliarWarning, UnknownNameError
from nlaformer.learn.methods import GuidedCG, LearnedPCG
from nlaformer.learn.programs import TrainedProgram, initial
from nlaformer.solvers.blocks import Blocks
from nlaformer.solvers.learned import DiagonalPlusRank
from nlaformer.solvers.parse import read
from nlaformer.solvers.preconditioners import read_preconditioner

FAMILIES = problems.unlike(20)


class Speaker:
    """Stands in for a program whose network proposes directions: the solution with an error, or nonsense."""

    def __init__(self, n: int, kind: str | float) -> None:
        self.config, self.kind = SimpleNamespace(n=n), kind
        self.generator = torch.Generator().manual_seed(0)

    def begin(self, A: torch.Tensor) -> torch.Tensor:
        assert A.shape[-1] <= self.config.n
        return A

    def propose(self, A: torch.Tensor, memory: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert torch.all((r.norm(dim=-1) - 1).abs() < 1e-9) or bool((r == 0).all(-1).any())
        noise = torch.randn(r.shape, generator=self.generator, dtype=r.dtype)
        if isinstance(self.kind, str):
            c = {"random": noise, "constant": torch.ones_like(r), "nan": r * torch.nan, "zero": 0 * r}[self.kind]
        else:
            c = torch.linalg.solve(A, r)
            c = c + self.kind * c.norm(dim=-1, keepdim=True) * noise / r.shape[-1] ** 0.5
        return c * 1e3, memory  # only its direction counts


class Writer:
    """Stands in for a program whose network writes a preconditioner."""

    def __init__(self, n: int, spoil: Any = lambda D, U: (D, U)) -> None:
        self.config, self.spoil = SimpleNamespace(n=n), spoil

    def preconditioner(self, A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = torch.linalg.eigh(A)  # the diagonal, and the largest eigenvector
        U = vectors[..., -1:] * values[..., -1:, None].sqrt()
        rest = A.diagonal(dim1=-2, dim2=-1) - U[..., 0].square()
        return self.spoil(1 / rest.clamp(min=1e-3), U)


def sampled(family: Any, count: int = 32, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    A, b, _ = family.sample(count, seed)
    return A.numpy(), b.numpy()


def right(A: np.ndarray, b: np.ndarray, result: nf.SolveResult, rtol: float) -> bool:
    errors = np.linalg.norm(b - (A @ result.x[..., None])[..., 0], axis=-1) / np.linalg.norm(b, axis=-1)
    return result.converged and bool(np.all(errors <= 1.01 * rtol))


@pytest.mark.parametrize("n", [64, 256])
def test_a_network_that_is_steady_but_slow_is_not_kept_where_cg_is_fast(n: int) -> None:
    draws = np.random.default_rng(1)
    Q, _ = np.linalg.qr(draws.standard_normal((4, n, n)))
    A, b = (Q * np.linspace(1.0, 2.0, n)) @ Q.swapaxes(-1, -2), draws.standard_normal((4, n))
    plain = nf.solve(A, b, rtol=1e-9)
    for noise in (0.8, 1.0, 1.5):
        guided = nf.solve(A, b, rtol=1e-9, model=Speaker(n, noise))
        assert guided.converged and guided.matvecs.mean() < 1.5 * plain.matvecs.mean()


def broken(program: Any, how: str) -> TrainedProgram:
    model = initial(nf.recipe("quickstart", n=20, d=16, heads=2), program)
    for parameter in model.parameters():
        if how == "nan":
            parameter.data.fill_(torch.nan)
        elif how == "constant":
            parameter.data.fill_(0.3)
        elif how == "huge":
            parameter.data.mul_(1e6)
    return model


@pytest.mark.parametrize("program", [GuidedCG(), LearnedPCG()], ids=["guided", "preconditioner"])
@pytest.mark.parametrize("how", ["random", "nan", "constant", "huge"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_network_keeps_a_system_from_its_tolerance_or_costs_a_quarter_more(name: str, how: str, program: Any):
    found = foreign.measure(broken(program, how), name, FAMILIES[name], count=32, seed=9_000_000)
    assert found.failures == 0 and found.more <= 0.25, str(found)


@pytest.mark.parametrize("kind", ["random", "constant", "nan", "zero", 0.1, 0.3, 1.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_switch_bounds_the_cost_of_directions_from_exact_to_useless(name: str, kind: str | float):
    found = foreign.measure(Speaker(20, kind), name, FAMILIES[name], count=64, seed=9_000_000)
    assert found.failures == 0 and found.more <= 0.25, str(found)
    if kind == 0.1:
        assert found.more < -0.3 and found.by_model == 1.0


class Useless(Exact):
    """Random columns in the place of eigenvectors."""

    def preconditioner(self, A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        D, U = super().preconditioner(A)
        draw = torch.Generator().manual_seed(0)
        return D, 3 * D.sqrt()[..., None] * torch.randn(U.shape, generator=draw, dtype=U.dtype)


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_on_a_large_grid_a_good_preconditioner_goes_on_and_a_bad_one_costs_little(sigma: float):
    A, b = sampled(problems.Poisson2D(n=256, sigma=sigma), count=4)
    cg = nf.cg(A, b, rtol=1e-9)
    alone = nf.solve(A, b, M=Exact(256, 16), rtol=1e-9, switch=False)
    good, bad = (nf.solve(A, b, M=kind(256, 16), rtol=1e-9) for kind in (Exact, Useless))
    assert right(A, b, good, 1e-9) and right(A, b, bad, 1e-9)
    assert np.all(good.matvecs <= 1.1 * alone.matvecs) and np.all(good.matvecs <= 0.6 * cg.matvecs)
    assert np.all(bad.matvecs <= 1.25 * cg.matvecs)


def test_the_opposite_direction_gives_the_same_iterates_bit_for_bit():
    A, b = sampled(problems.SPD(n=20))
    speaker, opposite = Speaker(20, 0.3), Speaker(20, 0.3)
    propose = opposite.propose
    opposite.propose = lambda A, memory, r: (-propose(A, memory, r)[0], memory)  # type: ignore[method-assign]
    one, other = (nf.solve(A, b, model=model, rtol=1e-10) for model in (speaker, opposite))
    assert np.array_equal(one.x, other.x) and np.array_equal(one.matvecs, other.matvecs)


def test_without_the_switch_the_network_makes_all_steps_and_the_answer_is_still_certified():
    A, b = sampled(problems.TwoClusters(n=20))
    result = nf.solve(A, b, model=Speaker(20, 1.0), rtol=1e-10, switch=False)
    watched = nf.solve(A, b, model=Speaker(20, 1.0), rtol=1e-10)
    assert right(A, b, result, 1e-10) and result.model.accepted.mean() > 2 * watched.model.accepted.mean()
    assert result.matvecs.mean() > watched.matvecs.mean()


def test_a_network_that_was_good_and_stalls_keeps_what_it_gained():
    A, b = sampled(problems.SPD(n=20))
    speaker, asked = Speaker(20, 0.1), []
    propose = speaker.propose

    def stalling(A: torch.Tensor, memory: torch.Tensor, r: torch.Tensor) -> Any:
        asked.append(len(r))
        return propose(A, memory, r) if len(asked) < 6 else (torch.ones_like(r), memory)

    speaker.propose = stalling  # type: ignore[method-assign]
    result, own = nf.solve(A, b, model=speaker, rtol=1e-10), nf.cg(A, b, rtol=1e-10)
    assert right(A, b, result, 1e-10) and result.matvecs.mean() < own.matvecs.mean()
    assert result.model.reduction.max() < 1e-3 and "then conjugate gradients" in result.method


@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_systems_no_larger_than_the_model_are_shown_whole(n: int):
    A, b = sampled(problems.SPD(n=n))
    result = nf.solve(A, b, model=Speaker(20, 0.05), rtol=1e-10)
    assert right(A, b, result, 1e-10) and result.model.accepted.min() >= 1
    model = initial(nf.recipe("quickstart", n=20, d=16, heads=2), GuidedCG())
    assert right(A, b, nf.solve(A, b, model=model, rtol=1e-10), 1e-10)


def test_larger_systems_are_shown_in_blocks_dense_or_sparse():
    grid, right_hand, _ = problems.Poisson2D(n=196).sample(1, seed=0)
    dense, b = grid[0].numpy(), right_hand[0].numpy()
    own = nf.cg(dense, b, rtol=1e-10)
    for A in (dense, sp.csr_array(dense), sp.coo_array(dense)):
        result = nf.solve(A, b, model=Speaker(20, 0.01), method="guided", rtol=1e-10)
        assert result.converged and result.model.accepted > 10
        assert result.iterations < 0.9 * own.iterations
        auto = nf.solve(A, b, model=Speaker(20, 0.01), rtol=1e-10)
        assert auto.model.applications == 0 and "20" in auto.model.reasons[0]
    for program in (GuidedCG(), LearnedPCG()):
        model = initial(nf.recipe("quickstart", n=20, d=16, heads=2), program)
        assert nf.solve(sp.csr_array(dense), b, model=model, method="guided", rtol=1e-10).converged


def test_blocks_of_very_different_scales_are_brought_to_their_own_length():
    scales = np.repeat([1e-6, 1.0, 1e6], 10)
    block = np.kron(np.eye(3), sampled(problems.SPD(n=10), 1)[0][0])
    A, b = block * np.sqrt(scales[:, None] * scales), np.sqrt(scales)
    result = nf.solve(A, b, model=Speaker(10, 0.0), method="guided", rtol=1e-8)
    assert result.converged and result.iterations <= 2


def test_batches_columns_precisions_and_callbacks_go_with_a_guided_solve():
    A, b = sampled(problems.SPD(n=12), count=6)
    columns = nf.solve(A[0], b.T, model=Speaker(12, 0.05), rtol=1e-9)
    assert columns.x.shape == (12, 6) and columns.model.accepted.shape == (6,) and columns.converged
    shown: list[np.ndarray] = []
    single = nf.solve(A[0].astype(np.float32), b[0].astype(np.float32), model=Speaker(12, 0.05), callback=shown.append)
    assert single.x.dtype == np.float32 and single.converged and len(shown) == single.iterations
    assert np.array_equal(shown[-1], single.x)
    tensors = nf.solve(torch.from_numpy(A).reshape(2, 3, 12, 12), torch.from_numpy(b).reshape(2, 3, 12), M=Writer(12))
    assert isinstance(tensors.x, torch.Tensor) and tensors.x.shape == (2, 3, 12) and tensors.converged
    warm = nf.solve(A, b, model=Speaker(12, 0.05), x0=nf.cg(A, b, rtol=1e-3).x, rtol=1e-10)
    assert right(A, b, warm, 1e-10) and warm.iterations.mean() < 10


def test_a_learned_preconditioner_goes_with_columns_and_with_another_model():
    A, b = sampled(problems.SPD(n=12), count=6)
    columns = nf.pcg(A[0], b.T, M=Writer(12), rtol=1e-9)
    assert columns.x.shape == (12, 6) and columns.converged and columns.model.accepted.shape == (6,)
    for model in (lambda A, b: np.linalg.solve(A, b[..., None])[..., 0] * 1.2, Speaker(12, "random")):
        both = nf.solve(A, b, model=model, M=Writer(12), rtol=1e-9)
        assert right(A, b, both, 1e-9) and np.all(both.model.accepted >= 1)
    for wrong in (nf.load("cg-accelerated"), "cg-accelerated", nf.algorithm("cg", n=12)):
        with pytest.raises(OptionError, match="model="):
            nf.solve(A, b, M=wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("program", [GuidedCG(), LearnedPCG()], ids=["guided", "preconditioner"])
@pytest.mark.parametrize(("model_on", "system_on"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")])
def test_model_and_system_may_be_on_any_device(program: Any, model_on: str, system_on: str):
    A, b, _ = problems.SPD(n=20).sample(16, 0, device=system_on)
    model = initial(nf.recipe("quickstart", n=20, d=16, heads=2), program).to(model_on)
    result = nf.solve(A, b, model=model, rtol=1e-10)
    assert result.converged and result.x.device.type == system_on


def test_a_learned_preconditioner_saves_products_and_leaves_the_trajectory_of_pcg():
    A, b = sampled(problems.SPD(n=20))
    own = nf.cg(A, b, rtol=1e-10)
    for result in (nf.solve(A, b, M=Writer(20), rtol=1e-10), nf.pcg(A, b, M=Writer(20), rtol=1e-10)):
        assert right(A, b, result, 1e-10) and result.matvecs.mean() < 0.9 * own.matvecs.mean()
    D, U = (v.numpy() for v in Writer(20).preconditioner(torch.from_numpy(A[0])))
    M = np.linalg.inv(np.diag(1 / D) + U @ U.T)
    theirs = nf.pcg(A[0], b[0], M=(M + M.T) / 2, rtol=1e-6, trajectory=True)
    ours = nf.pcg(A[0], b[0], M=Writer(20), rtol=1e-6, trajectory=True, switch=False)
    assert ours.trajectory.x.shape == theirs.trajectory.x.shape
    for name in ("x", "r", "d"):
        mine, wanted = getattr(ours.trajectory, name), getattr(theirs.trajectory, name)
        assert np.allclose(mine[:-1], wanted[:-1], rtol=1e-5, atol=1e-7 * np.abs(wanted).max()), name


@pytest.mark.parametrize("spoil", [
    lambda D, U: (D * torch.nan, U), lambda D, U: (-D, U), lambda D, U: (D, U * torch.inf), lambda D, U: (0 * D, U),
    lambda D, U: (D * torch.inf, U), lambda D, U: (D, 1e200 * U), lambda D, U: (D, 1e8 * U),
    lambda D, U: (1e300 * D, U),
])  # fmt: skip
def test_a_preconditioner_is_positive_definite_whatever_the_network_says(spoil: Any):
    A, b = sampled(problems.Wishart(n=9), count=4)
    for size in (4, 9, 12):  # blocks that overlap, the size itself, larger
        problem = read(A, b, None, 1e-8, 0.0, modelled=True)
        M = read_preconditioner(Writer(size, spoil), problem)
        assert isinstance(M, DiagonalPlusRank)
        unit = torch.eye(9, dtype=torch.float64)
        for k in range(4):
            dense = torch.cat([M.take(np.array([k])).apply(e[None]) for e in unit])
            assert torch.allclose(dense, dense.mT, rtol=1e-12, atol=0) and torch.linalg.eigvalsh(dense).min() > 0
        assert right(A, b, nf.solve(A, b, M=Writer(size, spoil), rtol=1e-8), 1e-8)


def test_a_preconditioner_on_blocks_is_the_sum_of_its_blocks():
    A, b = sampled(problems.SPD(n=10), count=1)
    problem = read(A, b, None, 1e-8, 0.0, modelled=True)
    M = DiagonalPlusRank.learned(Writer(10), problem)
    D, U = Writer(10).preconditioner(torch.from_numpy(problem.A.blocks(M.blocks.index)[0]))
    wanted = torch.linalg.inv(torch.diag(1 / D[0]) + U[0] @ U[0].mT)
    found = torch.cat([M.apply(e[None]) for e in torch.eye(10, dtype=torch.float64)])
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12 * float(wanted.abs().max()))
    halves = replace(problem, b=problem.b)
    assert Blocks.of(halves, 4).index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [6, 7, 8, 9]]


def test_the_plain_arrays_of_a_model_are_the_preconditioner_that_the_solver_uses():
    A, b = sampled(problems.SPD(n=20), count=3)
    model = initial(nf.recipe("quickstart", n=20, d=16, heads=2), LearnedPCG())
    D, U = model.preconditioner(A)
    assert isinstance(D, np.ndarray) and D.shape == (3, 20) and U.shape == (3, 20, 1) and D.min() > 0
    M = np.linalg.inv(np.stack([np.diag(1 / d) for d in D]) + U @ U.transpose(0, 2, 1))
    theirs = nf.pcg(A, b, M=(M + M.transpose(0, 2, 1)) / 2, rtol=1e-9)
    ours = nf.pcg(A, b, M=model, rtol=1e-9, switch=False)
    assert ours.converged and np.all(np.abs(ours.iterations - theirs.iterations) <= 1)


def test_saved_programs_are_taken_by_their_folder_as_model_and_as_M(tmp_path: Path):
    A, b = sampled(problems.SPD(n=20), count=4)
    config = nf.recipe("quickstart", n=20, d=16, heads=2)
    guided = initial(config, GuidedCG()).save(tmp_path / "guided")
    learned = initial(config, LearnedPCG()).save(tmp_path / "learned")
    assert nf.solve(A, b, model=guided).model.applications.min() > 0
    for result in (nf.solve(A, b, M=learned), nf.pcg(A, b, M=str(learned)), nf.solve(A, b, model=learned)):
        assert result.converged and result.model.applications.min() > 0
    with pytest.raises(OptionError, match="model="):
        nf.solve(A, b, M=guided)
    with pytest.raises(UnknownNameError, match="jacobi"):
        nf.solve(A, b, M="jacoby")


def test_a_result_says_what_ran_and_not_what_was_planned():
    A, b = sampled(problems.SPD(n=12))
    ran = {
        name: nf.solve(A, b, model=model, rtol=1e-8, **options).method
        for name, model, options in (
            ("network", Speaker(12, 0.01), {}),
            ("useless", Speaker(12, "nan"), {}),
            ("refused", lambda A, b: b, {}),
            ("half", Speaker(12, "random"), {}),
            ("M", None, {"M": Writer(12)}),
        )
    }
    assert "then" not in ran["network"] and "guided" in ran["network"] and "preconditioned" in ran["M"]
    assert ran["useless"].startswith("conjugate gradients") and ran["refused"].startswith("conjugate gradients")
    assert "guided" in ran["half"] and ran["half"].endswith("then conjugate gradients")


@pytest.mark.parametrize("name", ["cg", "pcg"])
def test_a_compiled_algorithm_is_a_model(name: str):
    A, b = sampled(problems.SPD(n=6, sigma=(0.5,)), count=3)
    for n in (6, 8):
        result = nf.solve(A, b, model=nf.algorithm(name, n=n), rtol=1e-8)
        assert right(A, b, result, 1e-8) and np.all(result.model.accepted >= 1) and np.all(result.iterations <= 3)
    with pytest.raises(OptionError, match="Power"):
        nf.solve(A, b, model=nf.algorithm("power", n=6))


def test_methods_and_models_that_do_not_go_together_are_refused():
    A, b = (v[0] for v in sampled(problems.SPD(n=8), 1))
    for options in (
        {"method": "guided"},
        {"method": "guided", "M": "jacobi"},
        {"method": "flexible", "model": Speaker(8, 0.1)},
        {"method": "warm-start", "model": Writer(8)},
        {"method": "guided", "model": lambda A, b: b},
        {"method": "guided", "model": Speaker(8, 0.1), "A": spla.aslinearoperator(A)},
        {"M": Writer(8), "A": spla.aslinearoperator(A)},
        {"M": Speaker(8, 0.1)},
    ):
        given = dict(options)
        with pytest.raises(OptionError):
            nf.solve(given.pop("A", A), b, **given)
    assert nf.solve(spla.aslinearoperator(A), b, model=Speaker(8, 0.1)).converged


def test_systems_that_are_not_definite_are_not_called_converged_wrongly_by_guided_solves():
    for eigenvalues in ([1.0] * 9 + [-1.0], list(-np.arange(1.0, 11)), [0.0] + [1.0] * 9):
        A, _ = sampled(problems.PrescribedSpectrum(n=10, eigenvalues=eigenvalues), 8)
        b = np.random.default_rng(0).standard_normal((8, 10))
        for options in ({"model": Speaker(10, 0.1)}, {"M": Writer(10)}, {"model": Speaker(10, "random")}):
            result = nf.solve(A, b, check="ignore", **options)
            for k, status in enumerate(result.status):
                holds = np.linalg.norm(b[k] - A[k] @ result.x[k]) <= 1e-5 * np.linalg.norm(b[k])
                assert holds if status is nf.Status.CONVERGED else status.name in ("NOT_SPD", "STAGNATED", "MAXITER")


def test_a_matrix_that_is_not_definite_gets_no_learned_preconditioner_and_spoils_no_other():
    A, b = sampled(problems.SPD(n=20), count=2)
    model = initial(nf.recipe("quickstart", n=20, d=16, heads=2), LearnedPCG())
    with pytest.warns(UnfamiliarWarning, match="diagonal") as caught:
        model.preconditioner(-A)
    assert caught[0].filename == __file__
    result = nf.solve(np.stack([A[0], -A[1]]), b, M=model, rtol=1e-8, check="ignore")
    assert [status.name for status in result.status] == ["CONVERGED", "NOT_SPD"]


def test_rounding_errors_along_the_directions_of_a_model_do_not_grow() -> None:
    rng, n = np.random.default_rng(1), 10
    A, b = [], []
    for _ in range(16):
        d, G = 10 ** rng.uniform(-3, 3, n), rng.standard_normal((n, n))
        A.append(d[:, None] * (G @ G.T / n + 0.1 * np.eye(n)) * d)
        b.append(rng.standard_normal(n))
    systems = (np.array(A) + np.array(A).mT) / 2, np.array(b)
    guided, plain = nf.solve(*systems, model="guided-cg", rtol=1e-8), nf.cg(*systems, rtol=1e-8)
    assert guided.converged and plain.converged
    assert (np.asarray(guided.iterations) <= np.asarray(plain.iterations)).all()
