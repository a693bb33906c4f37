"""Forward and backward through all passes of an NLAFormer's blocks, written out.

Autograd would add up the gradient of the loop's weights pass by pass. Here every pass leaves the inputs and the output
gradients of its products on a tape, (E, pass, row, column), and one product per weight over all passes ends the
backward pass. The residual stream keeps the parameters' precision; what the products read and write is in ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.learn.cuda.attention import attend, attend_backward
from nlaformer.learn.cuda.ends import column_sums, fold, spread, weight_gradient
from nlaformer.learn.cuda.launch import Launch
from nlaformer.learn.cuda.products import add_projected, norm_backward, project, relu_backward
from nlaformer.transformer import Layer, NLAFormer


class LayerPass(NamedTuple):
    """One pass through one layer."""

    layer: int  # index of the layer among the distinct ones
    repeat: int  # index of this pass among those of its layer
    block: int  # the block it belongs to: block t ends in iterate t
    starts: bool  # whether it is the first of its block
    ends: bool  # whether it is the last


def layer_passes(blocks: NLAFormer, loops: int) -> tuple[list[Layer], list[LayerPass]]:
    """The distinct layers, and all passes through them in order."""
    layers: list[Layer] = []
    passes: list[LayerPass] = []
    for number, (_, _, block) in enumerate(blocks.passes(loops)):
        for k, layer in enumerate(block):
            which = next((i for i, known in enumerate(layers) if known is layer), len(layers))
            if which == len(layers):
                layers.append(layer)
            repeat = sum(earlier.layer == which for earlier in passes)
            passes.append(LayerPass(which, repeat, number, k == 0, k == len(block) - 1))
    return layers, passes


class LayerTensors(NamedTuple):
    """The parameters of a layer of a stack, or their gradients; W_Q, W_K, W_U as one."""

    qkv: Tensor  # (E, 3d, d)
    W_O: Tensor  # (E, d, d)
    W_1: Tensor  # (E, width, d)
    W_2: Tensor  # (E, d, width)
    b_1: Tensor  # (E, width)
    b_2: Tensor  # (E, d)
    gain_1: Tensor | None  # (E, d)
    gain_2: Tensor | None

    def with_matrices(self, make: Callable[[Tensor], Tensor]) -> LayerTensors:
        """The layer with other matrices, one made of each."""
        return self._replace(qkv=make(self.qkv), W_O=make(self.W_O), W_1=make(self.W_1), W_2=make(self.W_2))


class _Tape(NamedTuple):
    """What the passes through one layer leave for the backward pass: every tensor (E, pass, ...)."""

    P: Tensor  # (E, pass, R, d): the input of the attention part
    qkv: Tensor  # (E, pass, R, 3d)
    mixed: Tensor
    U: Tensor  # the input of the FFN part
    hidden: Tensor  # (E, pass, R, width)
    squares_in: Tensor  # (E, pass, parts, R)
    squares_middle: Tensor
    d_qkv: Tensor  # gradients; those of qkv and hidden are over the scale of the norm before them
    d_middle: Tensor
    d_hidden: Tensor
    d_out: Tensor
    sums_hidden: Tensor  # (E, pass, parts, width): column sums of the gradients, for b_1 and b_2
    sums_out: Tensor  # (E, pass, parts, d)

    def at(self, repeat: int) -> _Tape:
        """The part of one pass: every tensor (E, ...)."""
        return _Tape(*(tensor[:, repeat] for tensor in self))


class Unrolled:
    """All passes of a stack's blocks, over buffers that stay where they are, so that a CUDA graph can replay them.

    ``input`` is where a read-in writes. ``forward`` gives the last token at every iterate; ``backward`` takes their
    gradient, returns that of the input and fills the gradients of the layers. All layers have the same heads and width.
    """

    def __init__(
        self,
        launch: Launch,
        blocks: NLAFormer,
        loops: int,
        batch: int,
        tokens: int,
        weights: list[LayerTensors],
        gradients: list[LayerTensors],
        dtype: torch.dtype,
        gradient_from: int = 0,
    ):
        layers, self.passes = layer_passes(blocks, loops)
        self.heads, self.causal = layers[0].heads.count, layers[0].causal  # type: ignore[union-attr]
        self.inject, self.gradient_from, self.launch = blocks.inject, gradient_from, launch
        self.tokens, self.weights, self.gradients = tokens, weights, gradients
        self.starts_with_iterate = not len(blocks.pre) and not blocks.inject
        (E, _, d), width = weights[0].qkv.shape, weights[0].W_1.shape[1]
        stream = torch.empty(E, batch * tokens, d, dtype=weights[0].qkv.dtype, device=weights[0].qkv.device)
        rows, wide = (stream.new_empty(E, batch * tokens, columns, dtype=dtype) for columns in (d, width))
        self.two_streams = dtype != stream.dtype
        self.features = stream.new_zeros(E, batch, self.passes[-1].block + 1, d)
        self.d_prompt, *self.streams = (torch.empty_like(stream) for _ in range(3))
        self.out, self.d_mixed, self.d_input = (torch.empty_like(rows) for _ in range(3))
        self.squares_out = stream.new_empty(E, launch.row_parts("W_2", wide, d), batch * tokens)
        self.dots_heads = stream.new_empty(E, self.heads, batch * tokens)
        self.dots_hidden = stream.new_empty(E, launch.row_parts("d_hidden", rows, width), batch * tokens)
        counts = [sum(each.layer == k for each in self.passes) for k in range(len(layers))]
        self.tapes = [_new_tape(launch, stream, rows, width, count) for count in counts]
        self.parts = [self.tapes[each.layer].at(each.repeat) for each in self.passes]
        first = self.parts[0]
        self.prompt = torch.empty_like(stream) if self.two_streams else first.P
        self.input = (self.prompt, first.P, first.squares_in[:, 0])
        self.prepared = [w.with_matrices(lambda W: torch.empty_like(W, dtype=dtype)) for w in weights]
        self.transposed = [w.with_matrices(launch.transposed) for w in self.prepared]

    def forward(self) -> Tensor:
        """The last token (E, B, iterate, d) at every iterate, for the prompt in ``input``."""
        for weight, ready, transposed in zip(self.weights, self.prepared, self.transposed, strict=True):
            gains = (weight.gain_1, None, weight.gain_2, None)
            for W, gain, out, turned in zip(weight[:4], gains, ready[:4], transposed[:4], strict=True):
                fold(self.launch, W, gain, out, turned)  # type: ignore[arg-type]
        stream = self.prompt
        if self.starts_with_iterate:
            self.features[:, :, 0].copy_(stream[:, self.tokens - 1 :: self.tokens])
        for k in range(len(self.passes)):
            stream = self._forward_layer(k, stream)
        return self.features

    def _forward_layer(self, k: int, stream: Tensor) -> Tensor:
        """Pass k; ``stream`` is its input in the stream's precision. Returns the output in the same."""
        here, part, launch = self.passes[k], self.parts[k], self.launch
        w = self.prepared[here.layer]
        norm_1, norm_2 = self._norm_squares(k)
        out, squares_out, inject = self.out, self.squares_out, None
        if k + 1 < len(self.passes):
            following = self.parts[k + 1]
            out, squares_out = following.P, following.squares_in
            inject = self.prompt if self.inject and here.ends else None
        middle, end = self.streams if self.two_streams else (part.U, out)
        features = self.features[:, :, here.block] if here.ends else None
        project(launch, "qkv", part.P, w.qkv, part.qkv, norm_1)
        attend(launch, part.qkv, self.heads, self.tokens, self.causal, part.mixed)
        add_projected(launch, "W_O", part.mixed, w.W_O, None, stream, middle, part.U, part.squares_middle)
        project(launch, "W_1", part.U, w.W_1, part.hidden, norm_2, w.b_1, relu=True)
        add_projected(
            launch, "W_2", part.hidden, w.W_2, w.b_2, middle, end, out, squares_out, features, self.tokens, inject
        )
        return end

    def backward(self, d_features: Tensor) -> Tensor:
        """The gradient of the input (E, R, d), for that of the features; fills ``gradients``."""
        last = self.parts[-1]
        stream = self.streams[0] if self.two_streams else last.d_out
        spread(self.launch, d_features[:, :, self.passes[-1].block], self.tokens, stream, last.d_out, last.sums_out)
        if self.inject:
            self.d_prompt.zero_()
        for k in range(len(self.passes) - 1, -1, -1):
            if self.passes[k].block >= self.gradient_from:
                stream = self._backward_layer(k, stream, d_features)
        for k in range(len(self.tapes)):
            self._weight_gradients(k)
        if self.starts_with_iterate:
            stream[:, self.tokens - 1 :: self.tokens] += d_features[:, :, 0]
        return self.d_prompt if self.inject else stream

    def _backward_layer(self, k: int, stream: Tensor, d_features: Tensor) -> Tensor:
        """Pass k; ``stream`` is the gradient of its output in the stream's precision. Returns that of its input."""
        here, part, launch = self.passes[k], self.parts[k], self.launch
        w = self.transposed[here.layer]
        norm_1, norm_2 = self._norm_squares(k)
        out, sums, features = self.d_input, None, None
        if k and self.passes[k - 1].block >= self.gradient_from:
            before = self.passes[k - 1]
            out, sums = self.parts[k - 1].d_out, self.parts[k - 1].sums_out
            features = d_features[:, :, before.block] if before.ends else None
        middle, end = (self.streams[1], self.streams[0]) if self.two_streams else (part.d_middle, out)
        relu_backward(
            launch, "d_hidden", part.d_out, w.W_2, part.hidden, w.b_1, norm_2,
            part.d_hidden, self.dots_hidden, part.sums_hidden,
        )  # fmt: skip
        norm_backward(
            launch, "d_U", part.d_hidden, w.W_1, part.U, norm_2, self.dots_hidden, stream, middle, part.d_middle
        )
        project(launch, "d_mixed", part.d_middle, w.W_O, self.d_mixed)
        attend_backward(
            launch, part.qkv, self.d_mixed, norm_1, self.heads, self.tokens, self.causal, part.d_qkv, self.dots_heads
        )
        norm_backward(
            launch, "d_P", part.d_qkv, w.qkv, part.P, norm_1, self.dots_heads, middle, end, out, sums,
            features, self.tokens,
        )  # fmt: skip
        if self.inject and here.starts:
            self.d_prompt.add_(end)
            if features is not None:  # it belongs to the iterate before, which is read without the prompt
                self.d_prompt[:, self.tokens - 1 :: self.tokens] -= features
        return end

    def _norm_squares(self, k: int) -> tuple[Tensor | None, Tensor | None]:
        """The squares that the two norms of pass k scale by; None where the layer has no norms."""
        if self.weights[self.passes[k].layer].gain_1 is None:
            return None, None
        return self.parts[k].squares_in, self.parts[k].squares_middle

    def _weight_gradients(self, k: int) -> None:
        """One product per weight over all passes; the gains' gradients follow from those of the folded weights."""
        tape, weight, gradient, launch = self.tapes[k], self.weights[k], self.gradients[k], self.launch
        column_sums(launch, tape.sums_hidden.flatten(1, 2), gradient.b_1)
        column_sums(launch, tape.sums_out.flatten(1, 2), gradient.b_2)
        weight_gradient(launch, tape.d_qkv, tape.P, weight.qkv, weight.gain_1, gradient.qkv, gradient.gain_1)
        weight_gradient(launch, tape.d_middle, tape.mixed, weight.W_O, None, gradient.W_O, None)
        weight_gradient(launch, tape.d_hidden, tape.U, weight.W_1, weight.gain_2, gradient.W_1, gradient.gain_2)
        weight_gradient(launch, tape.d_out, tape.hidden, weight.W_2, None, gradient.W_2, None)


def _new_tape(launch: Launch, stream: Tensor, rows: Tensor, width: int, passes: int) -> _Tape:
    """A tape of zeros: passes without gradient, and sums whose tiles no kernel fills, count as nothing."""
    E, R, d = rows.shape
    columns = {"P": d, "qkv": 3 * d, "mixed": d, "U": d, "hidden": width}
    columns |= {"d_qkv": 3 * d, "d_middle": d, "d_hidden": width, "d_out": d}
    buffers = {name: rows.new_zeros(E, passes, R, count) for name, count in columns.items()}
    first = {name: buffer[:, 0] for name, buffer in buffers.items()}
    return _Tape(
        **buffers,
        squares_in=stream.new_zeros(E, passes, launch.row_parts("W_2", first["hidden"], d), R),
        squares_middle=stream.new_zeros(E, passes, launch.row_parts("W_O", first["mixed"], d), R),
        sums_hidden=stream.new_zeros(E, passes, launch.column_parts("d_hidden", rows, width), width),
        sums_out=stream.new_zeros(E, passes, launch.column_parts("d_P", first["d_qkv"], d), d),
    )
