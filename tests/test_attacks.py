"""Ways in which results, bounds, files and models were once wrong in silence."""

import copy
import json
import pickle
import threading

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer import io
from nlaformer.errors import DomainError, DTypeError, FileError, NLAFormerError, OptionError

f32 = np.float32


@pytest.mark.parametrize(
    ("options", "a", "b"),
    [
        ({"dtype": torch.float32, "normalize": False, "bound": 100.0}, f32([1, 2]), f32([90, 0.7])),
        ({"dtype": torch.float32, "minimum": 2.0**-24}, f32([1, 2]), f32([1.3, 0.7])),
        ({"minimum": 2.0**-40}, np.array([1.0, 2]), np.array([1.3, 0.7])),
        ({"dtype": torch.float32}, f32([1e38, 1]), f32([1, 1])),
        ({}, np.array([1.0, 1e-300]), np.ones(2)),
        ({}, np.array([1e300, 1e-300]), np.ones(2)),
    ],
)
def test_quotients_of_different_tokens_do_not_mix_and_the_bound_covers_underflow(options, a, b):
    op = nf.operation("divide", n=2, **options)
    error = np.abs(op(a, b).astype(np.longdouble) - a.astype(np.longdouble) / b.astype(np.longdouble))
    assert (error <= op.error_bound(a, b)).all()
    assert abs(op(a, b)[0] / (a[0] / b[0]) - 1) < 1e-4


def test_a_quotient_of_products_keeps_tokens_apart():
    op = nf.operation("pointwise", n=2, f=lambda a, b: a / (b * b), dtype=torch.float32)
    a, b = f32([1, 2]), f32([7, 1])
    assert (np.abs(op(a, b) - a / b**2) <= op.error_bound(a, b)).all()
    np.testing.assert_allclose(op(a, b), a / b**2, rtol=1e-2)


def test_divisors_that_may_be_zero_are_refused():
    op = nf.operation("pointwise", n=1, f=lambda a, b: 1 / (a * b - 1), dtype=torch.float32)
    for b in (1.0, 1 + 1e-6):
        with pytest.raises(DomainError, match="minimum"):
            op(f32([1]), f32([b]))


def test_the_bound_covers_constants_folded_into_weights():
    def f(a, b):
        for _ in range(200):
            a = a / 1.1
        return a

    op = nf.operation("pointwise", n=1, f=f)
    wanted = np.longdouble(8) / np.longdouble(1.1) ** 200
    assert abs(op([8.0], [1.0])[0] - wanted) <= op.error_bound([8.0], [1.0])[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_whose_norm_overflows_are_multiplied_correctly(dtype):
    large = np.finfo(dtype).max * dtype(0.9)
    A, B = np.full((4, 4), large, dtype), np.full((4, 4), 1 / large, dtype)
    op = nf.operation("transposed_matmul", n=4, dtype=torch.float32 if dtype == np.float32 else torch.float64)
    np.testing.assert_allclose(op(A, B), np.full((4, 4), 4), rtol=1e-3)
    assert np.isfinite(op.error_bound(A, B)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_of_a_product_falls_with_the_order(dtype):
    a, b = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32 if dtype == torch.float32 else np.float64)
    bounds = [nf.operation("multiply", n=64, order=k, dtype=dtype).error_bound(a, b).max() for k in (1, 2, 3)]
    assert bounds[2] < bounds[1] < bounds[0]


def test_comparisons_in_f_are_refused():
    for f in (lambda a, b: a if b != 0 else 7 * a, lambda a, b: a if a == b else b):
        with pytest.raises(OptionError, match="f "):
            nf.operation("pointwise", n=1, f=f)


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: a * 10**400,
        lambda a, b: 1 / 0,
        lambda a, b: a * (2**53 + 1),
        lambda a, b: 1e308 * a * b,
        lambda a, b: (a**16) ** 4,
    ],
)
def test_numbers_out_of_range_in_f_are_refused(f):
    with pytest.raises(OptionError):
        nf.operation("pointwise", n=1, f=f)


def test_a_factor_of_zero_is_zero():
    assert nf.operation("pointwise", n=1, f=lambda a, b: b * (a * 0) + b)([3.0], [2.0]) == [2.0]


def test_a_declared_score_bound_is_enforced():
    op = nf.operation("outer_product", n=3, normalize=False, bound=10.0, score_bound=1.0)
    with pytest.raises(DomainError, match="score_bound=1"):
        op([10.0] * 3, [10.0] * 3)


def test_an_entry_equal_to_the_declared_bound_is_accepted():
    op = nf.operation("multiply", n=1, normalize=False, bound=0.1, dtype=torch.float32)
    assert op(f32([0.1]), f32([0.1]))[0] == pytest.approx(0.01, rel=1e-3)


def test_masked_sparse_and_meta_arrays_are_refused():
    op = nf.operation("add", n=2)
    with pytest.raises(DTypeError, match="masked"):
        op(np.ma.masked_array([1.0, 2.0], mask=[0, 1]), [1.0, 2.0])
    for strange in (torch.ones(2).double().to_sparse(), torch.ones(2, device="meta", dtype=torch.float64), object()):
        with pytest.raises(DTypeError):
            op(strange, [1.0, 2.0])
    with pytest.raises(NLAFormerError):
        op.read("abc")


def test_lists_take_the_dtype_of_the_operation():
    assert nf.operation("add", n=2, dtype=torch.float32)([0.5, 1.5], [1.0, 2.0]) == [1.5, 3.5]


