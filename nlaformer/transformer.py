"""The forward pass: a transformer layer, eq. (1) of the paper, and the NLAFormer of section 3.

For a token matrix P (rows x tokens)::

    Attn(P) = P + sum_i W_V^i P softmax(P^T W_K^iT W_Q^i P)      softmax over the keys of each column
    TF(P)   = Attn(P) + W_2 ReLU(W_1 Attn(P) + b_1) + b_2
    NLAF(P) = TF_post(TF_loop(... TF_loop(TF_pre(P))))

Operations, compiled algorithms and trained models all run through ``NLAFormer.states``; training on CUDA uses fused
kernels for the same layer (``learn/cuda``), which tests compare with this file. Inside, tensors are
(..., token, row): P is transposed on entry, so a weight acts on the last axis. The heads of a layer are stored
together and factored, W_V = W_O W_U, so that a head may be as narrow as what it carries; ``layer.dense()`` multiplies
them out into the paper's matrices. The 1/sqrt(d) of common implementations is part of W_Q.

A weight (``weights.py``) is ``Dense``, if it was trained, or ``Sparse``, if it was compiled. Trained weights may have a
leading axis over models, a stack: W is then (E, out, in) and acts on (E, batch, token, row).

Every intermediate passes through a ``Point``, on which torch's forward hooks see and replace it; ``NLAFormer.hooks``
has them by name. Without hooks they cost nothing that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from nlaformer.errors import OptionError, unknown_name
from nlaformer.weights import Dense, Weight

# A batch runs in pieces; the tensors of a piece in one layer have about this many entries together, on a processor
# for each of its threads. They then stay in the cache: memory that is new to the process costs several times as much
# as the arithmetic on it.
_ENTRIES_AT_ONCE = {"cpu": 2**21, "cuda": 2**28}


class Point(nn.Module):
    """A place in the forward pass: torch's forward hooks on it see the value there, and may return another one."""

    def forward(self, X: Tensor) -> Tensor:
        return X

    @property
    def watched(self) -> bool:
        """Whether there are hooks, or a method of this object in place of ``forward``, which is how nnsight sees it."""
        return bool(self._forward_hooks or self._forward_pre_hooks or "forward" in self.__dict__)

    def replaced(self, result: Tensor, U: Tensor, added: Tensor) -> Tensor:
        """``result`` is U plus what a part adds, which is seen here; entries that stay as they are keep their bits."""
        other = self(added)
        return torch.where(other == added, result, U + other)


def attention(Q: Tensor, K: Tensor, V: Tensor, causal: bool = False) -> Tensor:
    """Softmax attention; all arguments (..., head, token, width). The softmax runs over the keys."""
    batch = Q.shape[:-3]
    if len(batch) > 1:  # torch.compile recognizes attention, and then takes it for granted that there is one batch axis
        Q, K, V = (X.flatten(0, -4) for X in (Q, K, V))
    mixed = attention_weights(Q, K, causal) @ V
    return mixed.unflatten(0, batch) if len(batch) > 1 else mixed


def attention_weights(Q: Tensor, K: Tensor, causal: bool = False) -> Tensor:
    """The softmax over the keys, (..., head, query, key)."""
    # Over a last axis that is short, torch's softmax takes up to three times as long in float64 on a processor.
    across = Q.dtype == torch.float64 and Q.device.type == "cpu" and K.shape[-2] <= 128
    scores = (K @ Q.mT).mT if across else Q @ K.mT  # the transpose of the paper's P^T W_K^T W_Q P
    if causal:
        tokens = scores.shape[-1]
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return torch.softmax(scores.mT, dim=-2).mT if across else torch.softmax(scores, dim=-1)


def rms_norm(X: Tensor, gain: Tensor) -> Tensor:
    """X over the root mean square of its rows, times a learned gain (row,) or (E, row)."""
    return functional.rms_norm(X, X.shape[-1:]) * _per_model(gain, X)


class FFN(nn.Module):
    """W_2 ReLU(W_1 X + b_1) + b_2, added to X."""

    def __init__(self, W_1: Weight, b_1: Tensor, W_2: Weight, b_2: Tensor):
        super().__init__()
        self.W_1, self.W_2 = W_1, W_2
        trained = isinstance(W_1, Dense)  # compiled weights are trained where someone asks for it
        self.b_1, self.b_2 = (nn.Parameter(b, trained) for b in (b_1, b_2))  # (width,), (row,); a stack leads with E
        self.hidden, self.added = Point(), Point()

    @property
    def width(self) -> int:
        return self.W_1.shape[0]

    def added_to(self, U: Tensor, X: Tensor) -> Tensor:
        """U + FFN(X); X is U, or U normalized."""
        hidden = self.hidden(torch.relu_(self.W_1.added_to(_per_model(self.b_1, X), X)))
        b_2 = _per_model(self.b_2, X)
        result = self.W_2.added_to(U, hidden) + b_2
        return self.added.replaced(result, U, self.W_2(hidden) + b_2) if self.added.watched else result


