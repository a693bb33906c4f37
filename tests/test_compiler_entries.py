"""Entries, rows and columns in other places: the weights move them exactly, by hard attention."""

import numpy as np
import pytest

import nlaformer as nf
from tests.systems import StartsAtB, mixed_signs

N = 5


def test_an_entry_that_was_set_is_read_back_without_a_layer():
    def step(read):
        class Sets(StartsAtB):
            def step(self, A, b, x):
                y = x.copy()
                for i in range(N):
                    s = (b[i] + A[i] @ x) / 4
                    y[i] = s
                    s = y[i] if read else s
                    x = x + s * b
                return dict(x=x)

        return nf.compile(Sets(), n=N, verify=False)

    assert len(step(True).model.loop) == len(step(False).model.loop)


def appended(x):
    return np.append(x[1:], 0.0)


def into_zeros(x):
    y = np.zeros_like(x)
    y[2:] = x[:-2]
    return y


def onto_itself(x):
    x[:-1] = x[1:]
    x[-1] = 0
    return x


@pytest.mark.parametrize("shift", [appended, into_zeros, onto_itself])
def test_a_shift_with_zeros_is_exact_until_nothing_is_left(shift):
    class Shifts(nf.Program):
        def start(self, x0):
            return dict(x=x0)

        def step(self, x):
            return dict(x=shift(x))

    x = np.arange(1.0, 6.0)
    run = nf.compile(Shifts(), n=5).run(x0=x, iterations=6)
    for found in run.x:
        np.testing.assert_array_equal(found, x)
        x = shift(x.copy())


def reversed_order(A, x):
    return x[::-1]


def a_list_of_indices(A, x):
    return x[[2, 2, 0, 4, 1]]


def pieces_put_together(A, x):
    return np.concatenate([x[3:], [0.0], x[:2]])


def entries_set_in_another_vector(A, x):
    y = 3.0 * A[0]
    y[[0, 3]] = x[[4, 0]]
    y[2] = -x[1]
    return y


def an_entry_in_one_place(A, x):
    return x[3] * np.eye(N)[1] + x * np.eye(N)[4]


def rows_and_columns_set(A, x):
    B = A.copy()
    B[1] = x
    B[:, 2] = A[3]
    B[3, 1:] = A[1:, 0]
    return B[::-1, [1, 0, 2, 4, 3]]


def entries_of_a_matrix(A, x):
    return np.array([A[0, 1], A[2, 2], 0.0, A.T[4, 0], A[1:, 1][0]])


def repeated(A, x):
    return np.outer(np.ones(N), x) + np.outer(A[1], np.eye(N)[0])


def small_entries_in_a_large_vector(A, x):
    y = 1e12 * (x + 1.0)
    y[1:4] = x[[0, 4, 2]]
    return y


def a_small_diagonal(A, x):
    B = 1e12 * (A + 1.0)
    np.fill_diagonal(B, x)
    return B


MOVES = [reversed_order, a_list_of_indices, pieces_put_together, entries_set_in_another_vector, an_entry_in_one_place]
MOVES += [rows_and_columns_set, entries_of_a_matrix, repeated, small_entries_in_a_large_vector, a_small_diagonal]


@pytest.mark.parametrize("move", MOVES)
def test_what_is_moved_keeps_every_digit_of_every_entry(move):
    class Moves(nf.Program):
        def start(self, A, x0):
            return dict(x=move(A, x0), M=A, v=x0)

        def step(self, M, v):
            return dict(x=move(M, v), M=M, v=v)

    A, x0 = mixed_signs(N)[0], np.array([1e-20, -3.0, 0.0, 1e5, 7e-9])
    A[0, 1], A[:, 3] = 1e-18, 0.0
    run = nf.compile(Moves(), n=N).run(A, x0=x0, iterations=1)
    for found in run.x:
        np.testing.assert_allclose(found, move(A, x0), rtol=1e-14, atol=0)


def entries_that_go_round(b, z):
    t = 0.001 * b
    t[[0, 2]] = z[[2, 1]]
    return t


def a_delay_line(b, z):
    t = np.empty(3)
    np.copyto(t, b)
    np.copyto(t[1:], z[:2])
    return t


def a_roll(b, z):
    return np.roll(z, 1)


@pytest.mark.parametrize("pass_on", [entries_that_go_round, a_delay_line, a_roll])
def test_zeros_that_are_passed_on_stay_zeros(pass_on):
    class Passes(nf.Program):
        def start(self, b, x0):
            return dict(x=x0, sign=np.sign(x0))

        def step(self, b, x):
            return dict(x=pass_on(b, x), sign=np.sign(pass_on(b, x)))

    b, z = np.array([0.0, 0.0, 1.0]), np.array([1.0, -1e-6, 1.0])
    run = nf.compile(Passes(), n=3).run(b=b, x0=z, iterations=4)
    for found, sign in zip(run.x, run.state["sign"], strict=True):
        np.testing.assert_allclose(found, z, rtol=1e-14, atol=0)
        np.testing.assert_array_equal(sign, np.sign(z))
        z = pass_on(b, z)


