"""The verdicts: each judgement from numbers made to bring it about."""

from __future__ import annotations

from pathlib import Path

import pytest

from nlaformer.learn.evaluate import own_label
from nlaformer.study import (
    bundled,
    discrepancy,
    eta,
    headline,
    imitation,
    lambda_,
    lead,
    learning_rate,
    operations,
    plan,
    sigma,
    systems,
    window,
)
from nlaformer.study.reading import counted
from nlaformer.study.results import Results

ROOT = Path(__file__).parent.parent
CG = [1.0, 0.7, 0.3, 0.12, 0.05, 0.02, 0.005, 0.002, 5e-4, 1e-4, *[1e-5] * 11]
FLAT = [1.0] * 21


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


def put(results, config, model=FLAT, name=None, arithmetic="bf16", **own):
    """A run with a curve of errors; everything else is plain."""
    counts = {"mean": [1.0] * 4, "reached": [1.0] * 4, "by_condition": [[1.0] * 4] * 4}
    row = {"model": model, "cg": CG, "pcg": CG, "deviation": [1e-3] * 21, "discrepancy": 0.1, "silence": [0.3] * 21,
           "intermediate": [0.1] * 21, "counts": dict.fromkeys(("model", "cg", "pcg"), counts),
           "condition": [10, 20, 30, 40]}  # fmt: skip
    label = own_label(config)
    document = {"config": config.to_json(), "own": label, "evaluations": {label: row | own},
                "trained": {"arithmetic": arithmetic}}  # fmt: skip
    results.write(f"runs/{name or plan.name_of(config)}.json", document)


def judgements(verdicts):
    return [verdict.judgement for verdict in verdicts]


def scaled(factor):
    return [1.0] + [factor] * 20


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([4, 3, 2, 1.5, 1, 2], ["holds", "holds"]),  # 0.0005 is the best, both ends are worse
        (
            [4, 3, 2, 0.95, 1, 2],
            ["not reproducible as stated", "holds"],
        ),  # 0.001 and 0.0005 differ by less than seeds do
        ([4, 3, 2, 0.5, 1, 2], ["differs", "holds"]),
        ([4, 3, 2, 1.5, 1, 1.05], ["not reproducible as stated", "differs"]),  # the smallest weight does no harm
    ],
)
def test_the_best_eta(results, errors, expected):
    for weight, error in zip(plan.ETAS, errors, strict=True):
        put(results, plan.joint(eta=weight), scaled(error))
    for seed, error in ((1, 1.02), (2, 1.05)):  # with 1 of seed 0: two runs may differ by a factor of 1.16
        put(results, plan.joint(seed=seed), scaled(error))
    assert judgements(eta.verdicts(results)) == expected
    assert "by a factor of 1.16" in eta.verdicts(results)[0].found


def test_one_run_short_of_a_sweep_is_no_verdict(results):
    for weight in plan.LAMBDAS[1:]:
        put(results, plan.paper_accelerated("cg", lambda_=weight))
    assert judgements(lambda_.verdicts(results)) == ["not yet run"] * 2


def test_a_sweep_is_not_judged_across_lengths(results):
    for weight in plan.LAMBDAS:
        put(results, plan.paper_accelerated("cg", lambda_=weight), scaled(weight**-2))
    said = ["differs", "not reproducible as stated"]  # 13 is the best, and none too great
    assert judgements(lambda_.verdicts(results)) == said
    shorter = plan.paper_accelerated("cg", lambda_=0.5).replace(steps=20_000)
    put(results, shorter, scaled(1e-9), name=f"{plan.name_of(shorter)}-20k")
    assert judgements(lambda_.verdicts(results)) == said
    put(results, plan.paper_accelerated("cg", lambda_=100.0), scaled(1.0))
    assert judgements(lambda_.verdicts(results)) == ["differs", "holds"]


def accelerate(results, cg, pcg):
    for teacher, factor in (("cg", cg), ("pcg", pcg)):
        for value in plan.SIGMAS:
            put(results, plan.accelerated(teacher, sigma=(value,)), faster(factor))


