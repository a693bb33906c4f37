"""The network that fills a learned part: the NLAFormer's own parts around the program's exact arithmetic.

Its tokens are [0 | a_i]: a sink, and column i of A at token i. A is divided by the power of two nearest to its
Frobenius norm, which is exact, so that a system may have any scale. A read-in maps the columns to d rows and adds
learned positions; the layers of the pre block follow, once for each system. A part in ``start`` is read here. The part
in ``step`` keeps the d rows over all n + 1 tokens as its hidden state h; in every loop it adds what it is given,

    h_i += sum_k v_k,i w_k   at token i,      h_sink += W [v_1; ...; v_m] + W_s [s_1; ...]    at the sink,

passes h through the layers of the loop block, and reads: a vector and a scalar from the sink, the diagonal and the
columns token by token. What is read is normalized first (``config.read_norm``): h grows in training, and what the
network says would grow with it, faster than its learning rate is made for.

What it says is finite: 0 stands for every number that is not. ``compiler/learned.py`` has what the program makes of it:
it bounds the numbers. Beyond a bound the program has no derivative, and a network that has left it would never come
back; so the numbers are bounded here as well, with a derivative of 1 wherever a step of descent leads back inside.

The network computes in its own precision, float32; its inputs are rounded to it, its outputs widened to float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from nlaformer.errors import ShapeError
from nlaformer.learn.config import Config
from nlaformer.learn.model import initial_layer, normal
from nlaformer.program.learned import PartSpec
from nlaformer.program.tensors import size
from nlaformer.prompt import exponent, scale
from nlaformer.transformer import NLAFormer, rms_norm
from nlaformer.weights import Dense

_START = 0.1  # of the usual size: how a preconditioner's output layer starts, so that M starts near the Jacobi one


class PartNetwork(nn.Module):
    """The network of one learned part, or a stack of E of them: every weight then leads with an axis E.

    ``part`` says what it is given and gives, ``n`` the size it was made for; smaller systems are padded.
    """

    def __init__(self, part: PartSpec, n: int, blocks: NLAFormer, weights: Mapping[str, Tensor]):
        super().__init__()
        self.part, self.n, self.blocks = part, n, blocks
        self.positions = nn.Parameter(weights["positions"])  # (n+1, d)
        self.read_in = Dense(weights["read_in"])  # (d, n)
        self.probe = Dense(weights["probe"])  # (numbers that are read from a token, d)
        self.gain = nn.Parameter(weights["gain"]) if "gain" in weights else None  # (d,): read_norm
        self.vectors, self.scalars = part.inputs.count("vector"), part.inputs.count("scalar")
        if self.vectors:
            self.each = Dense(weights["each"])  # (d, vectors): a vector's own entry at every token
            self.whole = Dense(weights["whole"])  # (d, vectors n): all of it at the sink
        if self.scalars:
            self.number = Dense(weights["number"])  # (d, scalars)

    @classmethod
    def initial(cls, part: PartSpec, config: Config, generator: torch.Generator) -> PartNetwork:
        """The network before training, in the sizes of a config."""
        n, d = config.n, config.d
        pre = [initial_layer(config, generator) for _ in range(config.pre_layers)]
        loop = [initial_layer(config, generator) for _ in range(config.loop_layers if part.method == "step" else 0)]
        m, numbers = part.inputs.count("vector"), part.inputs.count("scalar")
        weights = {
            "positions": 0.5 * torch.randn(n + 1, d, generator=generator),
            "read_in": normal(d, n, generator),
            "probe": normal(n if part.is_vector else 1 + part.rank, d, generator) * (_START if part.by_token else 1.0),
        }
        if config.norm == "rms" and config.read_norm:
            weights["gain"] = torch.ones(d)
        if m:
            weights |= {"each": normal(d, m, generator), "whole": normal(d, m * n, generator)}
        if m and part.is_vector:
            # What the sink holds of the first vector is read back: the part starts by proposing what it has been given.
            # In a method that is CG where r is proposed, training gains its first digits in half the steps.
            weights["probe"] = (m * n**1.5 / d) * weights["whole"][:, :n].mT.contiguous()
        if numbers:
            weights["number"] = normal(d, numbers, generator)
        return cls(part, n, NLAFormer(pre, loop), weights)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights beside those of the layers."""
        return {
            name.removesuffix(".weight"): value
            for name, value in self.named_parameters()
            if not name.startswith("blocks.")
        }

    def first(self, A: Tensor) -> dict[str, Tensor]:
        """The first ``memory`` of a part in ``step``."""
        return {"memory": self.begin(A)}

    def begin(self, A: Tensor) -> Tensor:
        """The hidden state before the first step, (..., n+1, d): A read, and the pre block."""
        return self.blocks.through("pre", self._tokens(A))

    def start(self, A: Tensor, *values: Tensor) -> dict[str, Tensor]:
        """What a part in ``start`` gives."""
        H = self.blocks.through("pre", self._tokens(A) + self._given(values, A.shape[:-2]))
        return self._read(H, A.shape[-1], A.dtype)

    def step(self, A: Tensor, *values: Tensor) -> dict[str, Tensor]:
        """What a part in ``step`` gives, and its next ``memory``; the last value is the memory."""
        *given, H = values
        H = self.blocks.through("loop", H + self._given(given, H.shape[:-2]))
        return self._read(H, A.shape[-1], A.dtype) | {"memory": H}

    def _tokens(self, A: Tensor) -> Tensor:
        """[0 | a_i] read in, with positions; A (..., size, size), size <= n."""
        if A.shape[-1] > self.n:
            raise ShapeError(f"this model reads systems of at most {self.n} unknowns; given {A.shape[-1]}")
        e = exponent(size(A, 2)).to(torch.int64)
        # Of Frobenius norm about n: columns of norm about sqrt(n), which the read-in takes to rows of size 1.
        normalized = (scale(A, -e[..., None, None]) * A.shape[-1]).to(self.positions.dtype)
        if missing := self.n - A.shape[-1]:  # further unknowns that nothing is connected with
            mean = normalized.diagonal(dim1=-2, dim2=-1).mean(-1)
            normalized = pad(normalized, (0, missing, 0, missing))
            further = torch.arange(self.n, device=A.device) >= A.shape[-1]
            normalized = normalized + mean[..., None, None] * torch.diag(further.to(normalized.dtype))
        columns = self.read_in(normalized.mT)  # (..., n, d)
        tokens = pad(columns, (0, 0, 1, 0))
        return tokens + (self.positions if self.positions.dim() == 2 else self.positions.unsqueeze(1))

    def _given(self, values: Sequence[Tensor], batch: Sequence[int]) -> Tensor | float:
        """What vectors and scalars of a batch shape add to the tokens, (..., n+1, d)."""
        pairs = [(value.to(self.positions.dtype), kind) for value, kind in zip(values, self.part.inputs, strict=True)]
        added: Tensor | float = 0.0
        if self.vectors:
            vectors = [v.expand(*batch, v.shape[-1]) for v, kind in pairs if kind == "vector"]
            # As they are: of norm 1, so of entries far below those of the columns of A. At sqrt(n) times this size
            # what A has to say is drowned, and training takes several times the steps.
            V = torch.stack(vectors, -1)  # (..., size, vectors)
            V = pad(V, (0, 0, 0, self.n - V.shape[-2]))
            added = pad(self.each(V), (0, 0, 1, 0)) + self._at_sink(self.whole(V.mT.flatten(-2)))
        if self.scalars:
            numbers = torch.stack([s.expand(*batch) for s, kind in pairs if kind == "scalar"], -1)
            added = added + self._at_sink(self.number(numbers))
        return added

    def _at_sink(self, h: Tensor) -> Tensor:
        """Rows (..., d) at the sink and zeros at the other tokens."""
        return pad(h.unsqueeze(-2), (0, 0, 0, self.n))

    def _read(self, H: Tensor, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """What the part says, from the hidden state, in the program's precision."""
        H = H if self.gain is None else rms_norm(H, self.gain)
        if self.part.by_token:
            z = _finite(self.probe(H[..., 1 : size + 1, :])).to(dtype)  # (..., size, 1 + rank)
            said = dict(zip(self.part.outputs, z.unbind(-1), strict=True))
        else:
            z = _finite(self.probe(H[..., :1, :]).squeeze(-2)).to(dtype)  # (..., numbers)
            said = {"value": z[..., :size] if self.part.is_vector else z[..., 0]}
        return {name: _led_back(value, self.part.bound(name)) for name, value in said.items()}


def _finite(z: Tensor) -> Tensor:
    return torch.where(z.isfinite(), z, 0.0)


def _led_back(z: Tensor, bound: float) -> Tensor:
    return z if math.isinf(bound) else _LedBack.apply(z, bound)  # type: ignore[no-any-return, no-untyped-call]


class _LedBack(torch.autograd.Function):
    """Numbers between -bound and bound; the derivative is 1, but 0 where descent would lead further out."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.bound = bound
        return z.clamp(-bound, bound)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (z,) = ctx.saved_tensors
        outward = (z.abs() > ctx.bound) & (z * gradient < 0)
        return torch.where(outward, 0.0, gradient), None
