"""Every kernel against its reference in float64, on random inputs: relative errors by kernel and output."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.learn.cuda import attention, ends, products
from nlaformer.learn.cuda.launch import Launch


class Dimensions(NamedTuple):
    """Of the layer to check: E models, B systems each."""

    E: int = 2
    B: int = 7
    tokens: int = 5
    d: int = 64
    heads: int = 2
    width: int = 128


def kernel_errors(
    launch: Launch,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    size: Dimensions = Dimensions(),  # noqa: B008
    seed: int = 0,
) -> dict[str, float]:
    """||found - expected|| / ||expected|| of every output of every kernel, NaN where an entry is unwritten."""
    found = _outputs(launch, _Inputs(size, dtype, torch.float32, device, seed))
    reference = Launch(launch.epsilon, triton=False)
    expected = _outputs(reference, _Inputs(size, dtype, torch.float64, device, seed))
    return {
        name: float((value.double() - expected[name]).norm() / expected[name].norm()) for name, value in found.items()
    }


class _Inputs:
    """Random tensors: rounded to ``dtype`` in both runs, so that both see the same numbers."""

    def __init__(self, size: Dimensions, dtype: torch.dtype, stream: torch.dtype, device: object, seed: int):
        self.size, self.rounded, self.device = size, dtype, device
        self.stream = stream
        self.dtype = torch.float64 if stream == torch.float64 else dtype
        self.generator = torch.Generator().manual_seed(seed)

    def compute(self, *shape: int, scale: float = 1.0) -> Tensor:
        value = scale * torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return value.to(self.rounded).to(self.device, self.dtype)  # type: ignore[call-overload]

    def full(self, *shape: int) -> Tensor:
        value = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return value.float().to(self.device, self.stream)  # type: ignore[call-overload]

    def out(self, *shape: int, full: bool = False) -> Tensor:
        """An output, poisoned."""
        return torch.full(shape, torch.nan, dtype=self.stream if full else self.dtype, device=self.device)  # type: ignore[call-overload]


def _outputs(launch: Launch, make: _Inputs) -> dict[str, Tensor]:
    """All kernels on the same inputs; sums of parts are added up: references and kernels split them differently."""
    size = make.size
    E, d, width, R = size.E, size.d, size.width, size.B * size.tokens
    heads = (size.heads, size.tokens)
    rows, wide = make.compute(E, R, d), make.compute(E, R, width).relu()
    square, d_rows = make.full(E, 1, R).abs() * d + 1.0, make.compute(E, R, d)
    stream, features = make.full(E, R, d), make.full(E, size.B, 3, d)
    qkv = make.compute(E, R, 3 * d, scale=0.5)
    W_qkv, W_1 = make.compute(E, 3 * d, d, scale=d**-0.5), make.compute(E, width, d, scale=d**-0.5)
    W_2, b_1, b_2 = make.compute(E, d, width, scale=width**-0.5), make.full(E, width), make.full(E, d)
    outputs: dict[str, Tensor] = {}

    outputs["project"] = make.out(E, R, 3 * d)
    products.project(launch, "qkv", rows, W_qkv, outputs["project"], square)
    outputs["project relu"] = make.out(E, R, width)
    products.project(launch, "W_1", rows, W_1, outputs["project relu"], square, b_1, relu=True)
    outputs["project transposed"] = make.out(E, R, d)
    products.project(launch, "d_mixed", qkv, W_qkv.mT, outputs["project transposed"])

    out, stream_out, last = make.out(E, R, d), make.out(E, R, d, full=True), make.out(E, size.B, 3, d, full=True)
    squares = make.out(E, launch.row_parts("W_2", wide, d), R, full=True)
    stream_out = stream_out if out.dtype != stream.dtype else out
    products.add_projected(
        launch, "W_2", wide, W_2, b_2, stream, stream_out, out, squares, last[:, :, 1], size.tokens, stream
    )
    outputs |= {"add_projected": out, "add_projected stream": stream_out, "add_projected squares": squares.sum(1)}
    outputs["add_projected features"] = last[:, :, 1]

    for causal in (False, True):
        name = "attend causal" if causal else "attend"
        outputs[name] = make.out(E, R, d)
        attention.attend(launch, qkv, *heads, causal, outputs[name])
        outputs[f"{name} backward"], dots = make.out(E, R, 3 * d), make.out(E, size.heads, R, full=True)
        attention.attend_backward(launch, qkv, d_rows, square, *heads, causal, outputs[f"{name} backward"], dots)
        outputs[f"{name} backward dots"] = dots.sum(1)

    outputs["relu_backward"] = make.out(E, R, width)
    dots = make.out(E, launch.row_parts("d_hidden", rows, width), R, full=True)
    sums = make.out(E, launch.column_parts("d_hidden", rows, width), width, full=True)
    products.relu_backward(launch, "d_hidden", d_rows, W_2.mT, wide, b_1, square, outputs["relu_backward"], dots, sums)
    outputs |= {"relu_backward dots": dots.sum(1), "relu_backward sums": sums.sum(1)}

    out, stream_out = make.out(E, R, d), make.out(E, R, d, full=True)
    stream_out = stream_out if out.dtype != stream.dtype else out
    sums = make.out(E, launch.column_parts("d_U", wide, d), d, full=True)
    given = make.full(E, 2, R)
    products.norm_backward(
        launch, "d_U", wide, W_1.mT, rows, square, given, stream, stream_out, out, sums, features[:, :, 1], size.tokens
    )
    outputs |= {"norm_backward": out, "norm_backward stream": stream_out, "norm_backward sums": sums.sum(1)}

    gain, outputs["gain_gradient"] = make.full(E, d), make.out(E, d, full=True)
    outputs["weight_gradient"] = make.out(E, width, d, full=True)
    G, X, W = make.compute(E, 3, R, width), make.compute(E, 3, R, d), make.full(E, width, d)
    ends.weight_gradient(launch, G, X, W, gain, outputs["weight_gradient"], outputs["gain_gradient"])
    return outputs | _outputs_at_the_ends(launch, make)


def _outputs_at_the_ends(launch: Launch, make: _Inputs) -> dict[str, Tensor]:
    """What runs once per step, before the passes and after them."""
    size = make.size
    E, d, width, n, R = size.E, size.d, size.width, size.tokens - 1, size.B * size.tokens
    outputs = {"fold": make.out(E, width, d)}
    turned = launch.transposed(outputs["fold"])
    ends.fold(launch, make.full(E, width, d), make.full(E, d), outputs["fold"], turned)
    outputs["fold transposed"] = turned

    A, b, W, positions = (
        make.full(E, size.B, n, n),
        make.full(E, size.B, n),
        make.full(E, d, n + 1),
        make.full(E, n + 1, d),
    )
    prompt, out = torch.zeros_like(make.out(E, R, n + 8, full=True)), make.out(E, R, d)
    stream = make.out(E, R, d, full=True) if out.dtype != A.dtype else out
    squares = make.out(E, R, full=True)
    ends.read_in(launch, A, b, W, positions, prompt, stream, out, squares)
    outputs |= {"read_in": out, "read_in stream": stream, "read_in prompt": prompt, "read_in squares": squares}

    features, out = make.full(E, size.B, 3, d), make.out(E, R, d)
    stream = make.out(E, R, d, full=True) if out.dtype != A.dtype else out
    sums = make.out(E, launch.column_parts("d_P", make.out(E, R, 3 * d), d), d, full=True)
    ends.spread(launch, features[:, :, 1], size.tokens, stream, out, sums)
    outputs |= {"spread": out, "spread stream": stream, "column_sums": make.out(E, d, full=True)}
    ends.column_sums(launch, sums, outputs["column_sums"])
    return outputs
