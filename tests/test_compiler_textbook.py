"""Programs from textbooks, not in the library, written as on NumPy arrays; and refusals whose advice works."""

import numpy as np
import pytest

import nlaformer as nf
from nlaformer.errors import CompileError
from tests.systems import StartsAtB
from tests.textbook import PROGRAMS, asked, on_arrays

N = 4


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_textbook_program_compiles_as_it_stands(kind):
    rng = np.random.default_rng(0)
    M = rng.standard_normal((N, N))
    given = {"A": M @ M.T / N + np.eye(N), "b": rng.standard_normal(N), "x0": rng.standard_normal(N)}
    needed = {name for method in (kind.start, kind.step) for name in asked(method)}
    given = {name: value for name, value in given.items() if name in needed}
    run = nf.compile(kind(), n=N).run(**given, iterations=10)
    wanted = on_arrays(kind(), given, 10)
    assert run.status not in (nf.RunStatus.INACCURATE, nf.RunStatus.NONFINITE, nf.RunStatus.NOT_POSITIVE)
    np.testing.assert_allclose(run.x, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


def with_test(A, b, x):
    return x if np.linalg.norm(b - A @ x) < 1e-10 else x + 0.1 * (b - A @ x)


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        (with_test, "iterations="),
        (lambda A, b, x: x + 0.1 * np.eye(N)[np.argmin(A @ x - b)], "e @ A"),
        (lambda A, b, x: np.linalg.solve(np.tril(A), b - np.triu(A, 1) @ x), "iteration"),
    ],
)
def test_a_refusal_says_what_to_write_instead(step, advice):
    class Refused(StartsAtB):
        def step(self, A, b, x):
            return dict(x=step(A, b, x))

    with pytest.raises(CompileError, match="Refused cannot be compiled") as caught:
        nf.compile(Refused(), n=N)
    assert advice in str(caught.value)
