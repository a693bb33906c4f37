"""Families and teachers of a user's own, and settings that have no effect."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import problems
from nlaformer.errors import NLAFormerError, OptionError, UnknownNameError
from nlaformer.learn import teachers
from nlaformer.learn.checkpoint import read_manifest
from nlaformer.learn.data import Stream
from nlaformer.learn.model import initial
from nlaformer.learn.recipes import Config
from nlaformer.learn.sources import Options
from tests.training import TINY, equal, final, imported, train

ROOT = Path(__file__).parent.parent
MINE = """
import dataclasses
import torch
import nlaformer as nf

@dataclasses.dataclass(frozen=True)
class Diagonal(nf.problems.Family):
    n: int = 4
    spread: float = 1.0

    def matrices(self, draw, count):
        return torch.diag_embed(torch.exp(self.spread * draw.normal("diagonal", count, self.n)))

class HeavyBall(nf.Program):
    def __init__(self, step_size=0.1, momentum=0.5):
        self.step_size, self.momentum = step_size, momentum

    def start(self, A, b, x0):
        return dict(x=x0, previous=x0, rho=nf.dot(b, b))

    def step(self, A, b, x, previous, rho):
        r = b - A @ x
        x_next = x + self.step_size / nf.norm(A) * r + self.momentum * (x - previous)
        return dict(x=x_next, previous=x, rho=nf.dot(r, r))

class Shifted(HeavyBall):
    shift = [1.0, 2.0]

    def step(self, A, b, x, previous, rho):
        return dict(x=x + self.shift, previous=x, rho=rho)

class Switched(HeavyBall):
    def __init__(self, fast=True, momentum=0.5, width=1, rule: "float | str" = 1.0, known: "bool | None" = True):
        super().__init__(momentum=momentum)
        self.fast, self.width, self.rule, self.known = fast, width, rule, known

class Plain:
    def __init__(self, n, scale=1.0):
        self.n = n

class Local:
    pass
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    yield from imported("mine", MINE, tmp_path, monkeypatch)


def test_a_family_of_ones_own_is_recorded_by_name_and_options(mine):
    config = TINY.replace(family=mine.Diagonal(n=3, spread=0.5))
    assert (config.family, config.n, dict(config.family_options)) == ("mine:Diagonal", 3, {"spread": 0.5})
    assert config == TINY.set(["family=mine:Diagonal", "family.spread=0.5"])
    again = Config.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config and hash(again) == hash(config)
    assert again.make_family() == mine.Diagonal(n=3, spread=0.5)
    assert TINY.replace(family=mine.Diagonal).make_family() == mine.Diagonal(n=3)


@pytest.mark.parametrize(("text", "value"), [("False", False), ("no", False), ("0", False), ("yes", True), ("1", True)])
def test_an_option_that_is_a_truth_value_is_parsed_as_one(text, value, mine):
    config = Config().set(["teacher=mine:Switched", f"teacher.fast={text}"])
    assert config.teacher_options["fast"] is value
    assert config == Config().replace(teacher=mine.Switched).set([f"teacher.fast={text}"])
    assert config.complaints() == []


def test_an_option_is_parsed_as_its_default_and_its_annotation_may_allow_more(mine):
    given = ["teacher.momentum=.5", "teacher.width=2e0", "teacher.rule=auto", "teacher.known=null"]
    config = Config().set(["teacher=mine:Switched", *given]).validate()
    assert dict(config.teacher_options) == {"momentum": 0.5, "width": 2, "rule": "auto", "known": None}
    assert isinstance(config.teacher_options["width"], int)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fast": "off"}, "teacher.fast='off'"), ({"fast": "False"}, "teacher.fast"), ({"fast": 2}, "teacher.fast=2"),
        ({"fast": None}, "teacher.fast"), ({"known": "no"}, "teacher.known"), ({"momentum": "half"}, "momentum="),
        ({"width": "2"}, "teacher.width='2'"),
    ],
)  # fmt: skip
def test_a_text_in_place_of_a_truth_value_or_a_number_is_a_complaint(options, words, mine):
    (complaint,) = Config(teacher="mine:Switched", teacher_options=Options(options)).complaints()
    assert words in complaint


