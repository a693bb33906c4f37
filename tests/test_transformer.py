"""The forward pass: eq. (1) as NumPy and as torch's own attention see it; sparse and dense weights; stacks."""

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import io, transformer
from nlaformer.transformer import FFN, Heads, Layer, NLAFormer, rms_norm
from nlaformer.weights import Dense, Sparse
from tests.reference import OPERATIONS, dense_layers, draw, equation_one, one_array


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("order", [1, 3])
def test_numpy_evaluation_of_equation_one_agrees_within_the_bound(name, order):
    op = nf.operation(name, n=6, order=order)
    operands = draw(name, 6, np.random.default_rng(1))
    P = equation_one(op.prompt(*operands), dense_layers(op.model.pre))
    difference = np.abs(one_array(op.read(P)) - one_array(op(*operands)))
    assert (difference <= 2 * one_array(op.error_bound(*operands))).all()


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ("add", "subtract", "row_shift")])
def test_same_weights_through_scaled_dot_product_attention(name, monkeypatch):
    calls = []

    def torchs_own(Q, K, V, causal):
        calls.append(causal)
        return torch.nn.functional.scaled_dot_product_attention(Q, K, V, scale=1.0, is_causal=causal)

    op = nf.operation(name, n=7)
    operands = draw(name, 7, np.random.default_rng(2))
    ours = one_array(op(*operands))
    monkeypatch.setattr(transformer, "attention", torchs_own)
    P = op.model(torch.from_numpy(op.prompt(*operands)))
    difference = np.abs(one_array(op.read(P.numpy())) - ours)
    assert calls
    assert (difference <= 2 * one_array(op.error_bound(*operands))).all()


def test_sparse_weight_equals_its_dense_matrix():
    torch.manual_seed(0)
    W = torch.randn(9, 12, dtype=torch.float64) * (torch.rand(9, 12) < 0.3)
    W[2] = torch.randn(12)  # a row too long for gathers
    W[5] = 0
    index = torch.nonzero(W).T
    sparse = Sparse(index, W[index[0], index[1]], (9, 12))
    X, Y = torch.randn(4, 3, 9, dtype=torch.float64), torch.randn(4, 3, 12, dtype=torch.float64)
    assert torch.equal(sparse.dense(), W)
    torch.testing.assert_close(sparse(Y), Y @ W.mT)
    torch.testing.assert_close(sparse.added_to(X, Y), X + Y @ W.mT)
    torch.testing.assert_close(sparse.added_to(X[0, 0], Y), X[0, 0] + Y @ W.mT)
    assert torch.autograd.gradcheck(sparse.added_to, (X[0, 0].requires_grad_(), Y[0].requires_grad_()))
    torch.testing.assert_close(sparse.float()(Y.float()), (Y @ W.mT).float(), rtol=1e-5, atol=1e-5)


def test_sparse_weight_with_crowded_columns_and_scattered_rows_equals_its_dense_matrix():
    torch.manual_seed(0)
    W = torch.zeros(90, 80, dtype=torch.float64)
    W[:40, 3], W[:40, 70] = torch.randn(2, 40, dtype=torch.float64)  # forty rows over the same two columns
    W[40, 3], W[40, 5] = 1.0, 2.0  # a crowded column, and one that is not
    W[torch.arange(41, 81), torch.randperm(80)[:40]] = 1.0  # too scattered for a slice
    index = torch.nonzero(W).T
    sparse = Sparse(index, W[index[0], index[1]], (90, 80))
    X, Y = torch.randn(7, 90, dtype=torch.float64), torch.randn(7, 80, dtype=torch.float64)
    torch.testing.assert_close(sparse(Y), Y @ W.mT)
    torch.testing.assert_close(sparse.added_to(X, Y), X + Y @ W.mT)


