"""The battery: it names compiled algorithms, names nothing else, and each test sees what it should see."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import nlaformer as nf
from nlaformer import problems
from nlaformer.cli.microscope import sheets
from nlaformer.compiler import library
from nlaformer.errors import DomainError, NLAFormerError, OptionError, ShapeError
from nlaformer.learn.methods import GuidedCG
from nlaformer.learn.model import initial
from nlaformer.learn.programs import initial as initial_program
from nlaformer.microscope import extraction, interchange, short_programs
from nlaformer.microscope.battery import Effort, Microscopy
from nlaformer.microscope.candidates import ALGORITHMS, POLYNOMIAL, candidates
from nlaformer.microscope.measures import iterations_of_same_error, krylov, krylov_basis
from nlaformer.microscope.naming import Explanation, explain, named
from nlaformer.microscope.subject import subject
from nlaformer.microscope.untrained import before_training
from nlaformer.problems import SPD, Family, Systems
from nlaformer.report.findings import FINDINGS

from .command import run_command

SIZES = (4, 6, 8)
PAGE = Path(nf.__file__).parents[1] / "docs" / "battery.md"
TINY = Effort(count=12, matrices=2, right_hand_sides=40, fitting=24, pairs=12)


@cache
def _known(n: int, T: int = 8) -> tuple[Systems, dict[str, Tensor]]:
    """Systems and the iterates of every candidate."""
    family = SPD(n=n)
    systems = family.sample(24, seed=3)
    of = subject(library.program("cg"), family, T)
    return systems, {each.name: each.iterates(*systems[:2]) for each in candidates(of, family.sample(48, seed=4))}


def _explained(model: object, n: int) -> tuple[Explanation, ...]:
    systems, known = _known(n)
    return explain(subject(model, SPD(n=n), 8).iterates(*systems[:2]), known, systems.x)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_compiled_algorithm_is_named(name: str, n: int):
    found = _explained(nf.algorithm(name, n=n, verify=False), n)
    accepted = named(found)
    assert accepted is not None and accepted.candidate == name
    assert accepted.until == accepted.ended
    # Without its own candidate, it gets at most the name of its twin.
    twins = {"cg": "conjugate_residual", "steepest_descent": "minimal_residual"}
    twins["chebyshev"] = POLYNOMIAL
    twins |= {twin: of for of, twin in twins.items()}
    other = named(tuple(each for each in found if each.candidate != name))
    assert other is None or other.candidate == twins.get(name)


@pytest.mark.parametrize("name", ["jacobi", "gauss_seidel", "barzilai_borwein", "nesterov", "cgnr", "bicgstab"])
def test_a_method_that_is_no_candidate_is_not_named(name: str):
    assert named(_explained(library.program(name), 6)) is None


def test_minres_is_named_as_the_method_whose_iterates_it_has():
    accepted = named(_explained(library.program("minres"), 6))
    assert accepted is not None and accepted.candidate == "conjugate_residual"


def test_an_untrained_network_is_not_named():
    network = initial(nf.recipe("quickstart", n=6, T=8))
    assert named(_explained(network, 6)) is None  # all its iterates are zero
    torch.nn.init.normal_(network.probe_x.weight, std=0.05)
    assert named(_explained(network, 6)) is None


def test_a_candidate_with_an_error_is_explained_until_the_error_counts():
    systems, known = _known(8)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(known["cg"].shape, generator=generator, dtype=torch.float64)
    size = systems.x.norm(dim=-1)[:, None, None] / math.sqrt(8)
    found = [named(explain(known["cg"] + level * size * noise, known, systems.x)) for level in (1e-3, 0.02, 3.0)]
    assert [each and each.candidate for each in found] == ["cg", "cg", None]
    assert found[0] is not None and found[1] is not None and found[0].until > found[1].until


@pytest.fixture(scope="module")
def seen() -> Microscopy:
    return nf.microscope(nf.algorithm("pcg", n=6, verify=False), effort=TINY)


def test_the_battery_names_the_algorithm_it_is_given(seen: Microscopy):
    assert seen.named == "pcg" and seen.until >= 4
    assert seen.explanations[0].relative_deviation[1] < 1e-9


def test_printing_gives_a_line_for_each_test_and_not_every_number(seen: Microscopy):
    lines = str(seen).splitlines()
    assert len(lines) == len(FINDINGS) and all(len(line) < 250 for line in lines)  # no exchanges, but a heading


def test_krylov_distances_tell_methods_of_A_from_others(seen: Microscopy):
    for name, each in seen.krylov.items():
        inside = each.distance[1][0] < 1e-9
        assert inside == (name not in ("model", "pcg", "newton_schulz", "untrained")), name
    assert seen.krylov["cg"].products[:4] == (1, 2, 3, 4)
    assert seen.krylov["model"].products[1] == 6


def test_a_vector_has_its_distance_from_a_krylov_space():
    A, b = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))[None], torch.ones(1, 3, dtype=torch.float64)
    x = torch.tensor([[1.0, -2.0, 1.0]], dtype=torch.float64)  # orthogonal to (1, 1, 1) and (1, 2, 3)
    iterates = torch.stack([torch.zeros_like(x), x, x + 2 * b], 1)
    found = krylov(krylov_basis(A, b), iterates, x)
    assert found.distance[0] == pytest.approx((1.0, 1.0, 0.0, 0.0), abs=1e-12)
    assert found.distance[1][0] == pytest.approx(1.0)
    assert found.solution[0] == pytest.approx((1.0, 1.0, 0.0, 0.0), abs=1e-12)


def test_error_operators_are_diagonal_for_polynomials_alone(seen: Microscopy):
    for name in ("richardson", "chebyshev", "newton_schulz", POLYNOMIAL):
        assert max(map(abs, seen.operators[name].off_diagonal)) < 1e-9
    assert seen.operators["model"].off_diagonal[1] > 0.1
    assert seen.operators["model"].filter[1] == pytest.approx(seen.operators["pcg"].filter[1], abs=1e-6)


def test_symmetries_are_those_of_the_method(seen: Microscopy):
    for label, held in (
        ("A and b times 3", True),
        ("A and b times 2", True),
        ("b times 4", True),
        ("permutation", True),
        ("rotation", False),
    ):
        assert (seen.symmetries[label]["model"].defect.median[2] < 1e-9) == held, label
        assert seen.symmetries[label]["cg"].defect.median[2] < 1e-9
        assert seen.symmetries[label]["untrained"].defect.median[2] > 1e-3


def test_a_krylov_method_ends_with_the_eigenvalues_of_A(seen: Microscopy):
    for k, label in ((2, "two eigenvalues"), (3, "three eigenvalues")):
        assert seen.termination[label]["cg"].mean[k] < 1e-12 < seen.termination[label]["cg"].mean[k - 1]
        assert seen.termination[label]["model"].mean[k] > 1e-6


def test_additivity_tells_fixed_coefficients_from_others(seen: Microscopy):
    assert seen.additivity["model"].median[2] > 1e-5
    assert seen.additivity["newton_schulz"].mean[2] < 1e-20


def test_failures_and_longer_runs_are_counted(seen: Microscopy):
    assert seen.elsewhere["rbf"]["model"].failures[-1] == 0
    assert all(problems.FAMILIES[name].definite for name in seen.elsewhere if name in problems.FAMILIES)
    assert seen.elsewhere["rbf"]["untrained"].failures[-1] > 0.2
    assert len(seen.beyond["model"].mean) == 4


def test_iterations_of_the_same_error_lie_between_whole_ones():
    found = iterations_of_same_error([1.0, 1e-3, 1e-9], [1.0, 1e-2, 1e-4])
    assert found == (0.0, pytest.approx(1.5), None)


@dataclass(frozen=True)
class Triangular(Family):
    n: int = 3

    def matrices(self, draw: Any, count: int) -> Tensor:
        return draw.uniform("A", count, 3, 3).triu() + torch.eye(3)


class Momentum(torch.nn.Module):
    """A network of a user: T steps with a learned rate."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = torch.nn.Parameter(torch.full((3,), 0.1))

    def forward(self, A: Tensor, b: Tensor) -> Tensor:
        x = [torch.zeros_like(b)]
        for rate in self.rate:
            x.append(x[-1] + rate * (b - (A @ x[-1][..., None])[..., 0]))
        return torch.stack(x, 1)


