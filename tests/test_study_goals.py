"""The bundled models on fresh systems: what is measured, and verdicts from numbers made to bring each about."""

from __future__ import annotations

import pytest

import nlaformer as nf
from nlaformer import pretrained
from nlaformer.learn.evaluate import judge, trial
from paper import bundled, bundling, fresh, goals, plan
from paper.results import Results
from tests.filed import put as put_run

CG = [10.0 ** (-t / 2) for t in range(21)]  # 1e-1 at t = 2, 1e-6 at t = 12
TWICE_AS_FAST = [10.0**-t for t in range(21)]
SPREAD = ("mean", "median", "upper", "largest")


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


def put(results, configs=None, sigmas=plan.SIGMAS, **curves):
    """Fresh systems on which models do as told at some sigmas, and else as well as can be; each beside its run."""
    methods = {
        name: {"sigma": {str(sigma): dict.fromkeys(SPREAD, CG) for sigma in plan.SIGMAS}} for name in plan.TEACHERS
    }
    models = {}
    for name in plan.BUNDLED:
        config = (configs or {}).get(name, plan.planned(f"bundled-{name}").config)
        good = dict.fromkeys(SPREAD, TWICE_AS_FAST) | {"deviation": [1e-4] * 21, "standard_error": [1.0] * 21}
        told = good | curves.get(name.replace("-", "_"), {})
        rows = {str(sigma): told if sigma in sigmas else good for sigma in plan.SIGMAS}
        models[name] = {"config": config.to_json(), "sigma": rows}
        run = plan.planned(f"bundled-{name}")
        put_run(results, run.config, TWICE_AS_FAST, name=run.name, standard_error=[1.0] * 21, deviation=[1e-4] * 21)
    results.write(fresh.FILE, {"count": 9, "methods": methods, "models": models})


def judgements(results):
    return [verdict.judgement for verdict in goals.verdicts(results)]


def at_iterate(curve, t, value):
    return [*curve[:t], value, *curve[t + 1 :]]


GOOD = ["holds"] * 5


def but(place, judgement="differs"):
    return at_iterate(GOOD, place, judgement)


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ({}, GOOD),
        ({"cg_imitation": {"deviation": at_iterate([1e-4] * 21, 1, 6e-3)}}, but(0)),
        ({"cg_imitation": {"deviation": [2e-3] * 21}}, but(0)),  # never far, but on average
        ({"cg_imitation": {"mean": at_iterate(TWICE_AS_FAST, 20, 6e-6)}}, but(0)),
        ({"cg_accelerated": {"mean": at_iterate(TWICE_AS_FAST, 2, 1.1e-2)}}, but(1)),
        ({"cg_accelerated": {"mean": at_iterate(TWICE_AS_FAST, 4, 1.1e-3)}}, but(1)),
        ({"cg_accelerated": {"mean": at_iterate(TWICE_AS_FAST, 6, 1.1e-6)}}, but(3)),  # 1e-6 at t = 7, CG at t = 12
        ({"cg_accelerated": {"mean": [max(error, 1e-7) for error in TWICE_AS_FAST]}}, but(3)),  # a plateau, too high
        ({"pcg_accelerated": {"mean": [1.0, *TWICE_AS_FAST[:-1]]}}, GOOD),  # 2 3 4 5 for at most 2 3 4 6
        ({"pcg_accelerated": {"mean": [1.0, 1.0, *TWICE_AS_FAST[:-2]]}}, but(2)),
        ({"cg_joint": {"mean": at_iterate(TWICE_AS_FAST, 2, 4.2)}}, GOOD),  # from 0.01: 2.96 combined errors
        ({"cg_joint": {"mean": at_iterate(TWICE_AS_FAST, 2, 4.3)}}, but(4)),
    ],
)
def test_a_goal_is_missed_by_the_numbers_it_is_about(results, curves, expected):
    put(results, sigmas=(1.2,), **curves)
    assert judgements(results) == expected