def faster(factor):
    return [CG[min(round(t * factor), 20)] for t in range(21)]


def test_iterations_are_compared_with_cg_and_pcg(results):
    accelerate(results, cg=2, pcg=2)
    verdicts = judgements(sigma.verdicts(results))
    assert verdicts[:2] == ["holds", "holds"] and verdicts[3] == "holds"
    assert verdicts[2] == "differs"  # one teacher is as good as the other
    accelerate(results, cg=4, pcg=1.2)
    assert judgements(sigma.verdicts(results))[:2] == ["holds more strongly", "differs"]
    accelerate(results, cg=1.2, pcg=4)
    assert judgements(sigma.verdicts(results))[:2] == ["differs", "holds"]


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ([0.0, 0.0, 0.3, 0.3], "holds"),  # of one or two iterations nothing can be saved
        ([0.3, 0.3, 0.1, 0.1], "differs"),
        ([0.0, 0.0, 0.5, 0.5], "holds more strongly"),
    ],
)
def test_teachers_are_compared_where_there_is_something_to_save(results, saved, expected):
    for teacher in plan.TEACHERS:
        means = [
            count * (1 - share if teacher == "pcg" else 1) for count, share in zip([1, 2, 4, 6], saved, strict=True)
        ]
        counts = {"mean": means, "reached": [1.0] * 4, "by_condition": [[1.0] * 4] * 4}
        for value in plan.SIGMAS:
            config = plan.accelerated(teacher, sigma=(value,))
            put(results, config, CG, counts=dict.fromkeys(("model", "cg", "pcg"), counts))
    assert sigma.verdicts(results)[2].judgement == expected


def test_a_model_that_gets_nowhere_is_no_better_than_its_teacher(results):
    nowhere = {"mean": [21.0] * 4, "reached": [0.0] * 4, "by_condition": [[21.0] * 4] * 4}
    known = {"mean": [4.0] * 4, "reached": [1.0] * 4, "by_condition": [[4.0] * 4] * 3 + [[6.0] * 4]}
    for teacher in plan.TEACHERS:
        for value in plan.SIGMAS:
            counts = {"model": nowhere, "cg": known, "pcg": known}
            put(results, plan.accelerated(teacher, sigma=(value,)), [1.0, *[0.05] * 20], counts=counts)
    said = sigma.verdicts(results)
    assert set(judgements(said[1:5])) == {"differs"} and "300%, -100%, -100%, -100%" in said[1].found


@pytest.mark.parametrize(("errors", "expected"), [([0.0] * 20, "holds"), ([None] * 20, "differs")])
def test_exact_and_infinite_errors_have_their_place(results, errors, expected):
    for weight in plan.LAMBDAS:
        put(results, plan.paper_accelerated("cg", lambda_=weight), [1.0, *errors] if weight == 10 else scaled(1e-9))
    for seed in (1, 2):
        put(results, plan.paper_accelerated("cg", seed), [1.0, *[None] * 20])  # tell nothing of luck
    first, _ = lambda_.verdicts(results)
    assert "factors of up to 1.36" in first.found and first.judgement == expected
    assert lead.verdicts(results) and lead.sheets(results)


@pytest.mark.parametrize(("model", "expected"), [(1.05, "holds"), (1.18, "differs")])
def test_conditioning_is_judged_by_the_growth_it_causes(results, model, expected):
    def counts(growth):
        return {"mean": [1.0] * 4, "reached": [1.0] * 4, "by_condition": [[2.0] * 4] * 3 + [[2.0 * growth] * 4]}

    for value in plan.SIGMAS:
        both = {"model": counts(model), "cg": counts(1.2), "pcg": counts(1.1)}
        put(results, plan.accelerated("cg", sigma=(value,)), CG, counts=both)
    assert sigma.verdicts(results)[4].judgement == expected