def test_a_module_of_a_user_is_taken_as_it_is():
    found = nf.microscope(Momentum(), family=SPD(n=5), effort=TINY)
    assert (found.model, found.n, found.T, found.beyond) == ("Momentum", 5, 3, {})
    assert found.symmetries["rotation"]["model"].defect.median[2] < 1e-9
    assert found.symmetries["A and b times 2"]["model"].defect.median[2] > 1e-3


def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("nlaformer.microscope.battery.QUICK", TINY)
    own, exchanges = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert own.count("\n") <= 22
    scope: dict[str, Any] = {}
    exec(own, scope)
    found = scope["seen"]
    assert found.named is None and max(map(abs, found.operators["model"].off_diagonal)) < 1e-9
    assert found.additivity["model"].median[2] < 1e-9 < found.symmetries["A and b times 2"]["model"].defect.median[2]
    exec(exchanges, scope)
    first = scope["first"].shares
    assert first["x, r and d as probes read them"][0] > 0.5 > 0 > first["x, r and d of a third system"][0]


def test_an_exchange_of_the_whole_state_gives_the_other_system_and_of_nothing_gives_this_one():
    network = initial(nf.recipe("quickstart", n=4, d=16, heads=2))
    torch.nn.init.normal_(network.probe_x.weight)
    pair = interchange._Pair.of(SPD(n=4).sample(6, seed=2))
    run = interchange._Run.of(network, 2, pair)
    theirs = network.iterates(pair.A, pair.other, 6, normalize=False)[:, :6]
    run = replace(run, target=theirs)
    assert run.effect(run.P + run.difference).share == pytest.approx((1, 1, 1), abs=1e-6)
    assert run.effect(run.P).share == pytest.approx((0, 0, 0), abs=1e-6)
    ours, after = network.iterates(pair.A, pair.b, 6, normalize=False), slice(3, 6)
    moved = (theirs - ours[:, :6])[:, after].square().sum((0, 2)) / ours[:, after].square().sum((0, 2))
    assert run.effect(run.P + run.difference).moved == pytest.approx(moved.tolist(), rel=1e-4)
    assert run.effect(run.P).moved == pytest.approx((0, 0, 0), abs=1e-6)
    assert run.within(torch.eye(16, dtype=torch.float64)).share == pytest.approx((1, 1, 1), abs=1e-6)
    assert run.within(torch.eye(16, dtype=torch.float64)[:, :1]).share[0] < 0.9


