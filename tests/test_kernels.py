"""The parts of the CUDA step: the references against autograd through the definition, the kernels against float64.

The references run everywhere. The Triton kernels run where there is CUDA, or on a CPU with TRITON_INTERPRET=1 (except
in bfloat16, which the interpreter cannot).
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

import nlaformer as nf
from nlaformer.learn import supervision
from nlaformer.learn.cuda.ends import ReadIn
from nlaformer.learn.cuda.launch import Launch, tile_for, unsupported
from nlaformer.learn.cuda.unrolled import Unrolled, layer_passes
from nlaformer.learn.cuda.update import Flat, loss_gradient, loss_gradient_reference
from nlaformer.learn.data import Batch
from nlaformer.learn.model import initial, stack
from tests.kernel_errors import Dimensions, kernel_errors

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
SIZES = [
    Dimensions(),
    Dimensions(E=1, B=64 if CUDA else 4, tokens=21, d=256, heads=8, width=1024),
    Dimensions(E=3, B=5, tokens=70, d=96, heads=3, width=96),
]
VARIANTS = {
    "the paper's": {},
    "causal, two layers": {"causal": True, "loop_layers": 2},
    "no normalization": {"norm": "none", "output_scale": 0.1},
    "loop alone": {"pre_layers": 0, "post_layers": 0},
    "Yang et al.": {"pre_layers": 0, "post_layers": 0, "inject": True},
    "Yang et al., truncated": {"pre_layers": 0, "post_layers": 0, "inject": True, "truncate": True, "window": 3},
    "injected, truncated": {"inject": True, "truncate": True, "window": 3},
    "ordinary deep transformer": {"shared": False, "loop_layers": 2},
    "no loops": {"T": 1},
}


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).norm() / expected.norm().clamp(min=1e-9)).detach())


@pytest.mark.parametrize("variant", VARIANTS)
def test_unrolled_passes_and_gradients_equal_autograd_through_the_solver(variant: str) -> None:
    config = nf.recipe("quickstart", n=4, d=32, heads=2, **{"T": 5} | VARIANTS[variant])
    E, B, n = 2, 3, config.n
    generator = torch.Generator().manual_seed(1)
    solver = stack([initial(config.replace(seed=k)) for k in range(E)]).double()
    for parameter in solver.parameters():  # off the start, where probes are zero and gains are one
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    A, b = (torch.randn(E, B, *s, generator=generator, dtype=torch.float64) for s in ((n, n), (n,)))
    gradient_from = config.first if config.truncate else 0
    expected = solver.features(A, b, gradient_from=gradient_from)
    d_features = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    parameters = dict(solver.named_parameters())
    wanted = torch.autograd.grad(expected, list(parameters.values()), d_features, materialize_grads=True)

    flat = Flat(solver)
    weight, gradient = (torch.zeros(E, flat.size, dtype=torch.float64) for _ in range(2))
    for name, view in flat.views(weight).items():
        view.copy_(parameters[name].detach())
    layers = [flat.layers(tensor, solver, config.loops) for tensor in (weight, gradient)]
    launch = Launch(torch.finfo(torch.float64).eps, triton=False)
    passes = Unrolled(launch, solver.blocks, config.loops, B, n + 1, *layers, torch.float64, gradient_from)
    views = [flat.views(tensor) for tensor in (weight, gradient)]
    read_in = ReadIn(launch, *(view[name] for view in views for name in ("read_in.weight", "positions")), B)
    for _ in range(2):  # the buffers are used again at every step
        read_in.forward(A, b, *passes.input)
        features = passes.forward()
        read_in.backward(passes.backward(d_features))
    assert error(features, expected) < 1e-12
    for name, value in zip(parameters, wanted, strict=True):
        if not name.startswith("probe"):
            assert error(views[1][name], value) < 1e-11, name


def test_layer_passes_lists_every_pass_of_the_loop_once_in_order() -> None:
    layers, passes = layer_passes(initial(nf.recipe("quickstart", loop_layers=2)).blocks, loops=3)
    assert len(layers) == 4
    assert [(each.layer, each.repeat, each.block) for each in passes] == [
        (0, 0, 0), (1, 0, 1), (2, 0, 1), (1, 1, 2), (2, 1, 2), (1, 2, 3), (2, 2, 3), (3, 0, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_references_in_float32_are_within_20_eps_of_float64(size: Dimensions) -> None:
    errors = kernel_errors(Launch(1e-7, triton=False), torch.float32, size=size)
    assert all(value < 20 * torch.finfo(torch.float32).eps for value in errors.values()), errors


@pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs CUDA, or Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16 if CUDA else torch.float16], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_triton_kernels_are_within_20_eps_of_float64(size: Dimensions, dtype: torch.dtype) -> None:
    errors = kernel_errors(Launch(1e-7, triton=True), dtype, "cuda" if CUDA else "cpu", size)
    assert all(value < 20 * torch.finfo(dtype).eps for value in errors.values()), errors


def losses(E: int, B: int, T: int, n: int) -> tuple[list[torch.Tensor], supervision.Objective]:
    """Iterates and targets whose distance falls from 1 to 1e-3, as float32 gives them, and E losses over all powers."""
    generator = torch.Generator().manual_seed(2)
    shapes = (T + 1, n), (T + 1, 2 * n), (n, n), (n,), (n,), (T + 1, n), (T + 1, 2 * n)
    x, rd, A, b, x_true, *gaps = (torch.randn(E, B, *shape, generator=generator) for shape in shapes)
    fall = torch.logspace(0, -3, T + 1).unsqueeze(-1)
    kinds = ("result", "joint", "step+solution", "solution")
    base = nf.recipe("cg-joint", n=n, T=T, eta=0.1)
    configs = [
        base.replace(supervision=kinds[e % 4], power=(0.0, 0.5, 1.0)[e % 3], window=None if e % 2 else T)
        for e in range(E)
    ]
    batch = [A, b, x_true, x + fall * gaps[0], rd + fall * gaps[1]]
    return [x, rd, *batch], supervision.objective(configs)


@pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs CUDA, or Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize("size", [(12, 5, 4, 3), (12, 70, 3, 20)], ids=str)
def test_the_loss_kernel_is_within_100_eps_of_autograd_in_float64(size: tuple[int, int, int, int]) -> None:
    tensors, objective = losses(*size)
    x, rd, *batch = (tensor.double() for tensor in tensors)
    expected = loss_gradient_reference(x, rd, Batch(*batch), objective)
    device = "cuda" if CUDA else "cpu"
    x, rd, *batch = (tensor.to(device) for tensor in tensors)
    own = supervision.Objective(*(tensor.to(device) for tensor in objective))
    found = loss_gradient(Launch(1e-7, triton=True), x, rd, Batch(*batch), own)
    for name, one, other in zip(expected._fields, found, expected, strict=True):
        for e in range(size[0]):  # each model on its own: a large one must not hide a small one
            assert error(one[e].cpu(), other[e]) < 100 * torch.finfo(torch.float32).eps, (name, e)


def test_tiles_divide_columns_and_inner_axis_of_every_product() -> None:
    for rows in (63, 1344, 10_752):
        for name in ("qkv", "W_O", "W_1", "W_2", "d_hidden", "d_U", "d_mixed", "d_P"):
            for columns, inner in ((768, 256), (256, 1024), (96, 32)):
                tile = tile_for(name, rows, columns, inner, torch.bfloat16)
                assert columns % tile.columns == 0 and inner % tile.inner == 0 and tile.inner >= 16


def test_unsupported_names_the_shape_that_the_kernels_cannot_run() -> None:
    assert unsupported(d=256, heads=8, width=1024, tokens=21) is None
    assert "power of two" in str(unsupported(d=96, heads=4, width=96, tokens=5))
    assert "tokens" in str(unsupported(d=256, heads=8, width=1024, tokens=500))
