"""Where an inner product falls into its own rounding, what vanishes with it goes to 0, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import nlaformer as nf
from nlaformer.compiler.library import program, record
from nlaformer.compiler.library.krylov import NormalEquations
from tests.systems import with_eigenvalues

B = np.array([1.0, -0.5, 0.25, 2.0])
# Solved in one and in two steps; after them the residual is rounding.
SUDDEN = {"identity": np.eye(4), "two eigenvalues": with_eigenvalues(np.array([1.0, 1.0, 3.0, 3.0]))}


class Recorded(nf.Program):
    """Conjugate gradients with states beside them that do not vanish."""

    positive_definite = True

    def start(self, A, b):
        nothing = nf.zeros_like(b)
        return dict(x=nothing, r=b, d=b, rho=b @ b, total=nothing, mean=nothing, turned=b, count=0.0, length=0.0)

    def step(self, A, x, r, d, rho, total, mean, turned, count, length):
        q = A @ d
        alpha = rho / (d @ q)
        x, r = x + alpha * d, r - alpha * q
        after = r @ r
        ratio = after / rho
        d = r + ratio * d
        return dict(
            x=x, r=r, d=d, rho=after, total=total + r, mean=0.9 * mean + 0.1 * d, turned=r - turned,
            count=count + ratio, length=length + np.sqrt(after),
        )  # fmt: skip


@pytest.fixture(scope="module")
def recorded():
    return nf.compile(Recorded(), n=4)


@pytest.mark.parametrize("name", SUDDEN)
def test_states_beside_a_residual_that_vanishes_keep_their_values(recorded, name):
    steps = 8
    run, own = recorded.run(SUDDEN[name], B, iterations=steps), Recorded().run(SUDDEN[name], B, iterations=2)
    assert run.status is nf.RunStatus.CONVERGED
    for state, value in own.state.items():
        np.testing.assert_allclose(run.state[state][:3], value, atol=1e-10, err_msg=state)
    # From there r is 0 to rounding: sums stay, the average decays, and 0/0 is 0.
    last = {state: value[2] for state, value in own.state.items()}
    decay, sign = 0.9 ** np.arange(steps - 1), (-1.0) ** np.arange(steps - 1)
    expected = {"mean": np.outer(decay, last["mean"]), "turned": np.outer(sign, last["turned"])}
    for state in ("total", "mean", "turned", "count", "length"):
        wanted = expected.get(state, np.broadcast_to(last[state], run.state[state][2:].shape))
        np.testing.assert_allclose(run.state[state][2:], wanted, atol=1e-10, err_msg=state)


def test_nothing_moves_where_b_is_0(recorded):
    run = recorded.run(np.eye(4), np.zeros(4), iterations=4)
    assert run.status is nf.RunStatus.CONVERGED
    for state, value in run.state.items():
        assert np.abs(value).max() < 1e-80, state


@pytest.mark.parametrize("columns", [2, 3])
def test_the_residual_of_least_squares_stays(columns):
    A = SUDDEN["two eigenvalues"].copy()
    A[:, columns:] = 0.0
    run = nf.algorithm("cgls", 4).run(A, B, iterations=12)
    residual = B - A @ np.linalg.lstsq(A, B, rcond=None)[0]
    # The weights stop; the program in 33 bits goes on, and loses x.
    assert run.status in (nf.RunStatus.CONVERGED, nf.RunStatus.PRECISION) and np.linalg.norm(residual) > 0.1
    np.testing.assert_allclose(run.state["r"][-1], residual, atol=1e-9)


@pytest.mark.parametrize("name", ["cgnr", "cgls"])
def test_weights_that_stop_do_not_make_the_program_divide_by_0(name):
    # z . z falls into its rounding, and A^T r of the next step does not vanish: it is divided by rho = 0.
    inputs, _ = record(name).problems(4, 64, 11)
    run = nf.algorithm(name, 4, verify=False).run(**inputs, iterations=40)
    own = program(name).run(**inputs, iterations=40)
    assert (run.state["rho"] == 0).any() and np.isfinite(own.x).all() and not run.diagnose().lost
    wrong = {"cgnr": 0, "cgls": 4}[name]  # two or three of cgls are, 30 steps after their end: processors round apart
    assert [status.name for status in run.status].count("NONFINITE") == 0
    assert [status.name for status in run.status].count("INACCURATE") <= wrong


class Counted(NormalEquations):
    """cgnr, with a count that stays where it stops."""

    def start(self, A, b, x0):
        return dict(super().start(A, b, x0), count=0.0)

    def step(self, A, x, r, d, rho, count):
        after = super().step(A, x, r, d, rho)
        return dict(after, count=count + after["rho"] / rho)


def test_after_a_stop_what_stays_is_still_compared():
    inputs, _ = record("cgnr").problems(4, 64, 11)
    counted = nf.compile(Counted(), 4, verify=False)
    run = counted.run(**inputs, iterations=12)
    system, before = np.argwhere((run.state["rho"][:, :-1] == 0) & (run.state["rho"][:, 1:] > 0))[0]
    assert np.isinf(run.state["count"][system, before + 1])  # and finite in the program
    assert run.status[system] is nf.RunStatus.INACCURATE


class Sums(nf.Program):
    """Steepest descent with the sum of its residuals, whose norm is computed too."""

    positive_definite = True

    def start(self, A, b):
        return dict(x=nf.zeros_like(b), r=b, m=b, size=b @ b)

    def step(self, A, x, r, m, size):
        q = A @ r
        alpha = (r @ r) / (r @ q)
        m = m + r
        return dict(x=x + alpha * r, r=r - alpha * q, m=m, size=m @ m)


@pytest.mark.parametrize("name", SUDDEN)
def test_a_product_that_stays_does_not_share_the_scale_of_one_that_falls(name):
    run, own = (each(SUDDEN[name], B, iterations=40) for each in (nf.compile(Sums(), n=4).run, Sums().run))
    assert run.status is nf.RunStatus.CONVERGED
    for state in ("x", "r", "m", "size"):
        np.testing.assert_allclose(run.state[state], own.state[state], atol=1e-9, err_msg=state)


def test_conjugate_gradients_take_the_layers_that_they_took():
    layers = {"cg": 7, "cg_fused": 5, "pcg": 7, "conjugate_residual": 6, "cgls": 8, "craig": 6, "bicgstab": 18}
    assert {name: len(nf.algorithm(name, 4, verify=False).model.loop) for name in layers} == layers


@pytest.mark.parametrize("name", ["cg_fused", "barzilai_borwein"])
@pytest.mark.parametrize("system", SUDDEN)
def test_library_methods_converge_where_they_end_at_once(name, system):
    run, own = (each(SUDDEN[system], B, iterations=4) for each in (nf.algorithm(name, 4).run, program(name).run))
    np.testing.assert_allclose(run.x[:3], own.x[:3], atol=1e-9)
    assert run.status is own.status