@pytest.mark.parametrize(
    ("joint", "result", "start", "expected"),
    [
        (0.1, 0.3, 46.0, ["holds", "holds", "differs"]),  # a silent probe scores 0.3
        (0.1, 0.3, 8.0, ["not reproducible as stated", "holds", "differs"]),
        (0.3, 0.1, 8.0, ["differs", "differs", "holds"]),
    ],
)
def test_the_discrepancy_is_held_against_silence(results, joint, result, start, expected):
    put(results, plan.joint(), discrepancy=joint)
    put(results, plan.imitation(), discrepancy=result)
    assert judgements(discrepancy.first_verdicts(results)) == ["not yet run", *expected[1:]]
    results.write(discrepancy.FILE, {"discrepancy": [start]})
    assert judgements(discrepancy.first_verdicts(results)) == expected


def test_imitation_means_the_same_iterations(results):
    put(results, plan.joint(), CG)
    put(results, plan.imitation(), CG[:1] + CG[:-1])  # one iteration late
    assert judgements(imitation.error_verdicts(results)) == ["holds"]
    put(results, plan.imitation(), CG[:1] * 2 + CG[:-2])
    assert judgements(imitation.error_verdicts(results)) == ["differs"]


def test_every_seed_has_to_imitate(results):
    for seed in plan.SEEDS:
        put(results, plan.joint(seed=seed), CG, intermediate=[1.0] * 21, discrepancy=0.1)
        put(results, plan.imitation(seed=seed), CG, intermediate=[2.0] * 21, discrepancy=0.3)
    every = imitation.error_verdicts, imitation.intermediate_verdicts, lambda rs: discrepancy.first_verdicts(rs)[1:2]
    assert [judgements(verdicts(results)) for verdicts in every] == [["holds"]] * 3
    put(results, plan.joint(seed=2), CG[:1] * 2 + CG[:-2], intermediate=[2.5] * 21, discrepancy=0.4)
    assert [judgements(verdicts(results)) for verdicts in every] == [["differs"]] * 3
    (verdict,) = imitation.error_verdicts(results)
    assert "(3 seeds)" in verdict.found and counted(CG, CG[:1] * 2 + CG[:-2]) in verdict.found


def test_other_seeds_are_told_beside_the_headline(results):
    accelerate(results, cg=2, pcg=2)
    assert not any("seeds" in verdict.found for verdict in sigma.verdicts(results))
    put(results, plan.accelerated("cg", seed=1), CG)
    assert f"From 2 seeds at sigma 1.2: {counted(CG, faster(2))} for {counted(CG)}." in sigma.verdicts(results)[0].found


@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [
        (1.0, 1.0, ["holds", "holds", "holds"]),
        (1e3, 1.9, ["holds", "differs", "holds"]),  # 15 iterates of 20 are supervised: the others may be anything
        (1.0, 2.1, ["differs", "holds", "holds"]),
    ],
)
def test_a_window_is_judged_by_the_iterates_in_it(results, early, late, expected):
    for config in plan.over_window():
        assert judgements(window.verdicts(results))[2] == "not yet run"
        factors = [1.0] * 21 if config.window == 20 else [early] * 6 + [late] * 15
        put(results, config, [error * factor for error, factor in zip(CG, factors, strict=True)])
    assert judgements(window.verdicts(results)) == expected


@pytest.mark.parametrize(
    ("short", "last", "expected"), [(10, 2.0, "differs"), (15, None, "differs"), (20, 2.0, "holds")]
)
def test_a_run_that_ends_worse_than_zero_is_counted(results, short, last, expected):
    for config in plan.over_window():
        astray = config.window == short and config.teacher == "pcg" and config.sigma == (1.4,)
        put(results, config, [*CG[:-1], last] if astray else CG)
    *_, learned = window.verdicts(results)
    assert learned.judgement == expected and f"1 of 6 with {short} (PCG at sigma 1.4)" in learned.found
    drawn = window.ARTEFACT.draw(results)
    assert f"K = {short} (worse than x = 0)" in drawn.axes[-1].get_legend_handles_labels()[1]


