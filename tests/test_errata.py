"""What docs/errata.md says of the paper's section 2, shown with the paper's printed matrices in plain NumPy."""

import numpy as np
import pytest

import nlaformer as nf
from tests.reference import dense_layers, equation_one

n = 5
C, c = 30.0, 1e-5
rng = np.random.default_rng(0)
a, b = rng.normal(size=(2, n))
A, B = rng.normal(size=(2, n, n))
POSITIONS = np.eye(n + 1)


def with_sink(*rows: np.ndarray) -> np.ndarray:
    """Data rows behind a zero sink column, over the position rows."""
    data = np.vstack([np.atleast_2d(row) for row in rows])
    return np.vstack([np.hstack([np.zeros((len(data), 1)), data]), POSITIONS])


def pair(W_K: np.ndarray, W_Q: np.ndarray, W_V: np.ndarray) -> list[dict]:
    """The paper's two heads: the second one, not printed, has the block with c zeroed and -W_V."""
    zeroed = W_Q.copy()
    zeroed[:-1] = 0
    return [{"heads": [{"W_K": W_K, "W_Q": W_Q, "W_V": W_V}, {"W_K": W_K, "W_Q": zeroed, "W_V": -W_V}]}]


def inner_product_weights() -> tuple[np.ndarray, np.ndarray]:
    """Statement (iii): keys a_i and the sink's C, query c at the last token and 1 everywhere."""
    W_K, W_Q = np.zeros((2, 3 + n + 1)), np.zeros((2, 3 + n + 1))
    W_K[0, 0], W_K[1, 3] = 1, C
    W_Q[0, -1], W_Q[1, 3:] = c, 1
    return W_K, W_Q


def value(target: int, source: int, factor: float) -> np.ndarray:
    W_V = np.zeros((3 + n + 1, 3 + n + 1))
    W_V[target, source] = factor
    return W_V


def test_inner_product_as_printed_computes_nothing_and_overwrites_b():
    P = with_sink(a, b, np.zeros(n))
    W_K, W_Q = inner_product_weights()
    printed = equation_one(P, pair(W_K, W_Q, value(1, 1, 1.0)))  # W_V has a 1 at (2, 2), without e^C
    assert abs(printed[2, -1]) == 0
    assert abs(printed[1, -1] - b[-1]) < 1e-15  # what it adds to b is of the size e^-C c
    scaled = equation_one(P, pair(W_K, W_Q, value(1, 1, np.exp(C))))  # with e^C it does add to b
    assert scaled[1, -1] - b[-1] == pytest.approx(c * a @ b, rel=1e-3)
    corrected = equation_one(P, pair(W_K, W_Q, value(2, 1, np.exp(C))))
    assert corrected[2, -1] / c == pytest.approx(a @ b, rel=1e-3)
    np.testing.assert_array_equal(corrected[:2], P[:2])


def test_the_sink_query_must_be_one_at_every_token():
    """Without the sink's score a column averages its values instead of combining them."""
    P = with_sink(a, b, np.zeros(n))
    W_K, W_Q = inner_product_weights()
    W_Q[1, 3 + n] = 0  # the last token, where the result stands, no longer sees C
    broken = equation_one(P, pair(W_K, W_Q, value(2, 1, np.exp(C))))
    assert abs(broken[2, -1] / c - a @ b) > 1e6


def test_without_the_second_head_the_constant_stays():
    P = with_sink(a, b, np.zeros(n))
    W_K, W_Q = inner_product_weights()
    layers = pair(W_K, W_Q, value(2, 1, np.exp(C)))
    layers[0]["heads"].pop()
    assert equation_one(P, layers)[2, -1] == pytest.approx(b.sum(), rel=1e-3)


def test_a_sink_with_a_value_spoils_the_result():
    """The sink column must be zero in every row that serves as value: it has all the attention."""
    P = with_sink(a, b, np.zeros(n))
    W_K, W_Q = inner_product_weights()
    P[1, 0] = 1.0
    spoiled = equation_one(P, pair(W_K, W_Q, value(2, 1, np.exp(C))))
    assert abs(spoiled[2, -1] / c - a @ b) > 0.1


