"""Forward and backward through all passes of an NLAFormer's blocks, written out.

Autograd would add up the gradient of the loop's weights pass by pass. Here every pass leaves the inputs and the output
gradients of its products on a tape, (E, pass, row, column), and one product per weight over all passes ends the
backward pass. The products in between, with norms, residuals and ReLU in their epilogues, are those of ``kernels.py``
or of its twins. The residual stream keeps the parameters' precision; what the products read and write is in ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from nlaformer.learn.cuda.twins import Twins
from nlaformer.transformer import Layer, NLAFormer

if TYPE_CHECKING:
    from nlaformer.learn.cuda.kernels import TritonKernels


class Application(NamedTuple):
    """One pass through one layer: which layer, its how-manyeth pass, in which block, at the block's start or end."""

    layer: int
    turn: int
    block: int
    starts: bool
    ends: bool


def schedule(blocks: NLAFormer, loops: int) -> tuple[list[Layer], list[Application]]:
    """The distinct layers, and the order in which they are applied; block t ends in iterate t."""
    layers: list[Layer] = []
    turns: list[int] = []
    order: list[Application] = []
    for number, (_, _, block) in enumerate(blocks.passes(loops)):
        for k, layer in enumerate(block):
            index = next((i for i, known in enumerate(layers) if known is layer), len(layers))
            if index == len(layers):
                layers.append(layer)
                turns.append(0)
            order.append(Application(index, turns[index], number, k == 0, k == len(block) - 1))
            turns[index] += 1
    return layers, order


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


@dataclass(frozen=True)
class Tape:
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