@pytest.mark.parametrize("family", ["rbf", "mine:Diagonal", "matrix-market"])
def test_an_option_that_the_config_itself_gives_is_a_complaint(family, mine):
    complaints = Config().set([f"family={family}", "family.n=5"]).complaints()
    assert [line for line in complaints if "--set n=5" in line]
    assert [line for line in Config(family_options=Options(sigma=2)).complaints() if "--set sigma=2" in line]


def test_a_config_of_an_older_version_with_an_option_that_it_gives_itself_is_read():
    old = {"family": "rbf", "n": 8, "family_options": {"n": 5, "ridge": 0.5}}
    assert Config.from_json(old) == Config(family="rbf", n=8, family_options=Options(ridge=0.5))


def test_options_leave_with_the_family_they_belong_to(mine):
    config = TINY.replace(family=mine.Diagonal(n=3, spread=0.5))
    assert config.replace(family="rbf").family_options == Options()
    assert config.set(["family.spread=2"]).make_family().spread == 2
    with pytest.raises(UnknownNameError, match="spread"):
        config.set(["family.spraed=2"]).make_family()


def test_a_config_takes_the_size_of_a_given_family():
    assert Config().replace(family=problems.SPD(n=7, sigma=1.4)).sigma == (1.4,)
    assert Config().replace(family=problems.SPD(n=7, sigma=1.4)).n == 7
    with pytest.raises(OptionError, match="n=8"):
        Config().replace(family=problems.RBFKernel(n=7), n=8)


def test_what_a_config_cannot_record_is_refused_in_words(mine):
    changed = mine.HeavyBall()
    changed.step_size = 0.2
    changed.other = 1.0
    weighted = mine.HeavyBall()
    weighted.weights = np.ones(3)
    for given, words in (
        ({"family": mine.Plain(n=3)}, "scale"),
        ({"teacher": changed}, "other"),
        ({"teacher": weighted}, "weights"),
        ({"family": 3}, "family=3"),
        ({"family": mine.Diagonal(n=3, spread=lambda: 1)}, "JSON"),
    ):
        with pytest.raises(OptionError, match=words):
            TINY.replace(**given)

    class Inner(problems.Family):
        n = 3

    with pytest.raises(OptionError, match="Inner"):
        TINY.replace(family=Inner())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["family=nowhere:Diagonal"], "nowhere"),
        (["family=mine:Diagnoal"], "Diagnoal"),
        (["family=mine:Plain"], "sample"),
        (["teacher=mine:Diagonal"], r"nf\.Program"),
        (["teacher=power"], "A x = b"),
        (["teacher=mine:HeavyBall", "probe=r"], "previous"),
        (["teacher=mine:Shifted"], r"self\.shift"),
        (["teacher=cgg"], "cg"),
    ],
)
def test_sources_that_cannot_be_used_are_complaints(settings, words, mine):
    with pytest.raises(NLAFormerError, match=words):
        TINY.set(settings).validate()


def test_a_matrix_of_a_file_can_be_trained_on(tmp_path):
    text = "%%MatrixMarket matrix coordinate real symmetric\n3 3 4\n1 1 4\n2 1 1\n2 2 3\n3 3 2\n"
    (tmp_path / "A.mtx").write_text(text)
    config = TINY.set(["family=matrix-market", f"family.path={tmp_path / 'A.mtx'}"]).validate()
    assert Stream(config).batch(0).A[0].tolist() == [[4, 1, 0], [1, 3, 0], [0, 0, 2]]
    with pytest.raises(OptionError, match="set n=3"):
        config.replace(n=4).validate()
    with pytest.raises(OptionError, match="path"):
        TINY.set(["family=matrix-market"]).validate()