def test_pieces_of_a_batch_give_what_the_whole_batch_gives(monkeypatch):
    monkeypatch.setitem(transformer._ENTRIES_AT_ONCE, "cpu", 2**16)
    op = nf.operation("divide", n=4)
    a, b = torch.rand(2, 100, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    P = op.prompt(a, b)
    pieces = list(op.model.pieces(*P.shape[1:], a, b))
    assert len(pieces) > 1 and torch.equal(torch.cat([first for first, _ in pieces]), a)
    torch.testing.assert_close(op(a, b), op.read(op.model(P)), rtol=0, atol=1e-12)


def test_one_wide_layer_among_many_narrow_ones_does_not_split_a_batch():
    wide = nf.operation("divide", n=4).model.pre  # far more hidden units than rows
    batch, narrow = torch.zeros(10_000, 1), [Layer() for _ in range(100)]
    alone, among = (len(list(NLAFormer(wide, loop, []).pieces(20, 5, batch))) for loop in ([], narrow))
    assert among < alone


def test_post_block_after_each_pass_leaves_the_loop_unchanged():
    torch.manual_seed(4)
    model = NLAFormer([random_layer(())], [random_layer(())], [random_layer(()), random_layer(())])
    P = torch.randn(8, 5, dtype=torch.float64)
    answers = {s.iteration: s.P for s in model.states(P, loops=3, post_each_pass=True) if s.block == "post"}
    assert list(answers) == [0, 1, 2, 3]
    for loops, answer in answers.items():
        assert torch.equal(answer, model(P, loops))


def random_layer(stack: tuple[int, ...], rows: int = 8, norm: bool = True, causal: bool = False) -> Layer:
    def weight(out: int, source: int) -> torch.Tensor:
        return torch.randn(*stack, out, source, dtype=torch.float64) / source**0.5

    def vector(size: int) -> torch.Tensor:
        return torch.randn(*stack, size, dtype=torch.float64)

    heads = Heads(Dense(weight(6, rows)), Dense(weight(6, rows)), Dense(weight(4, rows)), Dense(weight(rows, 4)), 2)
    ffn = FFN(Dense(weight(16, rows)), vector(16), Dense(weight(rows, 16)), vector(rows))
    return Layer(heads, ffn, (vector(rows), vector(rows)) if norm else None, causal)


def member(layer: Layer, e: int) -> Layer:
    """One model of a stacked layer."""
    h, f = layer.heads, layer.ffn

    def pick(W: Dense) -> Dense:
        return Dense(W.weight[e].detach())

    norm = None if layer.gain_1 is None else (layer.gain_1[e].detach(), layer.gain_2[e].detach())
    heads = Heads(pick(h.W_Q), pick(h.W_K), pick(h.W_U), pick(h.W_O), h.count)
    return Layer(heads, FFN(pick(f.W_1), f.b_1[e].detach(), pick(f.W_2), f.b_2[e].detach()), norm, layer.causal)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_stack_gives_what_its_members_give(norm, causal):
    torch.manual_seed(1)
    layer = random_layer((3,), norm=norm, causal=causal)
    X = torch.randn(3, 5, 4, 8, dtype=torch.float64)  # (E, batch, token, row)
    together = layer(X)
    for e in range(3):
        torch.testing.assert_close(together[e], member(layer, e)(X[e]))


def test_causal_tokens_do_not_see_later_ones():
    torch.manual_seed(2)
    layer = random_layer((), causal=True)
    X = torch.randn(4, 8, dtype=torch.float64)
    changed = X.clone()
    changed[3] += 1.0
    torch.testing.assert_close(layer(X)[:3], layer(changed)[:3])
    layer.causal = False
    assert not torch.allclose(layer(X)[:3], layer(changed)[:3])


def test_norm_gives_rows_of_mean_square_one():
    X = torch.randn(3, 8, dtype=torch.float64)
    normalized = rms_norm(X, torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(normalized.square().mean(-1), torch.ones(3, dtype=torch.float64))


def test_states_list_every_layer_and_end_with_the_forward_pass():
    torch.manual_seed(3)
    model = NLAFormer([random_layer(())], [random_layer(()), random_layer(())], [random_layer(())])
    P = torch.randn(8, 5, dtype=torch.float64)
    states = list(model.states(P, loops=3))
    assert [(s.block, s.iteration, s.layer) for s in states[:4]] == [
        ("input", 0, 0),
        ("pre", 0, 0),
        ("loop", 0, 0),
        ("loop", 0, 1),
    ]
    assert len(states) == 1 + 1 + 3 * 2 + 1
    assert torch.equal(states[0].P, P)
    assert torch.equal(states[-1].P, model(P, loops=3))


def test_trained_weights_have_gradients_and_compiled_ones_do_not():
    layer = random_layer(())
    layer(torch.randn(4, 8, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert not any(parameter.requires_grad for parameter in nf.operation("matmul", n=3).model.parameters())


def test_a_norm_of_some_rows_leaves_the_layers_of_others_as_they_are(tmp_path):
    """A trained layer on the middle four of six rows computes what it does alone; the others keep their values."""
    alone = random_layer((), rows=4).requires_grad_(False)
    embed = torch.eye(6, dtype=torch.float64)[:, 1:5]
    h, f = alone.heads, alone.ffn
    heads = Heads(*(Dense(W.weight @ embed.T) for W in (h.W_Q, h.W_K, h.W_U)), Dense(embed @ h.W_O.weight), h.count)
    ffn = FFN(Dense(f.W_1.weight @ embed.T), f.b_1, Dense(embed @ f.W_2.weight), embed @ f.b_2)
    beside = Layer(heads, ffn, (alone.gain_1, alone.gain_2), rows=(1, 5))
    P = torch.randn(3, 7, 6, dtype=torch.float64)
    expected = P.clone()
    expected[..., 1:5] = alone(P[..., 1:5])
    torch.testing.assert_close(beside(P), expected)
    io.save(tmp_path, "operation", NLAFormer([beside]), {})
    assert torch.equal(io.read(tmp_path)[2].pre[0](P), beside(P))