class Unrolled:
    """All passes of a stack's blocks, over buffers that stay where they are, so that a CUDA graph can replay them.

    ``input`` is where a read-in writes. ``forward`` gives the last token at every iterate; ``backward`` takes their
    gradient, returns that of the input and fills the gradients of the layers. All layers have the same heads and width.
    """

    def __init__(
        self,
        blocks: NLAFormer,
        loops: int,
        batch: int,
        tokens: int,
        weights: list[LayerTensors],
        gradients: list[LayerTensors],
        kernels: TritonKernels | Twins,
        dtype: torch.dtype,
        gradient_from: int = 0,
    ):
        layers, self.order = schedule(blocks, loops)
        self.heads, self.causal = layers[0].heads.count, layers[0].causal  # type: ignore[union-attr]
        self.inject, self.gradient_from, self.kernels = blocks.inject, gradient_from, kernels
        self.tokens, self.weights, self.gradients = tokens, weights, gradients
        self.starts_with_iterate = not len(blocks.pre) and not blocks.inject
        (E, _, d), width = weights[0].qkv.shape, weights[0].W_1.shape[1]
        stream = torch.empty(E, batch * tokens, d, dtype=weights[0].qkv.dtype, device=weights[0].qkv.device)
        rows, wide = (stream.new_empty(E, batch * tokens, columns, dtype=dtype) for columns in (d, width))
        self.two_streams = dtype != stream.dtype
        self.features = stream.new_zeros(E, batch, self.order[-1].block + 1, d)
        self.d_prompt, *self.streams = (torch.empty_like(stream) for _ in range(3))
        self.out, self.d_mixed, self.d_input = (torch.empty_like(rows) for _ in range(3))
        self.squares_out = stream.new_empty(E, kernels.row_parts("W_2", wide, d), batch * tokens)
        self.dots_heads = stream.new_empty(E, self.heads, batch * tokens)
        self.dots_hidden = stream.new_empty(E, kernels.row_parts("d_hidden", rows, width), batch * tokens)
        passes = [sum(a.layer == k for a in self.order) for k in range(len(layers))]
        self.tapes = [_tape(stream, rows, width, count, kernels) for count in passes]
        first = self.tapes[self.order[0].layer]
        self.prompt = torch.empty_like(stream) if self.two_streams else first.P[:, 0]
        self.input = (self.prompt, first.P[:, 0], first.squares_in[:, 0, 0])
        self.prepared = [_for_matrices(w, lambda W: torch.empty_like(W, dtype=dtype)) for w in weights]
        self.transposed = [_for_matrices(w, kernels.transposed) for w in self.prepared]

    def forward(self) -> Tensor:
        """The last token (E, B, iterate, d) at every iterate, for the prompt in ``input``."""
        for weight, ready, transposed in zip(self.weights, self.prepared, self.transposed, strict=True):
            gains = (weight.gain_1, None, weight.gain_2, None)
            for matrices in zip(weight[:4], gains, ready[:4], transposed[:4], strict=True):
                self.kernels.fold(*matrices)  # type: ignore[arg-type]
        stream = self.prompt
        if self.starts_with_iterate:
            self.features[:, :, 0].copy_(stream[:, self.tokens - 1 :: self.tokens])
        for k in range(len(self.order)):
            stream = self._forward_layer(k, stream)
        return self.features

    def _forward_layer(self, k: int, stream: Tensor) -> Tensor:
        """Pass k; ``stream`` is its input in the stream's precision. Returns the output in the same."""
        here, kernels = self.order[k], self.kernels
        w, tape, turn = self.prepared[here.layer], self.tapes[here.layer], here.turn
        squares_in, squares_middle = self._squares(k)
        out, squares_out, inject = self.out, self.squares_out, None
        if k + 1 < len(self.order):
            following = self.tapes[self.order[k + 1].layer]
            out, squares_out = (tensor[:, self.order[k + 1].turn] for tensor in (following.P, following.squares_in))
            inject = self.prompt if self.inject and here.ends else None
        middle, end = self.streams if self.two_streams else (tape.U[:, turn], out)
        kernels.project("qkv", tape.P[:, turn], w.qkv, tape.qkv[:, turn], squares_in)
        kernels.attend(tape.qkv[:, turn], self.heads, self.tokens, self.causal, tape.mixed[:, turn])
        kernels.add_projected(
            "W_O", tape.mixed[:, turn], w.W_O, None, stream, middle, tape.U[:, turn], tape.squares_middle[:, turn]
        )
        kernels.project("W_1", tape.U[:, turn], w.W_1, tape.hidden[:, turn], squares_middle, w.b_1, relu=True)
        features = self.features[:, :, here.block] if here.ends else None
        kernels.add_projected(
            "W_2", tape.hidden[:, turn], w.W_2, w.b_2, middle, end, out, squares_out, features, self.tokens, inject
        )
        return end

    def backward(self, d_features: Tensor) -> Tensor:
        """The gradient of the input (E, R, d), for that of the features; fills ``gradients``."""
        last, every = self.order[-1], slice(self.tokens - 1, None, self.tokens)
        tape = self.tapes[last.layer]
        stream = self.streams[0] if self.two_streams else tape.d_out[:, last.turn]
        self.kernels.spread(
            d_features[:, :, last.block], self.tokens, stream, tape.d_out[:, last.turn], tape.sums_out[:, last.turn]
        )
        if self.inject:
            self.d_prompt.zero_()
        for k in range(len(self.order) - 1, -1, -1):
            if self.order[k].block >= self.gradient_from:
                stream = self._backward_layer(k, stream, d_features)
        for k in range(len(self.tapes)):
            self._weight_gradients(k)
        if self.starts_with_iterate:
            stream[:, every] += d_features[:, :, 0]
        return self.d_prompt if self.inject else stream

    def _backward_layer(self, k: int, stream: Tensor, d_features: Tensor) -> Tensor:
        """Pass k; ``stream`` is the gradient of its output in the stream's precision. Returns that of its input."""
        here, kernels = self.order[k], self.kernels
        w, tape, turn = self.transposed[here.layer], self.tapes[here.layer], here.turn
        squares_in, squares_middle = self._squares(k)
        out, sums, features = self.d_input, None, None
        if k and self.order[k - 1].block >= self.gradient_from:
            before = self.order[k - 1]
            earlier = self.tapes[before.layer]
            out, sums = earlier.d_out[:, before.turn], earlier.sums_out[:, before.turn]
            features = d_features[:, :, before.block] if before.ends else None
        middle, end = (self.streams[1], self.streams[0]) if self.two_streams else (tape.d_middle[:, turn], out)
        kernels.relu_backward(
            "d_hidden", tape.d_out[:, turn], w.W_2, tape.hidden[:, turn], w.b_1, squares_middle,
            tape.d_hidden[:, turn], self.dots_hidden, tape.sums_hidden[:, turn],
        )  # fmt: skip
        kernels.norm_backward(
            "d_U", tape.d_hidden[:, turn], w.W_1, tape.U[:, turn], squares_middle, self.dots_hidden,
            stream, middle, tape.d_middle[:, turn],
        )  # fmt: skip
        kernels.project("d_mixed", tape.d_middle[:, turn], w.W_O, self.d_mixed)
        kernels.attend_backward(
            tape.qkv[:, turn], self.d_mixed, squares_in, self.heads, self.tokens, self.causal,
            tape.d_qkv[:, turn], self.dots_heads,
        )  # fmt: skip
        kernels.norm_backward(
            "d_P", tape.d_qkv[:, turn], w.qkv, tape.P[:, turn], squares_in, self.dots_heads,
            middle, end, out, sums, features, self.tokens,
        )  # fmt: skip
        if self.inject and here.starts:
            self.d_prompt.add_(end)
            if features is not None:  # it belongs to the iterate before, which is read without the prompt
                self.d_prompt[:, self.tokens - 1 :: self.tokens] -= features
        return end

    def _squares(self, k: int) -> tuple[Tensor | None, Tensor | None]:
        """The squares that scale the two parts of pass k, where the layer has norms."""
        here = self.order[k]
        if self.weights[here.layer].gain_1 is None:
            return None, None
        tape = self.tapes[here.layer]
        return tape.squares_in[:, here.turn], tape.squares_middle[:, here.turn]

    def _weight_gradients(self, k: int) -> None:
        """One product per weight over all passes; the gains' gradients follow from those of the folded weights."""
        tape, weight, gradient, kernels = self.tapes[k], self.weights[k], self.gradients[k], self.kernels
        kernels.column_sums(tape.sums_hidden.flatten(1, 2), gradient.b_1)
        kernels.column_sums(tape.sums_out.flatten(1, 2), gradient.b_2)
        kernels.weight_gradient(tape.d_qkv, tape.P, weight.qkv, weight.gain_1, gradient.qkv, gradient.gain_1)
        kernels.weight_gradient(tape.d_middle, tape.mixed, weight.W_O, None, gradient.W_O, None)
        kernels.weight_gradient(tape.d_hidden, tape.U, weight.W_1, weight.gain_2, gradient.W_1, gradient.gain_2)
        kernels.weight_gradient(tape.d_out, tape.hidden, weight.W_2, None, gradient.W_2, None)