class Heads(nn.Module):
    """The attention heads of a layer, side by side: W_Q, W_K (h*k, d), W_U (h*v, d), W_O (d, h*v)."""

    def __init__(self, W_Q: Weight, W_K: Weight, W_U: Weight, W_O: Weight, count: int):
        super().__init__()
        self.W_Q, self.W_K, self.W_U, self.W_O, self.count = W_Q, W_K, W_U, W_O, count
        self.weights, self.mixed, self.added = Point(), Point(), Point()

    def added_to(self, P: Tensor, X: Tensor, causal: bool) -> Tensor:
        """P + sum of the heads' outputs for X; X is P, or P normalized."""
        Q, K, V = (self._split(W(X)) for W in (self.W_Q, self.W_K, self.W_U))
        if self.weights.watched:
            mixed = self.weights(attention_weights(Q, K, causal)) @ V
        else:
            mixed = attention(Q, K, V, causal)  # (..., head, token, v)
        mixed = self.mixed(mixed).transpose(-2, -3).flatten(-2)
        result = self.W_O.added_to(P, mixed)
        return self.added.replaced(result, P, self.W_O(mixed)) if self.added.watched else result

    def _split(self, X: Tensor) -> Tensor:
        return X.unflatten(-1, (self.count, -1)).transpose(-2, -3)  # (..., head, token, width)

    def dense(self) -> list[dict[str, Tensor]]:
        """The paper's W_Q, W_K, W_V of every head."""
        W_Q, W_K, W_U = (W.dense().unflatten(-2, (self.count, -1)) for W in (self.W_Q, self.W_K, self.W_U))
        W_O = self.W_O.dense().unflatten(-1, (self.count, -1))
        return [
            {"W_Q": W_Q[..., i, :, :], "W_K": W_K[..., i, :, :], "W_V": W_O[..., i, :] @ W_U[..., i, :, :]}
            for i in range(self.count)
        ]


class Layer(nn.Module):
    """One transformer layer, eq. (1). Without heads or without FFN that part is the identity.

    ``norm`` gives the gains of an RMS normalization before each part (trained models; the paper has none). It covers
    all rows, or those from ``rows[0]`` to before ``rows[1]``: a layer that holds a trained part beside compiled ones
    normalizes the rows of the trained part, and the compiled ones read theirs as they are.
    """

    def __init__(
        self,
        heads: Heads | None = None,
        ffn: FFN | None = None,
        norm: tuple[Tensor, Tensor] | None = None,
        causal: bool = False,
        rows: tuple[int, int] | None = None,
    ):
        super().__init__()
        self.heads, self.ffn, self.causal, self.rows = heads, ffn, causal, rows
        self.gain_1 = None if norm is None else nn.Parameter(norm[0])
        self.gain_2 = None if norm is None else nn.Parameter(norm[1])
        self.before, self.middle, self.after = Point(), Point(), Point()

    def forward(self, P: Tensor) -> Tensor:
        U = P = self.before(P)  # (..., token, row)
        if self.heads is not None:
            X = P if self.gain_1 is None else self._normalized(P, self.gain_1)
            U = self.heads.added_to(P, X, self.causal)
        U = self.middle(U)
        if self.ffn is not None:
            X = U if self.gain_2 is None else self._normalized(U, self.gain_2)
            U = self.ffn.added_to(U, X)
        return self.after(U)

    @property
    def points(self) -> dict[str, Point]:
        """The places in this layer, in the order of the forward pass; a part that is not there has none."""
        heads, ffn = self.heads, self.ffn
        found = {"input": self.before}
        if heads is not None:
            found |= {"attention.weights": heads.weights, "attention.heads": heads.mixed, "attention": heads.added}
        found["middle"] = self.middle
        if isinstance(ffn, FFN):
            found |= {"ffn.hidden": ffn.hidden, "ffn": ffn.added}
        return found | {"output": self.after}

    def _normalized(self, X: Tensor, gain: Tensor) -> Tensor:
        if self.rows is None:
            return rms_norm(X, gain)
        first, end = self.rows
        return torch.cat([X[..., :first], rms_norm(X[..., first:end], gain), X[..., end:]], -1)

    def width(self, tokens: int) -> int:
        """Numbers that a token takes between input and output: Q, K, V, scores, attention weights, hidden units."""
        heads, ffn = self.heads, self.ffn
        projected = 0 if heads is None else heads.W_Q.shape[0] + heads.W_K.shape[0] + heads.W_U.shape[0]
        scores = 0 if heads is None else 2 * heads.count * tokens
        return projected + scores + (0 if ffn is None else 2 * ffn.width)

    def dense(self) -> dict[str, object]:
        """The layer as the paper writes it: ``heads``, a list of W_Q, W_K, W_V, and W_1, b_1, W_2, b_2."""
        weights: dict[str, object] = {"heads": [] if self.heads is None else self.heads.dense()}
        if self.ffn is not None:
            weights |= {"W_1": self.ffn.W_1.dense(), "b_1": self.ffn.b_1.data}
            weights |= {"W_2": self.ffn.W_2.dense(), "b_2": self.ffn.b_2.data}
        return weights


