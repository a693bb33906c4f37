"""Programs with learned parts: what a part may be given and say, and what is refused in words."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import CompileError, NLAFormerError, OptionError, ShapeError
from nlaformer.learn.methods import METHODS, GuidedCG, LearnedPCG
from nlaformer.learn.model import stack
from nlaformer.learn.programs import initial
from nlaformer.program.data import ProgramGraph
from tests.learned import TINY, systems
from tests.systems import ProposedCG


class Misused(nf.Program):
    """A program whose step is given to the constructor."""

    propose = nf.Learned("vector", memory=True)

    def __init__(self, direction):
        self.direction = direction

    def start(self, A, b, x0):
        return dict(x=x0, r=b - A @ x0)

    def step(self, A, b, x, r):
        return dict(x=x + self.direction(self, A, b, x, r), r=b - A @ x)


WRONG = {
    "unit": lambda self, A, b, x, r: self.propose(A, r),
    "has a unit": lambda self, A, b, x, r: nf.norm(x) * self.propose(A, r / nf.norm(b), x),
    "second": lambda self, A, b, x, r: self.propose(A, r / nf.norm(r)) + self.propose(A, b / nf.norm(b)),
    "first argument": lambda self, A, b, x, r: self.propose(r / nf.norm(r)),
    "matrix": lambda self, A, b, x, r: self.propose(A, A),
    "attribute": lambda self, A, b, x, r: nf.Learned("vector")(A, r / nf.norm(r)),
}


@pytest.mark.parametrize("word", WRONG)
def test_a_part_that_is_called_wrongly_is_refused_in_words(word):
    with pytest.raises(CompileError) as caught:
        initial(TINY, Misused(WRONG[word]))
    assert "WRONG" not in str(caught.value)
    lines = str(caught.value).splitlines()  # in the order: what, where (with the user's line), why
    assert len(lines) == 3 and word in lines[2]
    assert Path(__file__).name in lines[1]


def test_a_part_takes_values_without_a_unit():
    def direction(self, A, b, x, r):
        c = self.propose(A, r / nf.norm(r), b / nf.norm(b), nf.norm(r) / nf.norm(b))
        return nf.norm(x) * self.again(A, r / nf.norm(r)) * c

    class Twice(Misused):
        again = nf.Learned("scalar")

    model = initial(TINY, Twice(direction))
    A, b, _ = systems()
    assert model.run(A, b, x0=b, iterations=3).x.isfinite().all()
    assert model.networks["propose"].part.inputs == ["vector", "vector", "scalar"]


def test_a_part_takes_constants_without_leading_axes():
    def direction(self, A, b, x, r):
        return nf.norm(x) * self.propose(A, np.ones_like(r), 0.5)

    models = [initial(TINY.replace(seed=seed), Misused(direction)) for seed in range(2)]
    A, b, _ = systems(4)
    assert models[0].run(A, b, iterations=2).x.shape == (4, 3, 6)
    assert stack(models)(A.reshape(2, 2, 6, 6), b.reshape(2, 2, 6)).shape == (2, 2, 5, 6)


def test_a_part_in_finish_is_refused():
    class Late(ProposedCG):
        def finish(self, A, x, r):
            return x + self.propose(A, r / nf.norm(r))

    with pytest.raises(CompileError, match="finish"):
        initial(TINY, Late())


def test_memory_in_start_is_refused():
    class Early(LearnedPCG):
        def __init__(self):
            self.precondition = nf.Learned("diagonal + rank 1", memory=True)

    with pytest.raises(CompileError, match="memory"):
        initial(TINY, Early())


@pytest.mark.parametrize("gives", ["matrix", "diagonal + rank 0", "diagonal+rank 1", "", None, 3])
def test_an_unknown_kind_of_part_is_refused(gives):
    with pytest.raises(NLAFormerError):
        nf.Learned(gives)


def test_memory_is_a_flag():
    with pytest.raises(OptionError):
        nf.Learned("vector", memory="yes")


@pytest.mark.parametrize("program", [GuidedCG(), LearnedPCG()])
def test_an_open_program_neither_runs_nor_compiles(program):
    with pytest.raises(CompileError, match="train"):
        program.run(np.eye(3), np.ones(3))
    with pytest.raises(CompileError, match="train"):
        nf.compile(program, n=3)
    with pytest.raises(OptionError, match="train"):
        program.precondition(np.eye(3))


def test_a_program_without_a_learned_part_has_nothing_to_train():
    from nlaformer.compiler.library import program

    with pytest.raises(OptionError, match="no learned part"):
        initial(TINY, program("cg"))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_data_that_survives_json(name):
    graph = METHODS[name]().graph(4)
    assert ProgramGraph.read(json.loads(json.dumps(graph.data()))).data() == graph.data()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_m_is_the_inverse_of_a_diagonal_plus_columns(rank):
    model = initial(TINY, LearnedPCG(rank))
    A, b, _ = systems()
    D, U = model.preconditioner(A)
    assert U.shape == (5, 6, rank)
    M = torch.linalg.inv(torch.diag_embed(1 / D) + U @ U.mT)
    run = model.run(A, b, iterations=0)
    torch.testing.assert_close(run.state["d"][:, 0], (M @ b[..., None])[..., 0])


@pytest.mark.parametrize("program", [LearnedPCG(3, coarse=True), GuidedCG(3, coarse=True)])
def test_coarse_columns_are_those_of_m_itself(program):
    model = initial(TINY, program)
    with torch.no_grad():
        model.networks["precondition"].probe.weight.mul_(10.0)  # far from the Jacobi method
    A, b, _ = systems()
    if model.role == "preconditioner":
        D, U = model.preconditioner(A)
        M = torch.diag_embed(D) + U @ U.mT
        torch.testing.assert_close(model.run(A, b, iterations=0).state["d"][:, 0], (M @ b[..., None])[..., 0])
        ours, theirs = nf.solve(A, b, M=model), nf.solve(A, b, M=M)
        assert np.array_equal(ours.iterations, theirs.iterations) and ours.converged
        torch.testing.assert_close(ours.x, theirs.x)
    else:
        proposed, _ = model.propose(A, model.begin(A), b)
        d = model.run(A, b, iterations=1).state["d"][:, 1]
        torch.testing.assert_close(proposed / proposed.norm(dim=-1, keepdim=True), d / d.norm(dim=-1, keepdim=True))
    inverse = initial(TINY, type(program)(3))
    assert model.coarse and not inverse.coarse


def test_m_as_a_state_is_the_same_in_every_step():
    A, b, _ = systems()
    run = initial(TINY, LearnedPCG()).run(A, b, iterations=3)
    assert set(run.state) == {"x", "r", "d", "rho", "M.diagonal", "M.column1"}
    assert (run.state["M.diagonal"] == run.state["M.diagonal"][:, :1]).all()


@pytest.mark.parametrize("gives", ["vector", "scalar", "positive scalar", "positive diagonal"])
@pytest.mark.parametrize("method", ["start", "step"])
def test_every_kind_of_part_gives_its_kind(gives, method):
    class Kinds(nf.Program):
        part = nf.Learned(gives)

        def start(self, A, b):
            given = self.part(A, b / nf.norm(b)) if method == "start" else 0.0
            return dict(x=given + nf.zeros_like(b), y=b / nf.norm(b))

        def step(self, A, x, y):
            return dict(x=self.part(A, y) + nf.zeros_like(x) if method == "step" else x, y=y)

    A, b, _ = systems()
    x = initial(TINY, Kinds()).run(A, b, iterations=1).x[:, -1]
    assert x.shape == (5, 6)
    assert (x == x[:, :1]).all() == ("scalar" in gives)
    assert not gives.startswith("positive") or (x > 0).all()


def test_a_part_that_is_called_in_vain_is_refused_by_name() -> None:
    class Vain(nf.Program):
        propose = nf.Learned("vector")

        def start(self, A, b, x0):
            return dict(x=x0, r=b - A @ x0)

        def step(self, A, x, r):
            self.propose(A, r / nf.norm(r))
            return dict(x=x, r=r)

    with pytest.raises(CompileError, match="propose"):
        initial(TINY, Vain())


def test_a_part_that_is_never_called_is_refused_by_name() -> None:
    class Forgotten(ProposedCG):
        scale = nf.Learned("positive scalar")

    with pytest.raises(OptionError, match="scale"):
        initial(TINY, Forgotten())


class Weighted(nf.Program):
    """A direction whose entries are weighed by constants, or that is given them."""

    propose = nf.Learned("vector")

    def __init__(self, weights, given=False):
        self.weights, self.given = weights, given

    def start(self, A, b, x0):
        return dict(x=x0, r=b - A @ x0)

    def step(self, A, b, x, r):
        c = self.propose(A, self.weights if self.given else r / nf.norm(r))
        return dict(x=x + nf.norm(x) * (c if self.given else self.weights * c), r=b - A @ x)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("length", [TINY.n - 1, TINY.n + 1])
@pytest.mark.parametrize("kind", [np.array, torch.tensor, list, np.ones_like])
def test_constants_of_another_size_than_n_are_refused_by_name(kind, length, given) -> None:
    program = Weighted(kind([1.0 + k for k in range(length)]), given)
    with pytest.raises(CompileError, match=r"self\.weights"):
        initial(TINY, program)


def test_a_model_with_constants_takes_systems_of_their_size_alone(tmp_path) -> None:
    initial(TINY, Weighted(np.arange(1.0, 7.0))).save(tmp_path)
    model, (A, b, _) = nf.load(tmp_path), systems()
    assert model.run(A, b, iterations=2).x.shape == (5, 3, 6)
    with pytest.raises(ShapeError, match="6"):
        model.run(A[:, :4, :4], b[:, :4], iterations=2)


@pytest.mark.parametrize("use", [lambda program: initial(TINY, program), lambda program: nf.compile(program, n=6)])
def test_more_columns_than_unknowns_are_refused_before_they_are_unrolled(use) -> None:
    with pytest.raises(CompileError, match="rank 1000000"):
        use(LearnedPCG(rank=1_000_000))
    assert initial(TINY, LearnedPCG(rank=6)).run(*systems()[:2], iterations=1).x.shape == (5, 2, 6)


class Shared(nf.Program):
    """A part under a second name, given by the constructor."""

    propose = nf.Learned("vector")

    def __init__(self, again):
        self.again = again

    def start(self, A, b, x0):
        return dict(x=x0, r=b - A @ x0)

    def step(self, A, x, r):
        unit = r / nf.norm(r)
        return dict(x=x + nf.norm(x) * (self.propose(A, unit) + self.again(A, unit)), r=r)


def test_one_part_under_two_names_is_refused_with_both() -> None:
    with pytest.raises(CompileError, match=r"propose and again"):
        initial(TINY, Shared(Shared.propose))
    assert set(initial(TINY, Shared(nf.Learned("vector"))).networks) == {"propose", "again"}


def test_a_part_has_the_name_that_its_own_program_gives_it() -> None:
    class Other(Shared):
        first = propose = None
        second = Shared.propose

        def step(self, A, x, r):
            return dict(x=x + nf.norm(x) * self.second(A, r / nf.norm(r)), r=r)

    assert set(initial(TINY, Other(None)).networks) == {"second"}
    assert "propose" in initial(TINY, Shared(nf.Learned("vector"))).networks
