"""What is edited is what runs, what ``dense()`` shows and what is saved, however it is edited."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nlaformer as nf
from nlaformer import io
from nlaformer.errors import UnknownNameError
from nlaformer.learn import model as solvers
from nlaformer.learn import programs
from nlaformer.learn.methods import GuidedCG
from nlaformer.transformer import NLAFormer
from nlaformer.weights import Dense, Sparse, Weight
from tests.learned import TINY

DTYPES = [torch.float64, torch.float32]


def _mixed() -> NLAFormer:
    """Trained and compiled layers side by side."""
    config = replace(nf.recipe("guided-quickstart"), n=4, d=8, heads=2, pre_layers=1, loop_layers=1)
    return nf.compile(programs.initial(config, GuidedCG()), verify=False).model


MODELS: dict[str, Callable[[], NLAFormer]] = {
    "operation": lambda: nf.operation("matmul", n=3).model,
    "compiled": lambda: nf.algorithm("cg", n=4, verify=False).model,
    "trained": lambda: solvers.initial(TINY).blocks,
    "mixed": _mixed,
}


@pytest.fixture(scope="module", params=MODELS)
def kept(request: pytest.FixtureRequest) -> NLAFormer:
    return MODELS[request.param]()


@pytest.fixture(params=DTYPES, ids=["float64", "float32"])
def model(kept: NLAFormer, request: pytest.FixtureRequest) -> NLAFormer:
    return copy.deepcopy(kept).to(request.param)


def edited_weights(model: NLAFormer) -> list[tuple[str, nn.Parameter]]:
    """What stands in the heads' outputs and the second half of the FFN."""
    return [(name, p) for name, p in model.named_parameters() if ".W_O." in name or ".W_2." in name]


def _in_place(model: NLAFormer) -> None:
    with torch.no_grad():
        for _, weight in edited_weights(model):
            weight.mul_(1.5)


def _by_data(model: NLAFormer) -> None:
    for _, weight in edited_weights(model):
        weight.data *= 1.5


def _by_other_data(model: NLAFormer) -> None:
    for _, weight in edited_weights(model):
        weight.data = weight.data * 1.5


def _by_numpy(model: NLAFormer) -> None:
    for _, weight in edited_weights(model):
        weight.detach().numpy()[...] *= 1.5


def _by_optimizer(model: NLAFormer) -> None:
    model.requires_grad_(True)
    weights = [weight for _, weight in edited_weights(model)]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    for weight in weights:
        weight.grad = -0.5 * weight.detach()
    optimizer.step()
    model.requires_grad_(False)


def _by_state(model: NLAFormer) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name, weight in edited_weights(model):
        state[name] = 1.5 * weight.detach()
    model.load_state_dict(state)


EDITS = [_in_place, _by_data, _by_other_data, _by_numpy, _by_optimizer, _by_state]


class Maps(nn.Module):
    """What every linear map of a model makes of the same tokens; whole layers would amplify their rounding errors."""

    def __init__(self, model: NLAFormer):
        super().__init__()
        self.model = model

    def forward(self) -> Tensor:
        found = []
        for weight in (w for w in self.model.modules() if isinstance(w, (Dense, Sparse))):
            found.append(weight(tokens(weight)).flatten())
        return torch.cat(found)


def tokens(weight: Weight) -> Tensor:
    like = next(weight.parameters())
    X = torch.randn(2, 7, weight.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return X.to(like)


def run(model: NLAFormer) -> Tensor:
    return Maps(model)()


def as_shown(model: NLAFormer) -> Tensor:
    """The same from the matrices that ``dense()`` shows."""
    weights = (w for w in model.modules() if isinstance(w, (Dense, Sparse)))
    return torch.cat([(tokens(weight) @ weight.dense().detach().mT).flatten() for weight in weights])


def assert_agree(model: NLAFormer, before: Tensor, folder: Path) -> None:
    with torch.no_grad():
        now = run(model)
        saved = io.read(io.save(folder, "operation", model, {}))[2]
        assert not torch.equal(now, before)
        rtol = 1e-11 if now.dtype == torch.float64 else 1e-4
        torch.testing.assert_close(now, as_shown(model), rtol=rtol, atol=rtol)
        assert torch.equal(run(saved), now)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__.strip("_"))
def test_an_edit_shows_in_the_run_in_dense_and_in_the_file(
    model: NLAFormer, edit: Callable[[NLAFormer], None], tmp_path: Path
) -> None:
    with torch.no_grad():
        before = run(model)
    edit(model)
    assert_agree(model, before, tmp_path / "edited")


def test_a_copy_is_edited_without_its_original(model: NLAFormer, tmp_path: Path) -> None:
    with torch.no_grad():
        before = run(model)
        other = copy.deepcopy(model)
        _by_data(other)
        assert torch.equal(run(model), before)
        assert_agree(other, before, tmp_path / "copy")
        _by_data(model)
        assert torch.equal(run(model), run(other))


def test_a_functional_call_computes_with_the_weights_that_it_is_given(model: NLAFormer) -> None:
    with torch.no_grad():
        before = run(model)
        given = {f"model.{name}": 1.5 * weight for name, weight in edited_weights(model)}
        found = torch.func.functional_call(Maps(model), given, ())
        assert torch.equal(run(model), before)
        _in_place(model)
        assert torch.equal(run(model), found)


def test_gradients_reach_every_entry_once_they_are_asked_for(model: NLAFormer) -> None:
    compiled = [weight for weight in model.modules() if isinstance(weight, Sparse)]
    assert not any(weight.values.requires_grad for weight in compiled)
    model.requires_grad_(True)
    run(model).square().sum().backward()
    assert all(weight.values.grad is not None for weight in compiled)
    assert not compiled or sum(
        int(torch.count_nonzero(weight.values.grad)) for weight in compiled if weight.values.grad is not None
    )


def test_the_gradient_of_a_sparse_weight_is_that_of_its_dense_matrix() -> None:
    torch.manual_seed(0)
    W = torch.zeros(90, 80, dtype=torch.float64)
    W[:40, 3], W[:40, 70] = torch.randn(2, 40, dtype=torch.float64)  # a block without zeros
    W[40, 3], W[41, 5], W[42] = 1.0, 2.0, torch.randn(80)  # a row that makes it have some, a gather, a long row
    index = torch.nonzero(W).T
    sparse = Sparse(index, W[index[0], index[1]], (90, 80)).requires_grad_(True)
    dense = sparse.dense().detach().requires_grad_(True)
    Y = torch.randn(5, 80, dtype=torch.float64)
    sparse(sparse(Y)[..., :80]).square().sum().backward()
    ((Y @ dense.mT)[..., :80] @ dense.mT).square().sum().backward()
    assert sparse.values.grad is not None and dense.grad is not None
    torch.testing.assert_close(sparse.values.grad, dense.grad[sparse.index[0], sparse.index[1]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("edit", [_in_place, _by_data, _by_other_data, _by_optimizer, _by_state])
def test_an_edit_on_a_gpu_shows_in_the_run(kept: NLAFormer, edit: Callable[[NLAFormer], None]) -> None:
    model = copy.deepcopy(kept).cuda()
    with torch.no_grad():
        before = run(model)
        edit(model)
        now = run(model)
        assert not torch.equal(now, before)
        torch.testing.assert_close(now, as_shown(model), rtol=1e-11, atol=1e-11)


def test_a_misspelt_hook_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownNameError, match=r"loop\.layer\[0\]\.attention"):
        nf.algorithm("cg", n=4, verify=False).model.hooks["loop.layer[0].atention"]