def test_the_control_of_a_program_is_the_same_program_before_its_training():
    config = nf.recipe("quickstart", n=4, d=16, heads=2, T=3)
    model = initial_program(config, GuidedCG())
    assert before_training(model, 4, 3).state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1)  # stands for a training
    found = nf.extract(model, programs=[Shifted()], until=2, count=8)
    untouched = nf.extract(initial_program(config, GuidedCG()), programs=[Shifted()], until=2, count=8)
    assert found.before_training[0].r2 == untouched.fits[0].r2 == untouched.before_training[0].r2
    assert found.before_training[0].r2 != found.fits[0].r2


@pytest.mark.parametrize("option", [("--quick",), ("--iterations", "4"), ("--out", "page.html")])
def test_options_of_the_battery_are_refused_where_it_does_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
):
    code, said = run_command(monkeypatch, capsys, "microscope", "cg-imitation", "--extract", *option)
    assert code == 2 and option[0] in said.err and not said.out


def test_a_page_that_may_not_be_written_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    monkeypatch.setattr(nf, "microscope", lambda *given, **options: pytest.fail("it was measured"))
    for name in ("page.html", "page.txt", "no/page.html"):
        code, said = run_command(monkeypatch, capsys, "microscope", "cg", "--out", str(tmp_path / name))
        assert code == 2 and name in said.err


@pytest.mark.parametrize("names", [("x",), ("r", "rho"), ("d",), ("x", "r", "d", "rho")])
def test_an_exchange_in_cg_itself_is_that_of_patched_registers(names: tuple[str, ...]):
    pair = interchange._Pair.of(SPD(n=4).sample(6, seed=2))
    run = interchange._Run.of(initial(nf.recipe("quickstart", n=4, d=16, heads=2)), 1, pair)
    cg = nf.algorithm("cg", n=4, verify=False)
    theirs = cg.run(pair.A, pair.other, iterations=1).state
    with nf.patch(cg, {f"registers.{name}[1]": theirs[name][:, 1] for name in names}):
        expected = cg.run(pair.A, pair.b, iterations=4).x[:, 2:]
    found = run.cg(*(name for name in names if name != "rho"))
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()
    plain = cg.run(pair.A, pair.b, iterations=4).x[:, 2:]
    assert (plain - expected).abs().max() > 0.05 * expected.abs().max()


