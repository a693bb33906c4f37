"""What a program guarantees whatever its learned part says."""

import pytest
import torch

import nlaformer as nf
from nlaformer.learn.methods import METHODS, GuidedCG, LearnedPCG
from nlaformer.learn.programs import initial
from tests.learned import TINY, systems
from tests.systems import ProposedCG


def a_norm(A, error):
    """The error of every iterate in the norm of A, (..., T+1)."""
    return torch.einsum("...ti,...ij,...tj->...t", error, A, error).sqrt()


class Replaced(torch.nn.Module):
    """A network whose answer is replaced."""

    def __init__(self, network, answer):
        super().__init__()
        self.network, self.answer = network, answer
        self.part, self.positions = network.part, network.positions
        self.begin, self.first, self.blocks = network.begin, network.first, network.blocks

    def step(self, A, *values):
        given = self.network.step(A, *values)
        return given | {"value": self.answer(given["value"])}


def replaced(model, answer):
    other = initial(model.config, ProposedCG())
    other.load_state_dict(model.state_dict())
    other.networks["propose"] = Replaced(other.networks["propose"], answer)
    return other


ANSWERS = {
    "its own": lambda c: c,
    "constant": torch.ones_like,
    "constant but for rounding": lambda c: torch.ones_like(c) * (1 + c / 3),
    "nothing": torch.zeros_like,
    "large": lambda c: 1e30 * c,
    "small": lambda c: 1e-30 * c,
    "one entry": lambda c: torch.nn.functional.one_hot(c.abs().argmax(-1), c.shape[-1]).to(c),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_error_in_the_norm_of_a_never_grows_whatever_is_proposed(answer):
    model = replaced(initial(TINY, ProposedCG()), ANSWERS[answer])
    A, b, x = systems(64)
    iterates = model.run(A, b, iterations=40).x
    assert iterates.isfinite().all()
    error = a_norm(A, iterates - x[:, None])
    assert (error[:, 1:] <= error[:, :-1] + 1e-13 * error[:, :1]).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["guided-cg", "learned-pcg"])  # the others do not minimize this error
def test_weights_that_are_not_finite_leave_the_run_finite(name, value):
    model = initial(TINY, METHODS[name]())
    with torch.no_grad():
        for network in model.networks.values():
            network.probe.weight[0] = value
    A, b, x = systems(16)
    iterates = model.run(A, b, iterations=8).x
    assert iterates.isfinite().all()
    error = a_norm(A, iterates - x[:, None])
    assert (error[:, 1:] <= error[:, :-1] + 1e-13 * error[:, :1]).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_network_of_nans_leaves_the_run_finite(name):
    model = initial(TINY, METHODS[name]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    A, b, _ = systems(16)
    run = model.run(A, b, iterations=12)
    assert run.x.isfinite().all()
    if name == "learned-pcg":
        jacobi = (1 / A.diagonal(dim1=-2, dim2=-1), torch.zeros(16, 6, 1, dtype=torch.float64))
        for found, wanted in zip(model.preconditioner(A), jacobi, strict=True):
            torch.testing.assert_close(found, wanted)


def test_the_opposite_direction_gives_the_same_iterates_bit_for_bit():
    model = initial(TINY, ProposedCG())
    A, b, _ = systems(16)
    opposite = replaced(model, lambda c: -c)
    assert torch.equal(model.run(A, b, iterations=12).x, opposite.run(A, b, iterations=12).x)


@pytest.mark.parametrize("size", [1.0, 30.0, 1e6])
@pytest.mark.parametrize("rank", [1, 4])
def test_m_is_positive_definite_on_every_input_with_any_weights(size, rank):
    A = [
        systems(32)[0],
        torch.eye(6).double().expand(4, 6, 6),
        torch.diag(10.0 ** torch.arange(-9, 9, 3).double())[None],
    ]
    A = torch.cat([*A, 1e150 * systems(4)[0], 1e-150 * systems(4)[0], torch.ones(1, 6, 6).double()])
    for seed in range(4):
        model = initial(TINY.replace(seed=seed), LearnedPCG(rank))
        with torch.no_grad():
            model.networks["precondition"].probe.weight *= size
        D, U = model.preconditioner(A)
        assert (D > 0).all() and D.isfinite().all() and U.isfinite().all()
        run = model.run(A, torch.ones(len(A), 6).double(), iterations=0)
        columns = [run.state[f"M.column{j}"][:, 0] for j in range(1, rank + 1)]
        M = torch.diag_embed(run.state["M.diagonal"][:, 0]) - sum(w[:, :, None] * w[:, None, :] for w in columns)
        scale = A.diagonal(dim1=-2, dim2=-1).sqrt()
        assert torch.equal(M, M.mT)
        assert (torch.linalg.eigvalsh(M * scale[:, :, None] * scale[:, None, :]) > 0).all()


@pytest.mark.parametrize("entry", [0.0, -1.0])
def test_a_matrix_that_is_not_positive_definite_gets_the_identity(entry):
    A, _, _ = systems(3)
    A[1, 2, 2] = entry
    D, U = initial(TINY, LearnedPCG()).preconditioner(A)
    assert (D > 0).all() and D.isfinite().all() and U.isfinite().all()
    assert (D[1] == 1).all() and (U[1] == 0).all() and (D[0] != 1).any()


def test_the_scale_of_a_and_b_does_not_matter():
    A, b, _ = systems()
    for program in (GuidedCG(), LearnedPCG()):
        model = initial(TINY, program)
        x = model.run(A, b, iterations=5).x
        for power in (-40, 3, 60):
            scaled = model.run(A * 2.0 ** (2 * power), b * 2.0**power, iterations=5).x * 2.0**power
            assert torch.equal(scaled, x)


def test_an_indefinite_matrix_is_reported():
    A, b, _ = systems(3)
    for program in (GuidedCG(), LearnedPCG()):
        status = initial(TINY, program).run(-A, b, iterations=4).status
        assert all(found in (nf.RunStatus.NOT_POSITIVE, nf.RunStatus.NONFINITE) for found in status)


def test_a_zero_on_the_diagonal_is_reported_as_what_it_is():
    A, b, _ = systems(3)
    A[1, 2, 2] = 0.0
    for program in (GuidedCG(), LearnedPCG()):
        status = initial(TINY, program).run(A, b, iterations=4).status
        assert [found is nf.RunStatus.NOT_POSITIVE for found in status] == [False, True, False]


def test_preconditioned_runs_converge_in_n_steps():
    A, b, x = systems(16)
    run = initial(TINY, LearnedPCG()).run(A, b, iterations=8)
    torch.testing.assert_close(run.x[:, 6], x, rtol=1e-6, atol=1e-8)
    assert all(status is nf.RunStatus.CONVERGED for status in run.status)