class Rows(nf.Program):
    """A small row comes to stand where a large one stood."""

    def start(self, A):
        return dict(x=A)

    def step(self, x):
        return dict(x=x[[1, 1, 0]])

    def finish(self, x):
        return x[2]


class Delay(nf.Program):
    """A small entry comes to stand where a large one stood, in one layer."""

    def start(self, A):
        return dict(x=A[:, 0])

    def step(self, x):
        return dict(x=np.append(0.0, x[:-1]))


@pytest.mark.parametrize(
    ("written", "rows"), [(Rows(), [1.0, 1e-20, 4.0]), (Delay(), [1e-20, 1.0, 4.0])], ids=["rows", "delay"]
)
def test_what_is_moved_to_where_something_large_stood_keeps_its_digits(written, rows):
    A = np.outer(rows, [1.0, 2.0, -3.0])
    run = nf.compile(written, n=3).run(A, iterations=2)
    x = written.start(A)["x"]
    for found in run.state["x"]:
        np.testing.assert_allclose(found, x, rtol=1e-9, atol=0)
        x = written.step(x)["x"]


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_roll_keeps_every_digit_of_every_entry_of_a_batch(axis):
    class Rolls(nf.Program):
        def start(self, A, b):
            return dict(x=b if axis is None else A)

        def step(self, x):
            return dict(x=np.roll(x, 1, axis))

    x = np.array([[1.0, 1e-20, 3.0, 2e-9], [1e-12, 5.0, 0.0, -1e3]])
    A, b = x[:, :, None] * x[:, None, ::-1], x
    rolls = nf.compile(Rolls(), n=4)
    assert axis is None or rolls.cost.loop.layers == 1
    run = rolls.run(A, b, iterations=3)
    for t in range(4):
        expected = [np.roll(each, t, axis) for each in (b if axis is None else A)]
        np.testing.assert_allclose(run.x[:, t], expected, rtol=1e-14, atol=0)


def test_a_column_and_the_matrix_with_that_column_alone_are_two_values():
    class Column(nf.Program):
        first = np.array([1.0, 0.0, 0.0])

        def start(self, A, b):
            return dict(x=b, M=A)

        def step(self, M):
            return dict(x=M[:, 0], M=M * self.first)

    A = np.arange(1.0, 10.0).reshape(3, 3)
    run = nf.compile(Column(), n=3).run(A, np.ones(3), iterations=1)
    np.testing.assert_allclose(run.x[1], A[:, 0], rtol=1e-12)
    np.testing.assert_allclose(run.state["M"][1], A * Column.first, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2])
def test_entries_rows_and_columns_of_the_smallest_systems(n):
    class Small(nf.Program):
        def start(self, A, b):
            return dict(x=b, M=A)

        def step(self, b, x, M):
            y, N = x.copy(), M.copy()
            y[0] = b[0] + x[-1]
            N[0], N[:, -1] = x, b
            return dict(x=y, M=N)

        def finish(self, x, M):
            return x[::-1] + M[0] + M[:, 0]

    A, b = np.arange(1.0, n * n + 1).reshape(n, n), np.arange(2.0, n + 2)
    run = nf.compile(Small(), n=n).run(A, b, iterations=2)
    x, M = b, A
    for found in run.x:
        np.testing.assert_allclose(found, Small().finish(x, M), rtol=1e-14)
        x, M = Small().step(b, x, M).values()


def test_a_part_of_a_new_array_is_changed_in_place():
    class Parts(StartsAtB):
        def step(self, b, x):
            z = np.zeros_like(b)
            z[1:] -= 1.0
            z[1:] += b[1:]
            return dict(x=x + z)

    b = np.array([1.0, 2.0, -3.0])
    run = nf.compile(Parts(), n=3).run(b=b, iterations=2)
    np.testing.assert_allclose(run.x[2], [1.0, 4.0, -11.0], rtol=1e-12)


class RolledFar(StartsAtB):
    def step(self, x):
        return dict(x=np.roll(x, 10**20))


def test_a_roll_may_be_longer_than_any_machine_number():
    b = np.arange(3.0)
    for run in (RolledFar().run, nf.compile(RolledFar(), n=3).run):
        np.testing.assert_allclose(run(b=b, iterations=1).x[-1], np.roll(b, 10**20), rtol=1e-12)
