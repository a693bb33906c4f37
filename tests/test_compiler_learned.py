"""A trained program as one transformer: its loop block holds trained and compiled layers side by side."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import problems
from nlaformer.errors import CompileError, OptionError
from nlaformer.learn.methods import GuidedCG, LearnedPCG
from nlaformer.learn.programs import TrainedProgram, initial
from tests.systems import ProposedCG

_SIZES: dict[str, Any] = {"n": 6, "d": 16, "heads": 2, "T": 4}


def _untrained(program: nf.Program, **changes: Any) -> TrainedProgram:
    """A network of a few rows with random weights: any of its directions will do for a comparison."""
    return initial(replace(nf.recipe("guided-quickstart"), **(_SIZES | changes)), program)


def _systems(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    A, b, x = problems.SPD(n=6, sigma=1.2).sample(count, seed=3)
    return A.double(), b.double(), x.double()


def _double(model: TrainedProgram) -> TrainedProgram:
    return copy.deepcopy(model).double()


@pytest.fixture(scope="module", params=[ProposedCG, GuidedCG])
def model(request: pytest.FixtureRequest) -> TrainedProgram:
    return _untrained(request.param())


@pytest.fixture(scope="module")
def compiled(model: TrainedProgram) -> nf.Algorithm:
    return nf.compile(model)


class TestRun:
    def test_iterates_are_the_models_own(self, model: TrainedProgram, compiled: nf.Algorithm) -> None:
        A, b, x = _systems(8)
        found, wanted = compiled.run(A, b, iterations=10), _double(model).run(A, b, iterations=10)
        deviation, error = (found.x - wanted.x).norm(dim=-1), (wanted.x - x[:, None]).norm(dim=-1)
        assert bool((deviation <= 1e-8 * x.norm(dim=-1)[:, None] + 1e-2 * error).all())
        assert bool((deviation <= 1e-9 * x.norm(dim=-1)[:, None]).all())
        for name in ("r", "d", "q"):
            largest = wanted.state[name].abs().amax((1, 2), keepdim=True)
            assert bool(((found.state[name] - wanted.state[name]).abs() <= 1e-8 * largest).all()), name

    def test_iterates_do_not_depend_on_the_scale_of_the_system(self, compiled: nf.Algorithm) -> None:
        A, b, _ = _systems(2)
        x, scaled = compiled.run(A, b, iterations=5).x, compiled.run(2.0**40 * A, 2.0**-30 * b, iterations=5).x
        assert torch.equal(scaled * 2.0**70, x)

    def test_another_start_is_the_models_own(self, model: TrainedProgram, compiled: nf.Algorithm) -> None:
        A, b, x = _systems(4)
        x0 = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found, wanted = compiled.run(A, b, x0, iterations=6), _double(model).run(A, b, x0, iterations=6)
        assert bool(((found.x - wanted.x).norm(dim=-1) <= 1e-9 * x.norm(dim=-1)[:, None]).all())

    def test_network_has_a_share_in_the_run(self, model: TrainedProgram, compiled: nf.Algorithm) -> None:
        A, b, _ = _systems(2)
        program = GuidedCG() if model.program.name == "GuidedCG" else ProposedCG()
        other = nf.compile(_untrained(program, seed=5), verify=False)
        assert not np.allclose(compiled.run(A, b, iterations=3).x, other.run(A, b, iterations=3).x, rtol=1e-3)

    def test_trained_layers_normalize_their_own_rows_alone(self, model: TrainedProgram, compiled: nf.Algorithm) -> None:
        (part,) = model.program.parts
        own = "memory" if part.memory else "hidden"
        rows = [compiled.layout[f"{part.name}.{name}"] for name in ("memory", own, own)]
        trained = [layer for layer in (*compiled.model.pre, *compiled.model.loop) if layer.rows is not None]
        assert [layer.rows for layer in trained] == [(each.start, each.stop) for each in rows]  # pre, loop, read

    def test_digits_of_what_a_network_makes_are_not_known(self, compiled: nf.Algorithm) -> None:
        run = compiled.run(*_systems(2)[:2], iterations=2)
        assert "digits" not in repr(run)
        with pytest.raises(OptionError, match="network"):
            _ = run.digits

    def test_saved_one_runs_as_before(self, compiled: nf.Algorithm, tmp_path: Path) -> None:
        A, b, _ = _systems(2)
        loaded = nf.load(compiled.save(tmp_path / "whole"))
        assert isinstance(loaded, nf.Algorithm)
        assert torch.equal(loaded.run(A, b, iterations=4).x, compiled.run(A, b, iterations=4).x)

    def test_first_step_in_float32_is_the_models_own(self, model: TrainedProgram) -> None:
        A, b, x = _systems(8)
        found = nf.compile(model, dtype="float32", verify=False).run(A.float(), b.float(), iterations=1)
        wanted = _double(model).run(A, b, iterations=1)
        assert bool(((found.x.double() - wanted.x).norm(dim=-1) <= 1e-2 * x.norm(dim=-1)[:, None]).all())


class TestVerification:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_systems_of_ones_own_are_reported_by_that_name(self, model: TrainedProgram, dtype: str) -> None:
        A, b = (tensor.to(getattr(torch, dtype)) for tensor in _systems(2)[:2])
        report = nf.compile(model, dtype=dtype, verify={"A": A, "b": b}).verification
        assert report is not None and set(report["systems"]) == {"your systems"}

    @pytest.mark.parametrize("factor", [50.0, 100.0])
    def test_run_that_parts_from_an_erratic_model_is_refused_or_named(self, factor: float) -> None:
        model = _untrained(GuidedCG())
        with torch.no_grad():
            for weight in model.networks["precondition"].parameters():
                weight.mul_(factor)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                compiled = nf.compile(model)
            except CompileError:
                return
        apart = {name: each for name, each in compiled.verification["systems"].items() if each["largest"] > 0.1}
        assert apart and warned
        assert all("parted" in each and f"not verified on {name}" in str(compiled) for name, each in apart.items())

    def test_asymmetry_is_named_where_a_run_fails(self, model: TrainedProgram, compiled: nf.Algorithm) -> None:
        A, b, _ = _systems(4)
        A = A + 0.3 * A.norm(dim=(-2, -1), keepdim=True) * torch.triu(torch.ones(6, 6, dtype=torch.float64), 1)
        for run in (compiled.run(A, b, iterations=20), model.run(A, b, iterations=20)):
            assert {*run.status} == {nf.RunStatus.NOT_SYMMETRIC}


class TestOtherParts:
    def test_unsymmetric_matrix_is_read_by_columns(self) -> None:
        class Proposed(nf.Program):
            """A descent on |r|^2 along what a network says, which sees a vector and a scalar."""

            propose = nf.Learned("vector", memory=True)

            def start(self, A: Any, b: Any, x0: Any) -> dict[str, Any]:
                return dict(x=x0, r=b - A @ x0)

            def step(self, A: Any, x: Any, r: Any) -> dict[str, Any]:
                p = A @ r
                c = self.propose(A, r / nf.norm(r), nf.dot(r, p) / (nf.norm(r) * nf.norm(p)))
                q = A @ c
                alpha = nf.dot(r, q) / nf.dot(q, q)
                return dict(x=x + alpha * c, r=r - alpha * q)

        model = _untrained(Proposed())
        generator = torch.Generator().manual_seed(2)
        A = torch.randn(4, 6, 6, generator=generator, dtype=torch.float64) + 3 * torch.eye(6)
        b = torch.randn(4, 6, generator=generator, dtype=torch.float64)
        found, wanted = nf.compile(model, verify=False).run(A, b, iterations=6), _double(model).run(A, b, iterations=6)
        assert bool(((found.x - wanted.x).norm(dim=-1) <= 1e-8 * wanted.x.norm(dim=-1).amax()).all())

    def test_part_in_start_is_the_models_own(self) -> None:
        class Scaled(nf.Program):
            """Preconditioned Richardson: a network writes the diagonal once, and sees b."""

            positive_definite = True
            scale = nf.Learned("positive diagonal")

            def start(self, A: Any, b: Any, x0: Any) -> dict[str, Any]:
                return dict(x=x0, D=self.scale(A, b / nf.norm(b)))

            def step(self, A: Any, b: Any, x: Any, D: Any) -> dict[str, Any]:
                r = b - A @ x
                c = D * r
                return dict(x=x + (nf.dot(r, c) / nf.dot(c, A @ c)) * c, D=D)

        model, (A, b, x) = _untrained(Scaled()), _systems(4)
        found, wanted = nf.compile(model, verify=False).run(A, b, iterations=6), _double(model).run(A, b, iterations=6)
        assert bool(((found.x - wanted.x).norm(dim=-1) <= 1e-9 * x.norm(dim=-1)[:, None]).all())

    def test_part_without_weights_is_refused(self) -> None:
        class Damped(nf.Program):
            damping = nf.Learned("positive scalar")

            def start(self, A: Any, b: Any, x0: Any) -> dict[str, Any]:
                return dict(x=x0, r=b - A @ x0)

            def step(self, A: Any, b: Any, x: Any, r: Any) -> dict[str, Any]:
                return dict(x=x + self.damping(A, r / nf.norm(r)) * r * (nf.norm(b) / nf.norm(A @ b)), r=b - A @ x)

        with pytest.raises(CompileError, match="damping"):
            nf.compile(_untrained(Damped()))
        with pytest.raises(CompileError, match="root"):  # M's column has the unit of a root of A
            nf.compile(_untrained(LearnedPCG()))

    def test_program_that_is_not_trained_is_refused(self) -> None:
        with pytest.raises(CompileError, match="precondition"):
            nf.compile(GuidedCG(), n=6)

    def test_another_size_is_refused(self) -> None:
        with pytest.raises(OptionError, match="n=6"):
            nf.compile(_untrained(ProposedCG()), n=8)
