"""Problems beyond symmetric systems: their families, the classical methods they face, and the methods that learn."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import root
from scipy.sparse import linalg
from typer.testing import CliRunner

import nlaformer as nf
from benchmarks import outlook, outlook_columns, outlook_directions, outlook_page, outlook_solve
from nlaformer import problems
from nlaformer.cli import app
from nlaformer.errors import DTypeError, OptionError, ShapeError
from nlaformer.learn import compare
from nlaformer.learn.cuda.compiled import CompiledEngine
from nlaformer.learn.data import Stream
from nlaformer.learn.engine import PlainEngine
from nlaformer.learn.models import untrained
from nlaformer.learn.stacks import check_stack
from nlaformer.problems.eigen import SmallestEigenpair
from nlaformer.problems.least_squares import LeastSquares, cgls, lsqr
from nlaformer.problems.nonlinear import Cubic
from nlaformer.problems.nonsymmetric import Nonsymmetric, bicgstab, gmres
from nlaformer.problems.preconditioners import incomplete_cholesky
from tests.training import equal, final, imported, interrupt_at, train

ROOT = Path(__file__).parent.parent

SIZES = {"n": 4, "T": 3, "d": 8, "heads": 2, "batch": 4, "steps": 8, "warmup": 2, "chunk": 4}
RECIPES = ("guided-gcr", "guided-nonlinear", "guided-cgls", "guided-eigen")
DIFFUSION = ("guided-diffusion", "learned-preconditioner-diffusion")
_COARSE = {"rank": 2, "coarse": True}
FEW_COLUMNS = {  # the recipes' own kinds of parts, for a handful of unknowns
    "guided-gcr": {"rank": 2},
    "guided-cgls": _COARSE | {"memory": True},
    "guided-eigen": {"rank": 2, "memory": True},
    "guided-diffusion": {"rank": 2},
    "learned-preconditioner-diffusion": _COARSE,
}
FAMILIES = (Nonsymmetric(n=4), Cubic(n=4), LeastSquares(n=4), SmallestEigenpair(n=4))
KINDS = pytest.mark.parametrize("recipe", RECIPES)


def small(recipe, **settings):
    """A recipe for a handful of unknowns."""
    return nf.recipe(recipe, **(SIZES | {"program_options": FEW_COLUMNS.get(recipe, {})} | settings))


def energy(A, b, x):
    return ((x @ A.mT) * x).sum(-1) / 2 + (x**4).sum(-1) / 4 - (b[:, None] * x).sum(-1)


# The rivals -------------------------------------------------------------------------------------------------------


def test_gmres_has_scipys_iterates():
    A, b, _ = Nonsymmetric(n=7).sample(2, seed=3)
    found = gmres(A, b, 10).numpy()
    for k in range(2):
        for t in (1, 3, 6, 7):
            theirs, _ = linalg.gmres(A[k].numpy(), b[k].numpy(), rtol=0, atol=0, restart=t, maxiter=1)
            np.testing.assert_allclose(found[k, t], theirs, atol=1e-12)
        np.testing.assert_allclose(found[k, 8:], np.tile(found[k, 7], (3, 1)), atol=1e-12)


def test_bicgstab_has_scipys_iterates_after_every_second_product():
    A, b, _ = Nonsymmetric(n=7).sample(1, seed=3)
    found = bicgstab(A, b, 6)[0].numpy()
    for steps in (1, 2, 3):
        theirs, _ = linalg.bicgstab(A[0].numpy(), b[0].numpy(), rtol=0, atol=0, maxiter=steps)
        np.testing.assert_allclose(found[2 * steps], theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", list(Cubic().rivals()))
def test_rivals_of_the_nonlinear_task_lower_its_energy_to_the_root_that_scipy_finds(name):
    A, b, _ = Cubic(n=5).sample(4, seed=2)
    found = Cubic(n=5).rivals()[name](A, b, 60)
    theirs = [root(lambda u, k=k: A[k].numpy() @ u + u**3 - b[k].numpy(), np.zeros(5), tol=1e-13).x for k in range(4)]
    np.testing.assert_allclose(found[:, -1].numpy(), theirs, atol=1e-8)
    if name != "Newton-CG":  # whose inner iterates are no minima along a line
        assert (energy(A, b, found).diff(dim=-1) <= 1e-12).all()


def test_cgls_and_lsqr_have_scipys_iterates():
    A, b, x = LeastSquares(n=9, columns=4).sample(2, seed=3)
    for method in (cgls, lsqr):
        found = method(A, b, 6).numpy()
        for k, t in ((0, 1), (1, 2), (0, 3), (1, 4)):
            theirs = linalg.lsqr(A[k].numpy(), b[k].numpy(), atol=0, btol=0, conlim=0, iter_lim=t)[0]
            np.testing.assert_allclose(found[k, t], theirs, atol=1e-10)
        np.testing.assert_allclose(found[:, -1], x.numpy(), atol=1e-9)


@pytest.mark.parametrize("name", list(SmallestEigenpair().rivals()))
def test_rivals_of_the_eigenpair_find_it_and_lanczos_is_the_best_of_its_krylov_space(name):
    family = SmallestEigenpair(n=6)
    systems = family.sample(16, seed=0)
    found = family.rivals()[name](systems.A, systems.b, 60)
    errors = family.error(found, systems)
    assert errors[:, -1].median() < 1e-10 and (errors.diff(dim=-1) <= 1e-12).all()
    if name == "Lanczos":
        assert errors[:, 6].max() < 1e-15  # the whole space
        A, b = systems.A[0].numpy(), systems.b[0].numpy()
        basis = np.linalg.qr(np.stack([b, A @ b, A @ A @ b], 1))[0]
        x = found[0, 2].numpy()
        assert x @ A @ x == pytest.approx(np.linalg.eigvalsh(basis.T @ A @ basis)[0], rel=1e-10)


def test_the_error_of_an_eigenvector_is_the_relative_gap_of_its_rayleigh_quotient():
    family = SmallestEigenpair(n=5)
    systems = family.sample(8, seed=2)
    x = torch.randn(8, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rho = ((x @ systems.A) * x).sum(-1) / (x * x).sum(-1)
    smallest = torch.linalg.eigvalsh(systems.A)[:, :1]
    torch.testing.assert_close(family.error(x, systems), (rho - smallest) / rho)
    assert (family.error(torch.zeros_like(x), systems) == 1).all()


def test_incomplete_factors_have_the_pattern_of_the_matrix_and_agree_with_it_there():
    A = problems.Poisson2D(n=16).sample(3, seed=0).A
    L = incomplete_cholesky(A)
    pattern = A != 0
    assert (L[~pattern] == 0).all() and (L.triu(1) == 0).all()
    torch.testing.assert_close((L @ L.mT)[pattern], A[pattern])
    assert not torch.allclose(L @ L.mT, A)


@pytest.mark.parametrize("name", list(problems.Poisson2D().rivals()))
def test_rivals_on_grids_find_the_solution(name):
    family = problems.Poisson2D(n=16)
    systems = family.sample(3, seed=0)
    errors = family.error(family.rivals()[name](systems.A, systems.b, 30), systems)
    assert errors[:, -1].max() < 1e-15
    if name == "PCG, IC(0)":
        assert errors[:, 5].mean() < family.error(family.rivals()["PCG, Jacobi"](*systems[:2], 5), systems)[:, 5].mean()


@pytest.mark.parametrize("family", FAMILIES[:3], ids=lambda family: family.name)
def test_rivals_stay_at_the_answer_of_a_solved_problem(family):
    A = family.sample(3, seed=0).A
    for name, rival in family.rivals().items():
        assert (rival(A, torch.zeros(3, 4), 9) == 0).all(), name


# The methods ------------------------------------------------------------------------------------------------------


def loud(recipe, scale, **settings):
    """An untrained model of six unknowns whose proposals are of another size, or nothing at all."""
    model = untrained(small(recipe, **({"n": 6} | settings)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("scale", [1.0, 30.0, 0.0, float("nan")])
def test_no_step_of_guided_gcr_increases_the_residual(scale, rank):
    A, b, _ = Nonsymmetric(n=6).sample(64, seed=1)
    run = loud("guided-gcr", scale, program_options={"rank": rank}).run(A, b, iterations=30)
    norms = run.residual_norms
    assert (norms.diff(dim=-1) <= 1e-12 * norms[:, :1]).all() and run.x.isfinite().all()
    torch.testing.assert_close(run.state["r"], b[:, None] - run.x @ A.mT, atol=1e-10, rtol=0)
    assert scale != 1.0 or (norms[:, -1] / norms[:, 0]).median() < 0.7  # the proposals do move it


@pytest.mark.parametrize("scale", [1.0, 30.0, 0.0, float("nan")])
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_no_step_of_the_guided_nonlinear_method_increases_the_energy(scale, size):
    A, b, _ = Cubic(n=6, scale=size).sample(64, seed=1)
    x = loud("guided-nonlinear", scale).run(A, b, iterations=30).x
    values = energy(A, b, x)
    assert (values.diff(dim=-1) <= 1e-12 * values.abs().amax(-1, keepdim=True)).all() and x.isfinite().all()


def test_the_search_of_the_guided_nonlinear_method_ends_where_the_derivative_vanishes():
    A, b, _ = Cubic(n=6, scale=3.0).sample(64, seed=1)
    run = loud("guided-nonlinear", 1.0).run(A, b, iterations=20)
    r = b[:, None] - run.x @ A.mT - run.x**3
    d = run.state["d"]
    slope = (r * d).sum(-1)[:, 1:].abs() / (r.norm(dim=-1) * d.norm(dim=-1))[:, 1:]
    begun = (r.norm(dim=-1) > 1e-5 * b.norm(dim=-1, keepdim=True))[:, 1:]  # later, r is rounding
    assert begun.any() and slope[begun].max() < 1e-9


@pytest.mark.parametrize("scale", [1.0, 30.0, 0.0, float("nan")])
def test_no_step_of_guided_cgls_increases_the_residual_and_padding_stays_zero(scale):
    A, b, _ = LeastSquares(n=6, columns=4).sample(64, seed=1)
    model = loud("guided-cgls", scale)
    run = model.run(A, b, iterations=30)
    norms = (b[:, None] - run.x @ A.mT).norm(dim=-1)
    assert (norms.diff(dim=-1) <= 1e-12 * norms[:, :1]).all() and run.x.isfinite().all()
    assert (run.x[..., 4:] == 0).all()
    torch.testing.assert_close(model.run(2.0**20 * A, b, iterations=5).x * 2.0**20, run.x[:, :6])


@pytest.mark.parametrize("scale", [1.0, 30.0, 0.0, float("nan")])
def test_no_step_of_the_guided_eigenpair_increases_the_rayleigh_quotient(scale):
    family = SmallestEigenpair(n=6)
    systems = family.sample(64, seed=1)
    x = loud("guided-eigen", scale).run(systems.A, systems.b, iterations=30).x
    errors = family.error(x, systems)
    assert (errors.diff(dim=-1) <= 1e-12).all() and x.isfinite().all()
    torch.testing.assert_close(x.norm(dim=-1), torch.ones_like(x[..., 0]))


def test_the_oracle_of_the_eigenpair_takes_the_steps_of_the_program():
    A, b, _ = SmallestEigenpair(n=8).sample(16, seed=1)
    run = loud("guided-eigen", 0.0, n=8).run(A, b, iterations=6)  # a network that says 0: M is Jacobi's
    M = torch.diag_embed(1 / A.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(outlook_directions.iterates(A, b, M, directions=4)[:, :7], run.x, rtol=0, atol=1e-9)
    assert (outlook_directions.iterates(A, b, M, directions=1)[:, :7] - run.x).abs().max() > 1e-3
    torch.testing.assert_close(run.state["p"], run.x @ A, rtol=0, atol=1e-9)


# Training and evaluation ------------------------------------------------------------------------------------------


def test_a_task_resumes_to_the_same_bits(tmp_path, monkeypatch):
    config = small("guided-eigen")
    train(config, tmp_path / "undisturbed")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        interrupt_at(5, patch)
        train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    assert equal(final(tmp_path / "run"), final(tmp_path / "undisturbed"))


@KINDS
def test_a_task_is_evaluated_beside_its_rivals(recipe, tmp_path):
    config = small(recipe)
    untrained(config).save(tmp_path)
    outcome = CliRunner().invoke(app, ["evaluate", str(tmp_path), "--count", "4"])
    assert outcome.exit_code == 0, outcome.output
    family = config.make_family()
    words = [word for label in (config.family, *family.rivals(), *family.others()) for word in label.split()]
    assert all(word in outcome.stdout for word in words)


@pytest.mark.parametrize("recipe", RECIPES + DIFFUSION)
def test_training_lowers_the_loss_of_a_task(recipe):
    engine = PlainEngine([small(recipe, steps=50, lr=3e-3, d=16, batch=16)])
    engine.step(0)
    before = engine.report().loss.item()
    for number in range(1, 40):
        engine.step(number)
    engine.step(0)
    assert engine.report().loss.item() < before - 0.1


@KINDS
def test_the_engine_of_cuda_takes_the_step_of_the_plain_one_on_a_task(recipe):
    members = [small(recipe, seed=seed) for seed in (0, 1)]
    fast, plain = CompiledEngine(members, "cpu", compiled=False), PlainEngine(members)
    for number in range(5):
        fast.step(number)
        plain.step(number)
    assert fast.report().loss.tolist() == pytest.approx(plain.report().loss.tolist(), rel=1e-4)


@pytest.mark.parametrize("recipe", RECIPES + DIFFUSION)
def test_the_benchmark_judges_every_line_that_is_asked_for(recipe, tmp_path, capsys):
    untrained(small(recipe)).save(tmp_path)
    found, figure = str(tmp_path / "found.json"), tmp_path / "figure.svg"
    assert outlook.main([str(tmp_path), "--count=8", "--device=cpu", "--out", found]) == 1
    assert "BROKEN" in capsys.readouterr().out
    assert outlook.main(["--read", found, "--figure", str(figure)]) == 1
    assert recipe in figure.read_text() and recipe in capsys.readouterr().out


def test_a_rival_that_a_file_lacks_is_added_as_if_it_had_been_measured_with_the_others(tmp_path):
    untrained(small("guided-diffusion")).save(tmp_path)
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    outlook.main([str(tmp_path), "--count=8", "--device=cpu", "--out", str(whole)])
    document = json.loads(whole.read_text())
    (found,) = document["models"].values()
    for row in found["families"].values():
        for of in ("mean", "median", "largest", "failures"):
            del row[of]["PCG, IC(0)"]
    part.write_text(json.dumps(document))
    outlook.main(["--read", str(part), "--rivals", "--out", str(part)])
    again, (wanted,) = json.loads(part.read_text()), json.loads(whole.read_text())["models"].values()
    assert again["added"]["rivals"] == ["PCG, IC(0)"]
    for label, row in next(iter(again["models"].values()))["families"].items():
        own = wanted["families"][label]
        assert row["failures"] == own["failures"] and row["iterations_to"] == own["iterations_to"]
        assert row["mean"]["PCG, IC(0)"] == pytest.approx(own["mean"]["PCG, IC(0)"], rel=1e-3, abs=1e-20)
    document["seed"] += 1
    part.write_text(json.dumps(document))
    with pytest.raises(SystemExit, match="these problems"):
        outlook.main(["--read", str(part), "--rivals"])


@pytest.mark.parametrize("recipe", RECIPES + DIFFUSION)
def test_a_model_is_called_no_more_often_than_the_work_outside_it_allows(recipe):
    model = untrained(small(recipe))
    solver, family = outlook_solve.SOLVERS[str(model.config.program)], model.config.make_family()
    A, b, _ = family.sample(6, seed=0)
    if solver is outlook_solve.LEAST_SQUARES:
        A = A[:, :, (A != 0).any((0, 1))]
    ends = solver.solve(A, b, model)
    for work, calls in zip(ends.work, ends.calls, strict=True):
        assert not solver.each or 1 <= calls <= solver.most_calls(work)


def test_the_pages_sections_are_those_of_the_filed_figures():
    page = (ROOT / "docs" / "tasks.md").read_text()
    for name in outlook_page.TRAINED:
        document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        assert outlook_page.section(document, name) in page, name
    assert outlook_page.behind(json.loads((ROOT / "benchmarks" / "results" / "outlook_solve.json").read_text())) in page


@pytest.mark.parametrize("recipe", ["guided-gcr", "guided-eigen", "learned-preconditioner-diffusion"])
def test_no_problem_is_lost_behind_the_solvers_to_a_model_that_has_learned_nothing(recipe, tmp_path):
    untrained(small(recipe)).save(tmp_path / "model")
    found = tmp_path / "found.json"
    assert outlook_solve.main([str(tmp_path / "model"), "--count=3", "--single=1", "--out", str(found)]) == 0
    (rows,) = json.loads(found.read_text())["models"].values()
    assert all(sum(row["statuses"]["with the model"].values()) == row["problems"] for row in rows.values())


MISSES = ("guided-cgls", "guided-eigen", "guided-diffusion-16")  # docs/tasks.md says what was tried


def test_the_lines_of_filed_figures_follow_from_their_curves():
    names = [field.name for field in dataclasses.fields(compare.Comparison)]
    for name in outlook_page.TRAINED:
        document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        for found in document["models"].values():
            own = next(iter(found["families"].values()))
            row = compare.Comparison(**{key: own[key] for key in names})
            lines = outlook._judged(row, outlook.ASKED[found["config"]["program"]])
            assert lines == (found["kept"], found["aims"]), name
            assert name in MISSES or all(found["kept"].values()), name


def test_every_recipe_is_filed_with_three_seeds_and_no_error_grows_from_t_to_four_t():
    recipes = set()
    for name in outlook_page.TRAINED:
        document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        assert [found["config"]["seed"] for found in document["models"].values()] == [100, 101, 102], name
        for found in document["models"].values():
            recipes.add(found["config"]["recipe"])
            own, T = next(iter(found["families"].values()))["mean"]["learned"], found["config"]["T"]
            assert own[4 * T] <= own[T], name
    assert recipes == {f"guided-{task}" for task in ("gcr", "cgls", "nonlinear", "eigen", "diffusion")} | {
        "learned-preconditioner-diffusion"
    }


def test_filed_models_lose_no_problem_behind_the_solvers_on_any_family():
    models = json.loads((ROOT / "benchmarks" / "results" / "outlook_solve.json").read_text())["models"]
    assert {name.split(",")[0] for name in models} >= {name.removesuffix("-16") for name in outlook_page.TRAINED}
    for name, rows in models.items():
        assert len(rows) > 1, name  # its own family, and one that it was not trained on
        for row in rows.values():
            assert row["lost"] == row["wrong"] == 0, name
            assert sum(row["statuses"]["with the model"].values()) == row["problems"], name


def test_guided_diffusion_holds_the_learned_preconditioner():
    learned = untrained(small("learned-preconditioner-diffusion", pre_layers=3)).double()
    guided = untrained(small("guided-diffusion", pre_layers=2, program_options=_COARSE)).double()
    own = dict(learned.networks["precondition"].named_parameters())
    with torch.no_grad():
        for name, weight in guided.networks["precondition"].named_parameters():
            told = name.startswith(("each", "whole"))  # what it is told of r
            weight.copy_(0 * weight if told else 3 * own[name.replace("blocks.loop.0", "blocks.pre.2")])
        for weight in own.values():
            weight.mul_(3)
    A, b, _ = problems.Poisson2D(n=4).sample(8, seed=0)
    torch.testing.assert_close(guided.iterates(A, b, 3), learned.iterates(A, b, 3), rtol=0, atol=1e-9)
    jacobi = loud("learned-preconditioner-diffusion", 0.0, n=4).iterates(A, b, 3)
    assert (guided.iterates(A, b, 3) - jacobi).abs().max() > 1e-3


def test_with_all_eigenvectors_as_columns_one_iteration_is_enough():
    family = problems.Poisson2D(n=16)
    systems = family.sample(4, seed=0)
    assert outlook_columns.counts(family, systems, 16, smallest=True) == [1] * 5
    assert min(outlook_columns.counts(family, systems, 0, smallest=True)) > 1


def test_a_line_that_is_asked_for_holds_only_at_the_share_or_below():
    curve = (1.0, *(10.0**-k for k in range(1, 41)))
    late = tuple(10.0 ** -(k / 2) for k in range(41))
    row = compare.Comparison("", 1, 8, {"learned": curve, "rival": late}, {}, {}, {}, "", {})
    kept, aims = outlook._judged(row, outlook.Asked(1 / 2, 2, 6, aim=10))
    assert len(kept) == 6 and len(aims) == 4 and all(kept.values()) and all(aims.values())
    slower = compare.Comparison("", 1, 8, {"learned": (1.0, *curve), "rival": late}, {}, {}, {}, "", {})
    kept, aims = outlook._judged(slower, outlook.Asked(1 / 2, 2, 6, aim=10))
    assert sum(kept.values()) == 1 and not any(aims.values())


def _own_task():
    """The section of docs/tasks.md on a task of one's own."""
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    return page.partition("## A task of your own\n")[2].partition("\n## ")[0]