def put_polished(results, before, fine, coarse, arithmetic=("bf16x3", "tf32")):
    stages = {"lambda100": before, "polished-lr0.0002": fine, "polished-tf32": coarse}
    for (stage, size), used in zip(stages.items(), ("float32", *arithmetic), strict=True):
        assert bundled.verdicts(results)[-1].judgement == "not yet run"
        name = f"bundled-cg-accelerated-{stage}"
        curve = [size * error for error in CG]
        put(results, plan.planned(name).config.replace(sigma=(1.2,)), curve, name=name, arithmetic=used)


@pytest.mark.parametrize(
    ("before", "fine", "coarse", "expected"),
    [
        (1.0, 1e-2, 2.1e-2, "holds"),
        (1.0, 1e-2, 1.9e-2, "differs"),
        (1.0, 1e-2, 5e-3, "differs"),
        (1e-3, 1e-2, 1.0, "differs"),  # polishing did harm, whatever the digits
    ],
)
def test_digits_are_judged_beside_the_control(results, before, fine, coarse, expected):
    put_polished(results, before, fine, coarse)
    assert bundled.verdicts(results)[-1].judgement == expected


def test_digits_that_were_the_same_decide_nothing(results):
    put_polished(results, 1.0, 1e-2, 1.0, arithmetic=("float32", "float32"))  # on a CPU
    assert bundled.verdicts(results)[-1].judgement == "not reproducible as stated"


@pytest.mark.parametrize(("second", "expected"), [(1.4, "holds"), (1.6, "differs"), (1 / 1.6, "differs")])
def test_seeds_tell_how_much_is_luck(results, second, expected):
    for seed in plan.SEEDS:
        assert judgements(headline.verdicts(results))[0] == "not yet run"
        for config in plan.from_seed(seed):
            put(results, config, scaled(second if seed == 1 and config.supervision == "joint" else 1.0))
    assert judgements(headline.verdicts(results))[0] == expected


def test_the_kinds_are_what_their_labels_say():
    for label, config in plan.kinds().items():
        assert ("power 1" in label) == (config.power == 1)
        assert ("faster" in label) == (config.supervision == "step+solution")
        assert ("PCG" in label) == (config.teacher == "pcg") and ("joint" in label) == (config.supervision == "joint")


@pytest.mark.parametrize(
    ("medians", "expected"), [((40, 60, 90), ["holds"] * 2), ((40, 60, 600), ["differs", "holds"]),
                              ((90, 60, 60), ["holds", "differs"]), ((40, 42, 90), ["holds", "differs"])],
)  # fmt: skip
def test_what_the_diagonal_does(results, medians, expected):
    assert judgements(systems.verdicts(results)) == ["not yet run"] * 2
    rows = {f"{sigma:g}": [median / 2, median, 2 * median] for sigma, median in zip(plan.SIGMAS, medians, strict=True)}
    results.write(systems.FILE, {"count": 9, "n": 20, "condition": {"without": [100, 500, 900]} | rows})
    assert judgements(systems.verdicts(results)) == expected
    assert ("overlap" in systems.verdicts(results)[1].found) == (max(medians) < 4 * min(medians))


def test_condition_numbers_are_measured(results):
    systems.measure(results, small=True)
    condition = results.file(systems.FILE)["condition"]
    assert all(1 < low < median < high for low, median, high in condition.values())
    assert systems.verdicts(results)[0].judgement == "holds"  # even of 64 matrices


def ahead_of(teacher, factor):
    """A curve that is ahead of its teacher by a factor, everywhere."""
    return [error / factor for error in teacher]


@pytest.mark.parametrize(("factor", "expected"), [(1.0, "holds"), (1.9, "holds"), (0.4, "differs"), (2.1, "differs")])
def test_lambda_sets_the_lead(results, factor, expected):
    for weight in plan.LAMBDAS[1:]:
        put(results, plan.paper_accelerated("cg", lambda_=weight), ahead_of(CG, (1 + weight) ** 2))
    assert judgements(lead.verdicts(results))[:2] == ["not yet run"] * 2
    weight = plan.LAMBDAS[0]
    put(results, plan.paper_accelerated("cg", lambda_=weight), ahead_of(CG, factor * (1 + weight) ** 2))
    assert judgements(lead.verdicts(results))[:2] == ["not reproducible as stated", expected]