@pytest.mark.parametrize(
    "settings",
    [
        ["family=poisson-1d", "sigma=0.1"], ["eta=0.1"], ["lambda=3"], ["supervision=solution", "lambda=3"],
        ["floor=1e-9"], ["inject=yes", "truncate=yes"],
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_refused(settings):
    with pytest.raises(OptionError, match=settings[-1].partition("=")[0]):
        Config().set(settings)


def test_a_setting_without_effect_in_the_constructor_is_a_complaint():
    assert [line for line in Config(eta=0.1).complaints() if "eta" in line]
    assert [line for line in Config(family="rbf", sigma=(0.1,)).complaints() if "sigma" in line]


def test_settings_that_lose_their_effect_return_to_their_defaults():
    joint = Config().replace(supervision="joint", eta=0.1)
    assert joint.replace(supervision="result") == Config()
    assert "eta" in joint.to_json() and "eta" not in Config().to_json()


def test_a_config_of_an_older_version_with_settings_without_effect_is_read():
    old = {"family": "poisson-1d", "sigma": [0.1], "supervision": "result", "eta": 0.3, "lambda_": 100.0, "T": 7}
    assert Config.from_json(old) == Config(family="poisson-1d", T=7)
    assert Config.from_json(old).complaints() == []


def test_poisson_takes_its_own_sigma():
    config = Config().set(["family=poisson-1d", "family.sigma=0.1"])
    assert config.make_family() == problems.Poisson1D(n=20, sigma=0.1)


def test_an_option_of_the_family_that_a_config_has_already_is_kept():
    config = Config().set(["family=poisson-1d"]).set(["family.sigma=0.1"])
    assert config.make_family() == problems.Poisson1D(n=20, sigma=0.1)


def states(program, A, b, T):
    """The run of a program, system by system."""
    return program.run(A, b, iterations=T)


@pytest.mark.parametrize("name", ["cg", "pcg", "steepest_descent", "conjugate_residual"])
def test_a_program_as_teacher_gives_the_iterates_of_its_run(name):
    A, b, _ = problems.SPD(n=5).sample(3, seed=0)
    program = teachers.known()[name]()
    run = states(program, A, b, 4)
    x, watched = teachers.teacher(name, probe=("r",))(A, b, 4)
    torch.testing.assert_close(x, run.x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(watched, run.state["r"], rtol=1e-10, atol=1e-12)


def test_cg_and_pcg_as_teachers_keep_their_bits():
    A, b, _ = problems.SPD(n=6).sample(4, seed=1)
    for name, method in (("cg", teachers.cg), ("pcg", teachers.pcg)):
        path = method(A, b, 8)
        x, rd = teachers.teacher(name)(A, b, 8)
        assert torch.equal(x, path.x) and torch.equal(rd, torch.cat([path.r, path.d], -1))


def test_every_state_of_a_teacher_can_be_probed(mine):
    config = TINY.replace(teacher=mine.HeavyBall(step_size=0.2))
    A, b, _ = problems.SPD(n=3).sample(2, seed=0)
    run = states(mine.HeavyBall(step_size=0.2), A, b, 3)
    _, watched = config.make_teacher()(A, b, 3)
    torch.testing.assert_close(watched, torch.cat([run.state["previous"], run.state["rho"][..., None]], -1))
    assert initial(config).probe_rd.weight.shape == (4, 8)
    assert initial(config.replace(probe=("rho",))).probe_rd.weight.shape == (1, 8)


def test_members_with_other_probed_states_do_not_stack(mine, tmp_path):
    with pytest.raises(OptionError, match="probed"):
        train([TINY, TINY.replace(teacher=mine.HeavyBall)], tmp_path / "stack")


def test_a_family_and_a_teacher_of_ones_own_train_resume_and_evaluate(mine, tmp_path):
    config = TINY.replace(family=mine.Diagonal(n=3, spread=0.5), teacher=mine.HeavyBall(step_size=0.2))
    train(config, tmp_path / "undisturbed")
    train(config, tmp_path / "run", minutes=0.0)
    settings = ["n=3", "T=3", "d=8", "heads=2", "batch=4", "steps=12", "warmup=2", "chunk=4", "recipe=custom"]
    settings += ["family=mine:Diagonal", "family.spread=0.5", "teacher=mine:HeavyBall"]
    settings += ["teacher.step_size=0.2", "teacher.momentum=0.5"]
    train(Config().set(settings), tmp_path / "run")  # what the command line makes of it
    assert equal(final(tmp_path / "run"), final(tmp_path / "undisturbed"))
    assert read_manifest(tmp_path / "run")["config"]["family"] == "mine:Diagonal"
    from nlaformer.learn.evaluate import evaluate

    own = evaluate(nf.load(tmp_path / "run"), count=4)[0]
    assert own.label == "mine:Diagonal" and len(own.intermediate) == 4


def test_a_model_loads_where_its_family_and_teacher_are_not(mine, tmp_path):
    config = TINY.replace(family=mine.Diagonal(n=3), teacher=mine.HeavyBall())
    initial(config).save(tmp_path / "model")
    code = f"import nlaformer as nf, sys; nf.load({str(tmp_path / 'model')!r}); assert 'mine' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