def test_what_is_written_in_a_state_is_read_and_exchanged_and_the_rest_is_left():
    pair = interchange._Pair.of(SPD(n=4).sample(30, seed=2))
    run = interchange._Run.of(initial(nf.recipe("quickstart", n=4, d=16, heads=2)), 2, pair)
    generator = torch.Generator().manual_seed(0)
    a = torch.linalg.qr(torch.randn(16, 4, generator=generator, dtype=torch.float64)).Q.mT
    written = torch.zeros_like(run.difference)
    written[:, :, 1:] = (run.vectors @ a).mT
    run = replace(run, difference=written)
    code = interchange._Code.of(run)
    assert (code.a - a).abs().max() < 1e-9
    assert min(code.read(run).values()) > 0.5 and code.read(run)["x"] > 0.98
    changed = code.exchanged(run, ("x",), written) - run.P
    assert ((a[1:] @ changed).norm() < 1e-9) and torch.equal(changed[:, :, 0], 0 * changed[:, :, 0])
    assert ((a[0] @ changed)[:, 1:] - run.vectors[..., 0]).norm() < 0.2 * run.vectors[..., 0].norm()


@pytest.mark.parametrize("shared", [True, False])
def test_the_battery_takes_trained_solvers_with_and_without_shared_layers(shared: bool):
    network = initial(nf.recipe("quickstart", n=4, d=16, heads=2, T=6).replace(shared=shared))
    torch.nn.init.normal_(network.probe_x.weight, std=0.1)
    found = nf.microscope(network, effort=TINY)
    assert found.interchange is not None and found.plot("interchange").axes
    assert [each.loop for each in found.interchange.exchanges] == ([2, 4] if shared else [2])
    assert bool(found.beyond) == shared


def test_what_cannot_be_looked_at_is_refused():
    with pytest.raises(OptionError, match="until"):
        nf.extract(Shifted(), SPD(n=3), until=0)
    with pytest.raises(OptionError, match="family="):
        nf.microscope(Momentum())
    with pytest.raises(OptionError, match="model is 3"):
        nf.microscope(3)
    for family in (Triangular(), problems.family("cubic", n=4)):
        with pytest.raises(OptionError, match="symmetric"):
            nf.microscope(Momentum(), family=family, effort=TINY)
    with pytest.raises(ShapeError, match="T \\+ 1"):
        nf.microscope(lambda A, b: b, family=SPD(n=3), effort=TINY)


def test_the_command_writes_json_and_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr("nlaformer.microscope.battery.QUICK", TINY)
    page = tmp_path / "page.html"
    arguments = ("microscope", "jacobi", "--n", "4", "--quick", "--json", "--out", str(page))
    code, said = run_command(monkeypatch, capsys, *arguments)
    document = json.loads(said.out)
    assert (code, document["named"], document["given"]) == (1, None, "jacobi")
    assert document["provenance"]["commit"]
    written = page.read_text(encoding="utf-8")
    assert written.count("<svg") == written.count("<h2>") == 10


def test_the_command_prints_the_candidates_and_a_line_for_each_test(seen: Microscopy):
    named_by, tests = sheets(seen)
    assert [line[0] for line in named_by.lines] == [each.candidate for each in seen.explanations]
    assert [line[0] for line in tests.lines] == [
        name for name in FINDINGS if name not in ("explanations", "interchange")
    ]
    told = dict(tests.lines)
    assert f"{seen.errors['model'].mean[-1]:.1e}" in told["errors"] and "rotation" in told["symmetries"]


class Shifted(nf.Program):
    """A program with a constant to find."""

    omega = 0.1

    def start(self, A: Tensor, b: Tensor, x0: Tensor) -> dict[str, Tensor]:
        return dict(x=x0)

    def step(self, A: Tensor, b: Tensor, x: Tensor) -> dict[str, Tensor]:
        return dict(x=x + self.omega * (b - A @ x) / nf.diag(A))