def test_the_page_on_a_task_of_ones_own_does_what_it_says(tmp_path):
    page = _own_task()
    blocks = re.findall(r"^```(?:python|)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    own, commands, script = blocks
    (tmp_path / "chain.py").write_text(own)
    few = ["--set", "steps=6", "--set", "warmup=2", "--set", "d=16", "--set", "heads=2", "--set", "batch=4"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(*words):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    training, evaluation = (shlex.split(line)[1:] for line in commands.splitlines())
    assert "Share of the energy" in run("-m", "nlaformer", *training, *few)
    shown = run("-m", "nlaformer", *evaluation, "--count=4")
    assert all(word in shown for word in ("chain:Chain", "steepest", "Jacobi", "spread 2"))
    assert run("-c", script).startswith("steepest descent")


def test_the_loss_and_the_evaluation_of_ones_own_task_are_its_own_error(tmp_path, monkeypatch):
    page = _own_task()
    text = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[0]
    for chain in imported("chain", text, tmp_path, monkeypatch):
        config = nf.recipe("guided-quickstart", family=chain.Chain(n=4), **(SIZES | {"power": 1.0}))
        batch = Stream(config).batch(0)
        with torch.no_grad():
            x = untrained(config)(batch.A, batch.b)
        e = x - batch.x_true[:, None]
        energies = [torch.einsum("bti,bij,btj->bt", v, batch.A, v) for v in (e, batch.x_true[:, None])]
        engine = PlainEngine([config])
        engine.step(0)
        assert engine.report().loss.item() == pytest.approx(float((energies[0] / energies[1]).mean()), rel=1e-4)
        systems = chain.Chain(n=4).sample(8, seed=0)
        row = compare.compare(untrained(config), "", systems, family=chain.Chain(n=4))
        descent = chain.SteepestDescent().run(systems.A, systems.b, iterations=12).x
        error = chain.Chain(n=4).error(descent, systems).mean(0)
        assert row.mean["steepest descent"] == pytest.approx(error.tolist()) and row.rival == "steepest descent"


def test_solvers_that_imitate_are_not_evaluated_on_problems_that_are_not_definite():
    assert all(problems.FAMILIES[name].definite for name in problems.families()[:9])
    assert not any(problems.FAMILIES[name].definite for name in ("nonsymmetric", "cubic", "least-squares"))


def test_members_of_a_stack_share_an_error_measure():
    one, other = small("guided-gcr"), small("guided-eigen")
    check_stack([one, one.replace(family="convection")])
    check_stack([other, other.replace(seed=1)])
    with pytest.raises(OptionError, match="family"):
        check_stack([other, other.replace(family="spd")])


@pytest.mark.parametrize("scale", [1e-155, 1e-165, 1e-200])
def test_a_residual_whose_products_underflow_is_not_called_converged(scale):
    model = untrained(small("guided-cgls"))
    A, b, _ = (value[0] for value in problems.SPD(n=4).sample(1, seed=0))
    run = model.run(scale * A, scale * b, iterations=8)
    assert run.status is nf.RunStatus.NONFINITE and bool(run.residual_norms.isnan().all())
    assert model.run(scale * A, 0 * b, iterations=2).status is nf.RunStatus.CONVERGED  # x = 0 is the answer


def test_a_trained_program_for_least_squares_takes_rectangular_matrices():
    model = untrained(nf.recipe("guided-cgls", n=5, d=16, heads=2, program_options={"rank": 1}))
    A, b = np.random.default_rng(0).standard_normal((5, 3)), np.ones(5)
    run, full = model.run(A, b, iterations=6), model.run(np.pad(A, ((0, 0), (0, 2))), b, iterations=6)
    assert np.array_equal(run.x, full.x) and not run.x[:, 3:].any()
    assert np.allclose(run.x[-1, :3], np.linalg.lstsq(A, b, rcond=None)[0], atol=1e-3)
    with pytest.raises(ShapeError):
        untrained(nf.recipe("guided-cg", n=5, d=16, heads=2)).run(A, b)


def test_an_eigenvector_is_where_the_guided_eigenpair_stays():
    model = untrained(small("guided-eigen"))
    start = torch.eye(4, dtype=torch.float64)
    run = model.run(torch.diag(torch.arange(1.0, 5.0)).double(), start, iterations=3)
    assert torch.equal(run.x, start[:, None].expand(4, 4, 4))


def own_task(**methods):
    """A family of 2 I with methods of one's own."""
    kind = type("Own", (problems.Family,), {"n": 3, "matrices": lambda self, draw, count: twice(count), **methods})
    return kind()


def twice(count, n=3):
    return 2 * torch.eye(n, dtype=torch.float64).expand(count, n, n)


@pytest.mark.parametrize(
    ("error", "words", "methods"),
    [
        (ShapeError, "Own.matrices", dict(matrices=lambda self, draw, count: twice(count, 4))),
        (DTypeError, "Own.matrices", dict(matrices=lambda self, draw, count: twice(count).numpy())),
        (OptionError, "Own.systems", dict(systems=lambda self, draw, count: (twice(count), 3))),
        (ShapeError, "b of Own.systems", dict(systems=lambda self, draw, count: (twice(count),) * 3)),
        (OptionError, "Own", dict(n="3")),
        (ShapeError, "Own.error", dict(error=lambda self, x, systems: x.sum((-1, -2)))),
        (OptionError, "Own.rivals", dict(rivals=lambda self: {})),
        (ShapeError, "slow", dict(rivals=lambda self: {"slow": lambda A, b, iterations: b})),
        (DTypeError, "slow", dict(rivals=lambda self: {"slow": lambda A, b, iterations: None})),
        (OptionError, "slow", dict(rivals=lambda self: {"slow": nf.Program})),
    ],
)
def test_what_ones_own_task_gives_wrongly_is_refused_by_its_name(error, words, methods):
    model, family = untrained(nf.recipe("guided-quickstart", n=3, d=8, heads=1)), own_task(**methods)
    with pytest.raises(error, match=words):
        compare.compare(model, "own", family.sample(2, seed=0), 4, family)


def tall(draw, count):
    """Three equations for two unknowns, padded with a column of zeros."""
    return draw.normal("A", count, 3, 3) * torch.tensor([1.0, 1.0, 0.0])


def fitted(self, draw, count):
    A, b = tall(draw, count), draw.normal("b", count, 3)
    return problems.Systems(A, b, (torch.linalg.pinv(A) @ b[..., None])[..., 0])


@pytest.mark.parametrize(
    ("rival", "methods"),
    [
        ("CG", dict()),
        ("GMRES", dict(matrices=lambda self, draw, count: twice(count) + draw.normal("A", count, 3, 3))),
        ("GMRES", dict(matrices=lambda self, draw, count: -twice(count))),
        ("GMRES", dict(matrices=lambda self, draw, count: 1e-12 * draw.normal("A", count, 3, 3))),
        ("CGLS", dict(matrices=lambda self, draw, count: tall(draw, count))),
        ("CGLS", dict(systems=fitted)),
    ],
)
def test_a_family_without_rivals_meets_the_methods_for_its_matrices(rival, methods):
    family = own_task(**methods)
    model = untrained(nf.recipe("guided-quickstart", n=3, d=8, heads=1))
    assert compare.compare(model, "own", family.sample(2, seed=0), 4, family).rival == rival
    assert nf.evaluate(model, tuple(family.sample(2, seed=0)), iterations=4).rival == rival


def test_problems_that_are_not_linear_systems_must_say_their_rivals():
    def systems(self, draw, count):
        x = draw.normal("x", count, 3)
        return problems.Systems(twice(count), 2 * x + x**3, x)

    with pytest.raises(OptionError, match=r"Own.*rivals"):
        own_task(systems=systems).rivals()


def test_an_error_without_a_gradient_is_refused_where_training_needs_one():
    family = own_task(error=lambda self, x, systems: x.detach().square().sum(-1))
    x = torch.zeros(2, 5, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(OptionError, match=r"Own\.error"):
        family.checked_error(x, family.sample(2, seed=0))
    with torch.no_grad():
        assert not family.checked_error(x, family.sample(2, seed=0)).any()


@pytest.mark.parametrize("strange", [-1.0, float("nan")])
def test_an_error_that_is_negative_or_not_a_number_is_refused(strange):
    family = own_task(error=lambda self, x, systems: x.square().sum(-1) + strange)
    model = untrained(nf.recipe("guided-quickstart", n=3, d=8, heads=1))
    with pytest.raises(OptionError, match=r"Own\.error"):
        compare.compare(model, "own", family.sample(2, seed=0), 4, family)
    rounding = own_task(error=lambda self, x, systems: problems.Family.error(self, x, systems) - 1e-16)
    assert compare.compare(model, "own", rounding.sample(2, seed=0), 4, rounding).count == 2


def test_an_iterate_that_left_the_numbers_is_a_failure_and_no_mistake_of_the_task():
    family = own_task(rivals=lambda self: {"lost": lambda A, b, T: torch.full((len(b), T + 1, 3), torch.nan).to(A)})
    model = untrained(nf.recipe("guided-quickstart", n=3, d=8, heads=1))
    assert compare.compare(model, "own", family.sample(2, seed=0), 4, family).failures["lost"] == 2


@pytest.mark.parametrize("recipe", ["guided-gcr", "guided-cgls", "guided-diffusion"])
@pytest.mark.parametrize("rank", [-1, 2.5])
def test_a_number_of_columns_that_is_none_is_refused(recipe, rank):
    with pytest.raises(OptionError, match=f"{rank} columns"):
        nf.recipe(recipe, program_options={"rank": rank}).validate()


def test_a_rival_and_an_error_that_write_into_what_they_get_change_nothing_for_the_others():
    def spoiling(A, b, iterations):
        A.zero_()
        return b.zero_()[:, None].repeat(1, iterations + 1, 1)

    def error(self, x, systems):
        found = problems.Family.error(self, x, systems)
        systems.A.zero_(), systems.x.zero_()
        return found

    model, rivals = untrained(nf.recipe("guided-quickstart", n=3, d=8, heads=1)), own_task().rivals()
    spoiled = own_task(rivals=lambda self: {"spoiling": spoiling, **rivals}, error=error)
    systems = spoiled.sample(2, seed=0)
    found, plain = (compare.compare(model, "own", systems, 4, each) for each in (spoiled, own_task()))
    assert {name: found.mean[name] for name in plain.mean} == plain.mean and found.to_residual["CG"] == 1