def test_what_is_missed_is_said(results):
    late = [1.0, *TWICE_AS_FAST[:-1]]
    put(results, sigmas=(1.4,), cg_accelerated={"mean": late})
    found = goals.verdicts(results)[1].found
    assert "errors 0.01, 0.01 and 0.1 at t = 2" in found and "for CG's 2 4 6 8, 2 4 6 8 and 2 4 6 8" in found
    assert "2 for 1 to 1e-1 at sigma 1.4" in found and "sigma 1.2," not in found.partition("Too many")[2]


def test_an_iterate_that_is_not_finite_reaches_nothing(results):
    put(results, cg_accelerated={"mean": [1.0] + [float("inf")] * 20})
    assert "never for 1 to 1e-1" in goals.verdicts(results)[1].found
    assert judgements(results) == ["holds", "differs", "holds", "differs", "differs"]


def test_a_model_is_compared_with_the_run_of_its_config(results):
    first, second = (plan.onward()[f"bundled-cg-imitation-{end}"] for end in ("150k", "after-joint"))
    assert first.steps == second.steps
    put(results, configs={"cg-imitation": second})
    assert judgements(results) == but(4, "not yet run")
    assert "cg-imitation" in goals.verdicts(results)[4].found
    document = results.run("bundled-cg-imitation").document
    for name, config in (("bundled-cg-imitation-150k", first), ("bundled-cg-imitation-after-joint", second)):
        results.write(f"runs/{name}.json", document | {"config": config.to_json()})
    assert results.of_config("bundled-cg-imitation", second).name == "bundled-cg-imitation-after-joint"
    assert judgements(results) == GOOD
    assert any("150k more" in line for line in bundled.sheets(results)[-2].lines)


def test_a_card_is_silent_about_the_weights_bundled_before(results):
    name = "cg-imitation"
    put(results, cg_imitation={"largest": [0.123] * 21})
    measured, record = fresh.read(results), results.run(f"bundled-{name}")
    assert "worst cases of 0.12, 0.12 and 0.12." in bundling._tail(name, record, measured)
    put(results, configs={name: record.config.replace(seed=1)})
    assert bundling._tail(name, record, fresh.read(results)) == ""


@pytest.mark.parametrize("name", pretrained.names()[-1:])
def test_in_pieces_it_is_the_evaluation(name, results, monkeypatch):
    monkeypatch.setattr(fresh, "PIECE", 3)  # of eight systems
    monkeypatch.setattr(pretrained, "names", lambda: (name,))
    fresh.measure(results, small=True)
    measured, solver = fresh.read(results), nf.load(name)
    for sigma in plan.SIGMAS:
        systems = nf.problems.SPD(n=20, sigma=(sigma,)).sample(fresh.SMALL_COUNT, fresh.SEED)
        whole, row = judge(solver, trial("", systems, solver.config.T)), measured.at(name, sigma)
        assert row["mean"] == pytest.approx(whole.model, rel=1e-3)
        assert row["standard_error"] == pytest.approx(whole.standard_error, rel=1e-3)
        assert row["deviation"] == pytest.approx(whole.deviation, rel=1e-3)
        assert row["upper"] == pytest.approx(whole.upper["model"], rel=1e-3)
        assert max(row["median"]) <= max(row["largest"])
        for method, mean in (("cg", whole.cg), ("pcg", whole.pcg)):
            assert measured.at(method, sigma)["mean"] == pytest.approx(mean, rel=1e-3)
            assert measured.at(method, sigma)["median"] == pytest.approx(whole.median[method], rel=1e-3)


def test_a_folder_of_the_name_of_a_bundled_model_is_not_measured(results, tmp_path, monkeypatch):
    nf.operation("add", n=2).save(tmp_path / "cg-joint")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fresh, "SMALL_COUNT", 2)
    fresh.measure(results, small=True)
    assert fresh.read(results).configs["cg-joint"] == nf.load(pretrained.HOME / "cg-joint").config