def transpose_weights(first: int) -> list[dict]:
    """Statement (iv), with the E_n of W_V over the position rows from number ``first`` on."""
    rows = 2 * n + n + 1
    W_K, W_Q, W_V = np.zeros((n + 1, rows)), np.zeros((n + 1, rows)), np.zeros((rows, rows))
    W_K[:n, :n], W_K[n, 2 * n] = np.eye(n), C
    W_Q[:n, 2 * n + 1 :], W_Q[n, 2 * n :] = c * np.eye(n), 1
    W_V[n : 2 * n, 2 * n + first : 2 * n + first + n] = np.exp(C) * np.eye(n)
    return pair(W_K, W_Q, W_V)


def test_values_are_the_last_n_of_the_n_plus_1_positions():
    P = with_sink(A, np.zeros((n, n)))
    right = equation_one(P, transpose_weights(first=1))[n : 2 * n, 1:] / c
    np.testing.assert_allclose(right, A.T, atol=1e-3)
    wrong = equation_one(P, transpose_weights(first=0))[n : 2 * n, 1:] / c
    assert np.abs(wrong - A.T).max() > 0.1


def test_the_attention_gives_c_times_the_result_and_one_layer_suffices():
    """The introduction says two layers for a transpose; the theorem says one, and one it is."""
    attended = equation_one(with_sink(A, np.zeros((n, n))), transpose_weights(first=1))
    np.testing.assert_allclose(attended[n : 2 * n, 1:], c * A.T, atol=1e-8)
    assert nf.operation("matrix_transpose", n=n).cost.layers == 1


def test_matmul_and_matvec_need_one_layer_not_two():
    for name, operands in (("matmul", (A, B)), ("matvec", (A, b))):
        op = nf.operation(name, n=n)
        assert op.cost.layers == 1
        np.testing.assert_allclose(op(*operands), A @ operands[1], atol=1e-8)


def test_the_transposed_vector_overlaps_the_row_it_came_in():
    op = nf.operation("vector_transpose", n=n, normalize=False, bound=4.0)
    P = op.prompt(a)
    first = P[0, 1:].copy()
    out = equation_one(P, dense_layers(op.model.pre))
    np.testing.assert_array_equal(first, a)  # row 1 held a^T ...
    assert np.abs(out[0, 1:-1]).max() < 1e-8  # ... and is cleared, but for its last token,
    np.testing.assert_allclose(out[:n, -1], a, atol=1e-8)  # where the column begins


def test_opposite_signs_beat_a_zeroed_head():
    """Same two heads, other signs: (+c, -c) instead of (c, 0)."""
    ours, paper = (nf.operation("matmul", n=n, scheme=s) for s in ("antisymmetric", "paper"))
    assert np.abs(ours(A, B) - A @ B).max() * 30 < np.abs(paper(A, B) - A @ B).max()


def test_a_column_shift_needs_one_head_and_no_c():
    op = nf.operation("column_shift", n=n)
    assert op.cost.heads == 1
    shifted = op(a, b)
    np.testing.assert_allclose(shifted, (b, a), rtol=1e-14, atol=1e-15)


# --- section 4 -------------------------------------------------------------------------------------------------------


def test_the_percentages_of_table_2_are_not_those_of_its_numbers():
    from paper.plan import PRINTED

    falls = {name: round(100 * (1 - end / start), 1) for name, (start, end) in PRINTED.items()}
    assert falls["joint"] == 99.6 and falls["result"] == 98.9


def test_the_zero_predictor_beats_the_papers_discrepancy_under_result_supervision():
    from nlaformer.learn.data import with_teacher
    from nlaformer.problems import SPD

    n = 20
    targets = with_teacher(SPD(n=n, sigma=(1.2,)).sample(512, 5), "cg", n).rd  # r_t, d_t
    silent = targets[:, 2 : n + 1].square().sum(-1).mean().item() / n
    assert 0.2 < silent < 0.4 < 0.5058
    assert 0.8 < targets[:, 1:n].square().sum(-1).mean().item() / n < 1.2  # should x_1 count as the second