def test_the_constants_of_a_program_are_found_again():
    true = type("True_", (Shifted,), {"omega": 0.35})()
    found = nf.extract(true, SPD(n=5), programs=[Shifted(), library.program("cg")], until=4, count=16)
    best, other = found.fits
    assert best.constants == {"omega": pytest.approx(0.35, abs=1e-6)}
    assert min(*best.r2, *best.error_share, *best.step_r2, *found.compiled_r2) > 1 - 1e-9
    assert other.name == "ConjugateGradient" and max(other.r2) < 0.9 and found.solution_r2[-1] < 0.9
    assert "omega = 0.35" in str(found) and "def step(self, A" in best.source


def test_the_short_programs_have_ten_lines_at_most_and_solve_the_papers_systems():
    A, b, x = SPD(n=12).sample(16, seed=1)
    for program in extraction._programs():
        assert extraction.lines(program) <= 10
        error = (program.run(A, b, iterations=20).x[:, -1] - x).norm() / x.norm()
        assert error < (0.5 if program.name in ("Momentum", "DiagonalRefinement") else 1e-3), program.name


def test_the_vector_in_A_is_found():
    s = torch.linspace(-2, 2, 9, dtype=torch.float64)
    D = torch.linspace(1, 3, 9, dtype=torch.float64)
    exact = type("Exact", (short_programs.RankOneRefinement,), {"shift": 0.0, "first": 1.0, "second": 0.0})()
    A, b = torch.outer(s, s) + torch.diag(D), torch.ones(9, dtype=torch.float64)
    run = exact.run(A, b, iterations=1)
    # Off the diagonal alone, power iteration sees s s^T without its own diagonal, so it is near s and not equal to it.
    assert torch.nn.functional.cosine_similarity(run.state["s"][0], s, dim=0).abs() > 0.99
    assert (run.x[1] - torch.linalg.solve(A, b)).norm() < 0.3 * torch.linalg.solve(A, b).norm()


def test_a_program_that_takes_no_start_has_no_r2_of_its_steps():
    found = nf.extract(library.program("cg"), SPD(n=3), programs=[library.program("newton_schulz")], until=2, count=8)
    assert all(map(math.isnan, found.fits[0].step_r2)) and all(map(math.isfinite, found.fits[0].r2))


def test_constants_are_those_of_the_object_its_class_and_the_classes_above():
    class Set(Shifted):
        second = 0.5

        def __init__(self, omega: float) -> None:
            self.omega = omega

    assert extraction.constants(Set(0.2)) == {"omega": 0.2, "second": 0.5}
    found = nf.extract(Set(0.35), SPD(n=4), programs=[Set(0.2)], until=3, count=8)
    assert found.fits[0].constants["omega"] == pytest.approx(0.35, abs=1e-6)


def test_iterates_that_are_not_finite_are_measured_and_no_program_is_fitted_to_them():
    def lost(A: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.stack([0 * b, b, b * np.nan, b * np.nan], 1)

    seen = nf.microscope(lost, SPD(n=4), quick=True)
    assert seen.named is None and seen.errors["model"].failures == (0.0, *seen.errors["model"].failures[1:2], 1.0, 1.0)
    assert not np.isnan(seen.operators["model"].off_diagonal[0]) and np.isnan(seen.operators["model"].off_diagonal[1])
    with pytest.raises(DomainError):
        nf.extract(lost, SPD(n=4), count=8)


@pytest.mark.parametrize(
    "call",
    [
        lambda: nf.microscope(library.program("cg"), SPD(n=3), iterations=0),
        lambda: nf.microscope(library.program("cg"), SPD(n=3), quick="no"),  # type: ignore[arg-type]
        lambda: nf.microscope(library.program("cg"), "spd"),  # type: ignore[arg-type]
        lambda: nf.microscope(nf.Program, SPD(n=3)),
        lambda: nf.microscope(lambda A: A, SPD(n=3)),
        lambda: nf.microscope(lambda A, b: b[:, None], SPD(n=3)),
        lambda: nf.microscope(lambda A, b: b[:, None].repeat(3, 1) * 1j, SPD(n=3)),
        lambda: nf.extract(library.program("cg"), SPD(n=3), programs=[]),
        lambda: nf.extract(library.program("cg"), SPD(n=3), programs=[Shifted]),  # type: ignore[list-item]
    ],
)
def test_settings_without_effect_and_functions_of_another_kind_are_refused(call: Callable[[], object]):
    with pytest.raises(NLAFormerError):
        call()