@pytest.mark.parametrize("name", ["matmul", "vector_transpose", "multiply", "divide", "transposed_matmul"])
def test_an_empty_batch_has_an_empty_bound(name):
    from tests.reference import draw

    op = nf.operation(name, n=3)
    operands = draw(name, 3, np.random.default_rng(0), batch=(0,))
    assert op.error_bound(*operands).shape == op(*operands).shape


def test_the_bound_of_a_system_does_not_depend_on_its_neighbours():
    A, B = np.random.default_rng(0).normal(size=(2, 2, 4, 4))
    A[1] *= 1e6
    op = nf.operation("matmul", n=4, normalize=False, bound=1e7)
    np.testing.assert_array_equal(op.error_bound(A, B)[0], op.error_bound(A[0], B[0]))


def test_options_may_be_numpy_integers_and_dtype_names(tmp_path):
    op = nf.operation("matmul", n=np.int64(3), order=np.int64(2), dtype="float32")
    op.save(tmp_path)
    assert nf.load(tmp_path).options == op.options


@pytest.mark.parametrize("device", ["cuda:99", "foo", "meta2"])
def test_a_missing_device_is_refused(device):
    with pytest.raises(OptionError, match=device):
        nf.operation("add", n=1, device=device)


def test_an_invalid_exponent_row_is_refused():
    op = nf.operation("multiply", n=1)
    P = op.prompt([2.0], [3.0])
    for wrong in (np.nan, 1e9):
        Q = np.array(P)
        op.layout.write(torch.from_numpy(Q), "exponent", torch.tensor([[wrong]]), slice(0, 1))
        with pytest.raises(DomainError, match="exponent"):
            op.read(Q)


def test_a_model_converted_to_another_dtype_is_refused():
    op = nf.operation("matmul", n=3)
    op.model.float()
    with pytest.raises(DTypeError, match="dtype="):
        op(np.eye(3), np.eye(3))
    with pytest.raises(OptionError):
        nf.operation("matmul", n=3).to(torch.float32)


def test_load_state_dict_replaces_the_weights_in_use():
    op = nf.operation("add", n=1)
    op.model.load_state_dict(nf.operation("subtract", n=1).model.state_dict())
    assert op([3.0], [1.0]) == [2.0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["config"].update(name="transposed_matmul"),
        lambda d: d["config"].update(dtype="float32"),
        lambda d: d["config"].update(order=1.0),
        lambda d: d["config"].update(name=[]),
        lambda d: d["config"].update(n=[3]),
        lambda d: d["config"].update(bound=5.0, normalize=False),
        lambda d: d["model"]["pre"][0].update(causal=True),
        lambda d: d["model"]["pre"][0]["heads"].update(count=1),
        lambda d: d["model"]["pre"][0]["heads"].update(count="2"),
        lambda d: d["model"].update(pre=[3]),
        lambda d: d["model"].update(unshared="a"),
        lambda d: d.update(kind=[]),
        lambda d: d.pop("model"),
    ],
)
@pytest.mark.parametrize("signed", [False, True], ids=["edited", "forged"])
def test_an_edited_config_is_refused(edit, signed, tmp_path):
    """By its digest; and by what it says, if the digest was made to fit."""
    path = nf.operation("matmul", n=3).save(tmp_path) / "config.json"
    document = json.loads(path.read_text())
    digest = document.pop("digest")
    edit(document)
    weights = (tmp_path / "model.safetensors").read_bytes()
    path.write_text(json.dumps(document | {"digest": io._digest(document, weights) if signed else digest}))
    with pytest.raises(NLAFormerError if signed else FileError):
        nf.load(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path):
    for name in ("add", "subtract"):
        nf.operation(name, n=1).save(tmp_path / name)
    (tmp_path / "add/model.safetensors").write_bytes((tmp_path / "subtract/model.safetensors").read_bytes())
    with pytest.raises(FileError, match="add"):
        nf.load(tmp_path / "add")


def test_concurrent_saves_leave_a_consistent_artefact(tmp_path):
    """Whoever saves last, what loads computes what it says; a reader may find two writers at it, and is told."""
    ops = {name: nf.operation(name, n=1) for name in ("add", "subtract")}
    threads = [threading.Thread(target=ops[name].save, args=(tmp_path,)) for name in list(ops) * 10]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        loaded = nf.load(tmp_path)
    except FileError:
        ops["add"].save(tmp_path)
        loaded = nf.load(tmp_path)
    assert loaded([3.0], [1.0]) == ([4.0] if loaded.name == "add" else [2.0])


def test_operations_can_be_copied_and_pickled():
    op = nf.operation("pointwise", n=2, f=lambda a, b: a * b)
    for twin in (copy.deepcopy(op), pickle.loads(pickle.dumps(op))):
        assert twin([2.0, 3.0], [4.0, 5.0]) == op([2.0, 3.0], [4.0, 5.0])


def test_model_takes_prompts_of_any_batch_shape():
    op = nf.operation("matmul", n=3)
    A, B = np.random.default_rng(0).normal(size=(2, 2, 5, 3, 3))
    P = torch.from_numpy(op.prompt(A, B))
    out = op.model(P)
    assert out.shape == P.shape
    np.testing.assert_array_equal(op.read(out.numpy()), op(A, B))
    np.testing.assert_array_equal(op.model(P[1, 2].contiguous()).numpy(), op.model(P[1, 2]).numpy())