@pytest.mark.parametrize(
    ("control", "let_go", "expected"),
    [(100, 500, "holds"), (100, 50, "differs"), (600, 500, "differs")],  # the last: more steps alone bring more
)
def test_letting_go_of_the_teacher(results, control, let_go, expected):
    for teacher in plan.TEACHERS:
        for run, ahead in (("150k", 100), ("lambda10", control), ("lambda100", let_go)):
            assert judgements(lead.verdicts(results))[2] == "not yet run"
            name = f"bundled-{teacher}-accelerated-{run}"
            put(results, plan.planned(name).config.replace(sigma=(1.2,)), ahead_of(CG, ahead), name=name)
    assert judgements(lead.verdicts(results))[2] == expected


def test_a_model_that_diverged_has_no_lead(results):
    for weight in plan.LAMBDAS:
        put(results, plan.paper_accelerated("cg", lambda_=weight), ahead_of(CG, (1 + weight) ** 2))
    put(results, plan.paper_accelerated("cg", lambda_=1.0), [1.0, *[None] * 20])
    assert judgements(lead.verdicts(results))[1] == "differs" and "0 at 1," in lead.verdicts(results)[1].found
    assert lead.sheets(results) and lead.draw(results)


def test_the_lead_of_a_tiny_model_is_shown_as_far_as_it_goes(results):
    put(results, plan.paper_accelerated("cg"), ahead_of(CG[:5], 2.0), cg=CG[:5])
    (sheet,) = lead.sheets(results)
    assert sheet.headings[2:] == ("t = 1", "t = 2", "t = 3", "t = 4")
    assert all(len(line) == len(sheet.headings) for line in sheet.lines)


@pytest.mark.parametrize(("last", "expected"), [(1e-7, "holds"), (9e-6, "differs"), (None, "not yet run")])
def test_annealing_further(results, last, expected):
    history = {"step": [0, 50_000, 120_000, 135_000, 150_000], "final_error": [1.0, 1e-3, 1e-5, 5e-6, last]}
    for name in learning_rate.ANNEALED.values():
        assert judgements(learning_rate.verdicts(results))[2] == "not yet run"
        config = plan.planned(name).config
        document = {
            "config": config.to_json(),
            "history": history,
            "evaluations": {},
            "trained": {"arithmetic": "tf32"},
        }
        results.write(f"runs/{name}.json", document)
    assert judgements(learning_rate.verdicts(results))[2] == expected


def test_the_table_of_operations_is_judged_entry_by_entry(results):
    assert set(judgements(operations.verdicts(results))) == {"not yet run"}
    document = Results(ROOT / "results").file(operations.FILE)
    for row in document["rows"]:
        loop = row["loop_transformer"]
        row["cost"] |= {kind: int(row["printed"][kind]) for kind in ("layers", "heads")}
        row["growth"] = operations.ORDERS[row["printed"]["entries"]]
        if loop is not None:
            layers = loop["printed"]["layers"]
            loop["cost"]["layers"] = int(layers.rstrip("n")) * (row["n"] if layers.endswith("n") else 1)
            loop["growth"] = operations.ORDERS[loop["printed"]["entries"]]
    results.write(operations.FILE, document)
    said = judgements(operations.verdicts(results))
    assert said.count("differs") == 0 and said.count("not reproducible as stated") == 1  # accuracy has its limit
    for kind, changed in (("layers", 3), ("heads", 3)):  # one more layer, one more head: two claims differ, or one
        rows = [row | {"cost": row["cost"] | {kind: changed}} for row in document["rows"]]
        results.write(operations.FILE, document | {"rows": rows})
        assert "differs" in judgements(operations.verdicts(results)), kind
    results.write(operations.FILE, document | {"rows": [row | {"growth": 3.0} for row in document["rows"]]})
    assert (
        judgements(operations.verdicts(results)).count("differs") == 2
    )  # the sizes, and the comparison of a transpose