def _for_matrices(layer: LayerTensors, make: Callable[[Tensor], Tensor]) -> LayerTensors:
    """The layer with other matrices, one made of each."""
    W_O, W_1, W_2 = make(layer.W_O), make(layer.W_1), make(layer.W_2)
    return layer._replace(qkv=make(layer.qkv), W_O=W_O, W_1=W_1, W_2=W_2)


def _tape(stream: Tensor, rows: Tensor, width: int, passes: int, kernels: TritonKernels | Twins) -> Tape:
    """A tape of zeros: passes without gradient, and sums whose tiles no kernel fills, count as nothing."""
    E, R, d = rows.shape
    columns = {"P": d, "qkv": 3 * d, "mixed": d, "U": d, "hidden": width}
    columns |= {"d_qkv": 3 * d, "d_middle": d, "d_hidden": width, "d_out": d}
    buffers = {name: rows.new_zeros(E, passes, R, count) for name, count in columns.items()}
    parts = {name: kernels.row_parts(name, buffers[of][:, 0], d) for name, of in (("W_O", "mixed"), ("W_2", "hidden"))}
    tiles = {"d_hidden": kernels.column_parts("d_hidden", rows, width)}
    tiles |= {"d_P": kernels.column_parts("d_P", buffers["d_qkv"][:, 0], d)}
    return Tape(
        **buffers,
        squares_in=stream.new_zeros(E, passes, parts["W_2"], R),
        squares_middle=stream.new_zeros(E, passes, parts["W_O"], R),
        sums_hidden=stream.new_zeros(E, passes, tiles["d_hidden"], width),
        sums_out=stream.new_zeros(E, passes, tiles["d_P"], d),
    )
