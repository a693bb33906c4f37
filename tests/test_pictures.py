"""Results as pictures and panels: what they state is what the results hold, and names cannot become markup."""

from __future__ import annotations

import builtins
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import MissingPackageError, OptionError, UnknownNameError
from nlaformer.learn.compare import compare
from nlaformer.learn.evaluate import measure
from nlaformer.learn.model import initial, stack
from nlaformer.learn.models import untrained
from nlaformer.microscope.battery import Effort
from nlaformer.report import curves
from nlaformer.report import microscope as drawn
from nlaformer.report.html import page, panel, script, spark, table, tag

EVIL = '<img src=x onerror="alert(1)">$_{</script>'
TINY = {"n": 3, "T": 3, "d": 8, "heads": 2, "batch": 4, "steps": 4, "warmup": 1}
A, B = np.diag([1.0, 2.0, 3.0]) + 0.2, np.ones(3)


class _Seen(HTMLParser):
    """The elements and the text of a panel."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, name: str, attributes: list) -> None:
        self.tags.append(name)
        self.open.append(name)
        assert not any(key.startswith("on") for key, _ in attributes)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.text += data


def _seen(thing: object) -> _Seen:
    found = _Seen(thing._repr_html_())  # type: ignore[attr-defined]
    assert not found.open and not {"img", "script", "link", "iframe"} & set(found.tags)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("<b>runs<b>")
    return nf.train(nf.recipe("quickstart", **TINY), out=folder, device="cpu", progress=False, log_every=1)


class Halves(nf.Program):
    """A program that has no residual."""

    def start(self, x0):
        return dict(x=x0)

    def step(self, x):
        return dict(x=0.5 * x)


class Damped(nf.Program):
    omega = 0.03

    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        return dict(x=x + self.omega * (b - A @ x))


def _results(trained) -> dict[str, object]:
    cg = nf.algorithm("cg", n=3, verify=False)
    systems = nf.problems.SPD(n=3).sample(4, seed=0)
    guided = untrained(nf.recipe("guided-quickstart", **TINY))
    return {
        "run": cg.run(A, B, iterations=4),
        "runs": cg.run(torch.as_tensor(A), torch.randn(5, 3, dtype=torch.float64), iterations=4),
        "without residual": Halves().run(x0=np.ones(3), iterations=4),
        "nothing": Halves().run(x0=np.ones((0, 3)), iterations=0),
        "program": guided.run(A, B, iterations=3),
        "solve": nf.solve(A, B),
        "solves": nf.solve(A, np.stack([B, 2 * B], 1)),
        "failed": nf.solve(-A, B, check="ignore"),
        "nothing finite": nf.solve(A, np.array([np.nan, 1, 1]), check="ignore"),
        "eigenpair": nf.eigenpair(A),
        "root": nf.solve_nonlinear(lambda x: x**2 - 2.0, np.ones(3)),
        "training": trained,
        "evaluation": measure(trained.model, "own", systems),
        "comparison": compare(guided, EVIL, systems),
        "microscope": nf.microscope(Damped(), nf.problems.SPD(n=4), iterations=3, effort=Effort(4, 1, 16, 16)),
        "extraction": nf.extract(Damped(), nf.problems.SPD(n=4), programs=[Damped()], until=2, count=8),
        "probes": nf.probe(cg, targets=["cg.r"], iterations=2, systems=160, controls=False),
    }


@pytest.fixture(scope="module")
def results(trained) -> dict[str, object]:
    return _results(trained)


NAMES = ("run", "runs", "without residual", "nothing", "program", "solve", "solves", "failed", "nothing finite",
         "eigenpair", "root", "training", "evaluation", "comparison", "microscope", "extraction", "probes")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_result_draws_a_figure_that_a_notebook_shows(name: str, results: dict):
    figure = results[name].plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    drawn = [line for axes in figure.axes for line in axes.lines]
    finite = any(np.isfinite(np.asarray(line.get_ydata(), float)).any() for line in drawn)
    assert finite or name.startswith("nothing")


def test_models_and_results_print_as_a_few_lines_without_their_numbers(results: dict, trained):
    guided = untrained(nf.recipe("guided-quickstart", **TINY))
    printed = [results[name] for name in ("run", "solve", "training", "evaluation", "comparison")]
    for shown in (*printed, trained.model, guided, stack([guided, guided]), nf.algorithm("cg", n=3).model):
        assert repr(shown).startswith("<") and len(repr(shown)) < 300 and "\n" not in repr(shown)
        assert len(str(shown).splitlines()) <= 10 and "tensor" not in str(shown)
    assert "precondition" in str(guided) and f"n = {guided.config.n}" in str(guided)
    assert str(trained.folder) in repr(trained) and f"{trained.steps:,} steps" in repr(trained)
    comparison = results["comparison"]
    assert all(name in str(comparison) for name in comparison.mean) and comparison.label in repr(comparison)


def test_titles_state_the_status_the_work_and_the_residual_of_the_result(results: dict):
    for name in ("run", "solve", "failed"):
        result = results[name]
        title = result.plot().axes[0].get_title()
        last = result.residual_norms[-1] if name == "run" else result.residual_norm
        work = 4 if name == "run" else result.matvecs
        assert title.startswith(result.status.name) and f"{last:.2g}" in title and str(work) in title.split()
    title = results["solves"].plot().axes[0].get_title()
    assert title.startswith("2 CONVERGED") and f"{max(results['solves'].residual_norm):.2g}" in title


def test_a_run_is_drawn_with_its_own_numbers(results: dict):
    run, many = results["run"], results["runs"]
    (line,) = run.plot().axes[0].lines
    shown = np.asarray(line.get_ydata())
    assert np.array_equal(shown[run.residual_norms > 0], run.residual_norms[run.residual_norms > 0])
    (line,) = results["without residual"].plot().axes[0].lines
    assert np.allclose(line.get_ydata(), np.sqrt(3) / 2.0 ** np.arange(1, 5))  # how far the answer moves
    median = np.asarray(many.plot().axes[0].lines[0].get_ydata())
    assert np.allclose(median[:3], np.median(many.residual_norms.numpy(), axis=0)[:3])


def test_a_training_run_is_drawn_from_its_metrics(trained):
    left, right = trained.plot().axes
    assert len(left.lines[0].get_ydata()) == 4
    start, *_, end = right.lines
    assert start.get_label() == "step 0" and end.get_label() == "step 4"
    assert f"{np.asarray(end.get_ydata())[-1]:.2g}" in trained.finding


def test_the_curves_of_a_comparison_are_the_models_and_its_rivals(results: dict):
    found = results["comparison"]
    drawn = {str(line.get_label()): line for line in found.plot().axes[0].lines}
    for name, errors in found.mean.items():
        assert np.allclose(np.asarray(drawn[name].get_ydata())[:3], errors[:3])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "evaluation"])
def test_a_panel_is_well_formed_and_states_what_the_result_says(name: str, results: dict):
    seen = _seen(results[name])
    if hasattr(results[name], "finding"):
        assert results[name].finding in seen.text
    assert len(results[name]._repr_html_()) < 20_000


@pytest.mark.parametrize(
    "make",
    [
        lambda n: nf.operation("matmul", n=n),
        lambda n: nf.algorithm("cg", n=n, verify=False),
        lambda n: nf.algorithm("cg", n=n, verify=False).model,
        lambda n: initial(nf.recipe("quickstart", **TINY | {"d": 8 * n})),
        lambda n: untrained(nf.recipe("guided-quickstart", **TINY | {"d": 8 * n})),
    ],
)
def test_a_model_shows_its_sizes_and_none_of_its_weights(make):
    small, large = make(2), make(6)
    shown = [len(model._repr_html_()) for model in (small, large)]
    assert abs(shown[1] - shown[0]) < 40 < shown[0] < 20_000
    assert _seen(large).text != _seen(small).text


def test_names_and_folders_are_shown_as_text(trained, results: dict):
    class Named(Damped):
        pass

    Named.__name__ = EVIL
    compiled = nf.compile(Named(), n=3, verify=False)
    assert EVIL in _seen(compiled).text
    assert "<b>" in str(trained.folder) and str(trained.folder) in _seen(trained).text
    assert EVIL in _seen(results["comparison"]).text
    assert EVIL in _seen(replace(trained, config=trained.config.replace(recipe=EVIL))).text
    assert EVIL in _seen(initial(trained.config.replace(recipe=EVIL))).text


def test_markup_is_escaped_wherever_text_enters():
    for made in (tag("p", EVIL, title=EVIL), panel(EVIL, EVIL), table((EVIL,), [(EVIL,)]), spark([1, 2], EVIL)):
        assert "<img" not in made
    whole = page(EVIL, script({"name": EVIL}, "0"))
    assert "<img" not in whole and whole.count("</script>") == 1


def test_mathematics_in_a_name_does_not_break_a_figure():
    figure = curves.errors_figure({EVIL: [1.0, 0.1], "$x_$": [1.0, 0.2]}, EVIL, EVIL)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_scores_are_drawn_as_they_are_below_zero_too():
    figure = curves.scores_figure({"r": {"model": [0.5, -0.1], "permuted": [0.0, float("nan")]}}, ["title"], "R^2")
    model, permuted = (np.asarray(line.get_ydata()) for line in figure.axes[0].lines)
    assert model.tolist() == [0.5, -0.1] and permuted[0] == 0 and np.isnan(permuted[1])


def test_every_test_of_the_microscope_draws_a_figure(results: dict, monkeypatch: pytest.MonkeyPatch):
    seen = results["microscope"]
    of_all = [test for test in drawn.FIGURES if test != "interchange"]  # that one is of trained solvers
    for test in of_all:
        assert seen.plot(test).axes, test
    with pytest.raises(OptionError):
        seen.plot("interchange")
    with pytest.raises(UnknownNameError, match="krylov"):
        seen.plot("krilov")
    monkeypatch.setattr(drawn, "_svg", lambda figure: tag("svg"))  # to write all of them takes seconds
    assert seen.to_html().count("<svg") == len(of_all)


def test_many_curves_get_a_legend_and_few_carry_their_names():
    few = curves.errors_figure({str(k): [1.0, 0.1] for k in range(3)}, "", "").axes[0]
    many = curves.errors_figure({str(k): [1.0, 0.1] for k in range(9)}, "", "").axes[0]
    assert few.get_legend() is None and {"0", "1", "2"} <= {text.get_text() for text in few.texts}
    heights = sorted(text.get_position()[1] for text in few.texts)
    assert min(np.diff(heights)) > 0.05  # equal ends do not cover each other
    assert many.get_legend() is not None


def test_without_matplotlib_the_error_names_the_package(results: dict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "nlaformer.report.picture", raising=False)
    importing = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(f"No module named {name!r}")
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingPackageError, match="matplotlib"):
        results["run"].plot()