class State(NamedTuple):
    """P after one layer of a block; ``iteration`` counts the passes of the loop completed before that block."""

    block: Literal["input", "pre", "loop", "post"]
    iteration: int
    layer: int
    P: Tensor


class _Hooks(dict[str, Point]):
    """Points by name; a name that is not there is answered with those that are near."""

    def __missing__(self, name: str) -> Point:
        raise unknown_name("hook", name, self)


class NLAFormer(nn.Module):
    """A pre block, a looped block and a post block of layers.

    ``inject`` adds the prompt to the input of every block, the state starting at zero (Yang et al.: z <- f(z + P)).
    ``unshared`` is the number of passes whose layers ``loop`` holds one after another; no two passes then share
    weights, which makes the model an ordinary deep transformer. 0 means that all passes share one block.

    Examples
    --------
    An operation is a pre block alone; an iterative method loops:

    >>> import torch, nlaformer as nf
    >>> model = nf.operation("matmul", n=3).model
    >>> len(model.pre), len(model.loop), len(model.post)
    (1, 0, 0)
    """

    def __init__(
        self,
        pre: Sequence[Layer] = (),
        loop: Sequence[Layer] = (),
        post: Sequence[Layer] = (),
        inject: bool = False,
        unshared: int = 0,
    ):
        super().__init__()
        self.pre, self.loop, self.post = nn.ModuleList(pre), nn.ModuleList(loop), nn.ModuleList(post)
        self.inject, self.unshared = inject, unshared
        # Called with the block's name before each pass of it. While there are any, a batch runs in one piece.
        self.observers: list[Callable[[str], None]] = []

    if TYPE_CHECKING:  # torch gives every call the type Any

        def __call__(self, P: Tensor, loops: int = 0) -> Tensor: ...

    def forward(self, P: Tensor, loops: int = 0) -> Tensor:
        """NLAF(P) with ``loops`` passes of the loop block. P is (..., rows, tokens), as in the paper."""
        for state in self.states(P, loops):
            last = state.P
        return last

    def states(
        self, P: Tensor, loops: int = 0, gradient_from: int = 0, post_each_pass: bool = False
    ) -> Iterator[State]:
        """P after every layer, the input first.

        Parameters
        ----------
        P : (..., rows, tokens)
        loops : passes of the loop block
        gradient_from : blocks before this one, in the order of ``passes``, are not differentiated
        post_each_pass : apply the post block after the pre block and after every pass, not only after the last one;
            the loop continues from its own state
        """
        X0 = P.mT  # (..., token, row)
        X = torch.zeros_like(X0) if self.inject else X0
        yield State("input", 0, 0, X.mT)
        for number, (name, iteration, layers) in enumerate(self.passes(loops, post_each_pass)):
            differentiate = torch.is_grad_enabled() and number >= gradient_from
            Y = X
            for k, layer in enumerate(layers):
                with torch.set_grad_enabled(differentiate):
                    Y = layer(Y + X0 if self.inject and k == 0 else Y)
                yield State(name, iteration, k, Y.mT)
            if name != "post":
                X = Y

    def __repr__(self) -> str:  # torch would list every part of every layer
        return f"<NLAFormer: {len(self.pre)} pre, {len(self.loop)} loop, {len(self.post)} post layers>"

    def _repr_html_(self) -> str:
        from nlaformer.report.html import panel, table

        lines = []
        for block in ("pre", "loop", "post"):
            layers = list(cast(Sequence[Layer], getattr(self, block)))
            heads = sum(layer.heads.count for layer in layers if layer.heads is not None)
            hidden = sum(layer.ffn.width for layer in layers if layer.ffn is not None)
            lines.append((block, f"{len(layers):,}", f"{heads:,}", f"{hidden:,}"))
        return panel("NLAFormer", table(("block", "layers", "heads in all", "hidden units in all"), lines))

    def through(self, block: Literal["pre", "loop", "post"], X: Tensor) -> Tensor:
        """One pass of a block on tokens X (..., token, row), for a program that computes between the passes."""
        self._tell(block)
        for layer in getattr(self, block):
            X = layer(X)
        return X

    def passes(
        self, loops: int, post_each_pass: bool = False
    ) -> Iterator[tuple[Literal["pre", "loop", "post"], int, Sequence[Layer]]]:
        """The blocks in order, each with the number of passes of the loop completed before it, and its layers."""
        if self.unshared and loops > self.unshared:
            raise OptionError(f"this model has {self.unshared} unshared loop blocks; {loops} were requested")
        pre, loop, post = (cast(Sequence[Layer], block) for block in (self.pre, self.loop, self.post))
        height = len(loop) // self.unshared if self.unshared else 0
        self._tell("pre")
        yield "pre", 0, pre
        for i in range(loops):
            if post_each_pass:
                self._tell("post")
                yield "post", i, post
            self._tell("loop")
            yield "loop", i, loop[i * height : (i + 1) * height] if self.unshared else loop
        self._tell("post")
        yield "post", loops, post

    def _tell(self, block: str) -> None:
        for observer in self.observers:
            observer(block)

    @property
    def hooks(self) -> dict[str, Point]:
        """Every place of the forward pass by name; torch's hooks on it see (..., token, row) in every pass.

        ``attention`` and ``ffn`` are what the two parts add to P; ``input``, ``middle`` and ``output`` are P before,
        between and after them.

        >>> import torch, nlaformer as nf
        >>> model = nf.operation("matmul", n=2).model
        >>> list(model.hooks)[:2]
        ['pre.layer[0].input', 'pre.layer[0].attention.weights']
        >>> point = model.hooks["pre.layer[0].attention.weights"]
        >>> handle = point.register_forward_hook(lambda point, given, value: print(tuple(value.shape)))
        >>> P = model(nf.operation("matmul", n=2).prompt(torch.eye(2).double(), torch.eye(2).double()))
        (2, 3, 3)
        >>> handle.remove()
        """
        found = _Hooks()
        for block in ("pre", "loop", "post"):
            layers = list(cast(Sequence[Layer], getattr(self, block)))
            height = len(layers) // self.unshared if block == "loop" and self.unshared else 0
            for k, layer in enumerate(layers):
                where = f"{block}[{k // height}].layer[{k % height}]" if height else f"{block}.layer[{k}]"
                found |= {f"{where}.{name}": point for name, point in layer.points.items()}
        return found

    def pieces(self, rows: int, tokens: int, *batch: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Split tensors along their first axis, the batch, into pieces of as many systems as should run at once.

        ``rows`` and ``tokens`` are the sizes of a prompt. This is the one rule for all models. The widest layer
        decides; not on a processor where it is one among many narrow ones, as in a program with an unrolled loop.
        """
        blocks = (self.pre, self.loop, self.post)
        pre, loop, post = ([2 * rows + cast(Layer, layer).width(tokens) for layer in block] for block in blocks)
        kind = batch[0].device.type
        widest = max((*pre, *loop, *post), default=rows)
        entries = tokens * (min(widest, 4 * sum(loop) // len(loop)) if loop and kind == "cpu" else widest)
        threads = torch.get_num_threads() if kind == "cpu" else 1
        size = max(1, threads * _ENTRIES_AT_ONCE.get(kind, 2**28) // entries)
        if self.observers:
            size = max(1, len(batch[0]))
        return zip(*(tensor.split(size) for tensor in batch), strict=True)


def _per_model(vector: Tensor, X: Tensor) -> Tensor:
    """A bias or gain (row,) as it is; a stack's (E, row) with axes of length one for batch and token."""
    return vector if vector.dim() == 1 else vector.reshape(vector.shape[0], *[1] * (X.dim() - 2), -1)
