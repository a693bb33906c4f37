"""The trained model: the prompt [0 | a_i ; b_i] read in, an NLAFormer, and two linear probes at every iterate.

The paper's token matrix has n + 1 columns, the sink and one column [a_i ; b_i] per equation. A read-in maps its
n + 1 rows to d and adds learned positions; the blocks follow, and at every iterate t the last column is read by
two probes: NLAF_x^t, the iterate x_t, and NLAF_in^t, the pair (r_t, d_t). Iterate 0 is read after the pre block,
iterate t after t loops, iterate T after the post block.

A ``Solver`` is one model, or a stack of E models of one shape: every weight then leads with an axis E, and so do
the systems it is given. Configurations of this class: the paper's (pre, loop, post), a looped transformer after
Yang et al. (``inject``, no pre, no post) and an ordinary deep transformer (``shared=False``).
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nlaformer import io
from nlaformer.arrays import (
    ArrayT,
    all_finite,
    check_memory,
    full_precision,
    give,
    kind_of,
    threads_for,
    to_tensor,
    whole,
)
from nlaformer.errors import DomainError, DTypeError, FileError, OptionError, ShapeError
from nlaformer.learn.config import Config
from nlaformer.learn.panels import Shown, facts
from nlaformer.learn.scale import familiar, times_power, warn_if_unfamiliar
from nlaformer.prompt import Layout
from nlaformer.transformer import FFN, Heads, Layer, NLAFormer, Point
from nlaformer.weights import Dense

_Model = TypeVar("_Model", bound=nn.Module)


class Solver(Shown, nn.Module):
    """A learned iterative solver, or a stack of them.

    ``iterates`` is the way to solve systems, in any precision; calling the model gives tensors with gradients, for
    training.

    Examples
    --------
    >>> import nlaformer as nf
    >>> from nlaformer import problems
    >>> model = initial(nf.recipe("quickstart"))  # untrained; nf.load("runs/quickstart") gives a trained one
    >>> A, b, x = problems.SPD(n=8).sample(5, seed=1)
    >>> model.iterates(A, b).shape, model.iterates(A, b).dtype  # x_0, ..., x_8 of five systems
    (torch.Size([5, 9, 8]), torch.float64)
    >>> x_t, rd_t = model(A.float(), b.float())
    >>> x_t.shape, rd_t.shape
    (torch.Size([5, 9, 8]), torch.Size([5, 9, 16]))
    """

    def __init__(
        self, config: Config, blocks: NLAFormer, read_in: Tensor, positions: Tensor, probe_x: Tensor, probe_rd: Tensor
    ):
        super().__init__()
        self.config, self.blocks = config, blocks
        self.read_in = Dense(read_in)  # (d, n+1); a stack leads with E, here and below
        self.positions = nn.Parameter(positions)  # (n+1, d)
        self.probe_x, self.probe_rd = Dense(probe_x), Dense(probe_rd)  # (n, d), (2n, d)
        self.layout = Layout((("a", config.n), ("b", 1)), tokens=config.n + 1)

    @property
    def stacked(self) -> int:
        """E, or 0 for one model without the leading axis."""
        return self.positions.shape[0] if self.positions.dim() == 3 else 0

    @property
    def hooks(self) -> dict[str, Point]:
        """Every place of the forward pass by name, as in ``NLAFormer.hooks``."""
        return self.blocks.hooks

    @property
    def _shown(self) -> tuple[str, dict[str, str]]:
        title = f"Stack of {self.stacked} solvers" if self.stacked else "Solver"
        return title, facts(self.config, sum(parameter.numel() for parameter in self.parameters()))

    def entries(self, systems: int) -> int:
        """Entries of the token matrices of so many systems."""
        return systems * (self.config.n + 1) * self.config.d

    def tokens(self, A: Tensor, b: Tensor) -> Tensor:
        """The prompt [0 | a_i ; b_i] read in: (..., token, d)."""
        own = self.positions.dtype
        if given := [_kind(value) for value in (A, b) if not isinstance(value, Tensor) or value.dtype != own]:
            raise DTypeError(
                f"this model takes tensors of {own}, given {' and '.join(given)}; convert them, or use "
                "model.iterates(A, b), which takes any kind and precision"
            )
        n = self.config.n
        if A.shape[-2:] != (n, n) or b.shape != A.shape[:-1]:
            raise ShapeError(
                f"this model takes A (..., {n}, {n}) and b (..., {n}) of one batch shape; "
                f"given A {tuple(A.shape)} and b {tuple(b.shape)}"
            )
        P = self.layout.empty(A.shape[:-2], A.dtype, A.device)
        self.layout.write(P, "a", A.mT)  # column i is the i-th row of A
        self.layout.write(P, "b", b.unsqueeze(-2))
        positions = self.positions.unsqueeze(1) if self.stacked else self.positions
        return self.read_in(P.mT) + positions

    def states(
        self, A: Tensor, b: Tensor, iterations: int | None = None, gradient_from: int = 0
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield every token matrix (..., d, token) with its t; the last one of each t is iterate t.

        One at a time: together they take many times the memory of a batch of systems.
        """
        iterations = self.config.T if iterations is None else whole("iterations", iterations, 0)
        loops = max(iterations - (len(self.blocks.post) > 0), 0)
        for state in self.blocks.states(self.tokens(A, b).mT, loops, gradient_from):
            t = state.iteration + (state.block in ("loop", "post"))
            if t <= iterations:  # x_0 is read before the post block
                yield t, state.P

    def features(self, A: Tensor, b: Tensor, iterations: int | None = None, gradient_from: int = 0) -> Tensor:
        """The last token at every iterate: (..., iterations+1, d)."""
        last = {t: P[..., -1] for t, P in self.states(A, b, iterations, gradient_from)}
        return torch.stack(list(last.values()), -2)

    def forward(
        self, A: Tensor, b: Tensor, attached: Tensor | bool = True, gradient_from: int = 0
    ) -> tuple[Tensor, Tensor]:
        """x_t (..., T+1, n) and (r_t, d_t) (..., T+1, 2n) for systems A (..., n, n), b (..., n).

        Where ``attached`` (a flag, or flags that broadcast against the features) is false, the (r, d) probe reads
        detached features: it learns from the model and does not change it.
        """
        X = self.features(A, b, gradient_from=gradient_from)  # (..., T+1, d)
        seen = torch.where(torch.as_tensor(attached, device=X.device), X, X.detach())
        return self.probe_x(X), self.probe_rd(seen)

    @torch.no_grad()
    @full_precision()
    def iterates(self, A: object, b: ArrayT, iterations: int | None = None, *, normalize: bool = True) -> ArrayT:
        """The iterates x_0, ..., x_T for systems with any leading batch dimensions.

        A system whose size, or the length of whose solution, lies outside the range of the training is scaled into it,
        and its iterates back. One unlike those of the training at any scale gets an UnfamiliarWarning.

        Parameters
        ----------
        A, b : arrays (..., n, n) and (..., n): NumPy, torch or lists
        iterations : int, optional
            More or fewer loops than in training. The last iterate is read after the post block.
        normalize : bool
            False gives the model A and b as they are, and does not warn.

        Returns
        -------
        array (..., iterations+1, n) of the kind and precision of b

        Examples
        --------
        >>> import numpy as np, nlaformer as nf
        >>> from nlaformer import problems
        >>> model = initial(nf.recipe("quickstart", n=3, d=8, heads=2))
        >>> A, b, _ = problems.SPD(n=3).sample(1, seed=0)
        >>> x = model.iterates(A[0].numpy(), b[0].numpy())
        >>> x.shape, bool(np.all(model.iterates(A[0].numpy() * 2**30, b[0].numpy()) == x / 2**30))
        ((9, 3), True)
        """
        iterations = self.config.T if iterations is None else whole("iterations", iterations, 0)
        given, n = to_tensor("b", b), self.config.n
        matrices, right = self._finite("A", to_tensor("A", A)), self._finite("b", given)
        if matrices.shape[-2:] != (n, n) or right.shape[-1:] != (n,):
            raise ShapeError(
                f"this model solves systems of {n} unknowns: A (..., {n}, {n}) and b (..., {n}); "
                f"given A {tuple(matrices.shape)} and b {tuple(right.shape)}"
            )
        if self.stacked:
            raise OptionError("a stack has no iterates of its own; take one of its models with member(solver, k)")
        try:
            batch = torch.broadcast_shapes(matrices.shape[:-2], right.shape[:-1])
        except RuntimeError:
            shapes = f"{tuple(matrices.shape)} and {tuple(right.shape)}"
            raise ShapeError(f"the batch dimensions of A and b, {shapes}, do not broadcast") from None
        kept = (iterations + 1) * (8 * batch.numel() * n + 4 * (n + 1) * self.config.d)
        check_memory(f"iterations is {iterations:,}: keeping every iterate", kept, right.device, ". Ask for fewer")
        if normalize and batch.numel() and (known := familiar(self.config)) is not None:
            warn_if_unfamiliar(known.unlike(matrices), stacklevel=4)  # the user's line, above two decorators
        x, _ = self.readings(matrices, right, iterations, normalize=normalize)
        x = x.to(given.device, given.dtype if given.is_floating_point() else torch.get_default_dtype())
        return give(x, kind_of(b))

    @torch.no_grad()
    def readings(
        self, A: Tensor, b: Tensor, iterations: int | None = None, *, normalize: bool = True
    ) -> tuple[Tensor, Tensor]:
        """What both probes read, x_t and (r_t, d_t), for systems in float64 on the model's device, scaled and back."""
        n, batch = self.config.n, torch.broadcast_shapes(A.shape[:-2], b.shape[:-1])
        e = f = torch.zeros((), dtype=torch.float64, device=b.device)
        if normalize and batch.numel() and (known := familiar(self.config)) is not None:
            e, f = known.scaling(A, b)
        matrices = self._own("A", times_power(A, -e[..., None, None])).expand(*batch, n, n).reshape(-1, n, n)
        right = self._own("b", times_power(b, -(e + f)[..., None])).expand(*batch, n).reshape(-1, n)
        with threads_for(self.entries(batch.numel())):
            pieces = self.blocks.pieces(self.config.d, n + 1, matrices, right)
            features = (self.features(A_k, b_k, iterations) for A_k, b_k in pieces)
            read = [(self.probe_x(X), self.probe_rd(X)) for X in features]
        x, rd = (torch.cat(found).double() for found in zip(*read, strict=True))
        x, rd = (found.reshape(*batch, *found.shape[-2:]) for found in (x, rd))
        return times_power(x, f[..., None, None]), times_power(rd, (e + f)[..., None, None])

    def _finite(self, name: str, value: Tensor) -> Tensor:
        """An input in float64 on the model's device; refused unless real and finite."""
        if value.is_complex():
            raise DTypeError(f"{name} is complex; the model solves real systems")
        if not all_finite(value):
            raise DomainError(f"{name} holds NaN or infinity; every entry must be finite")
        return value.to(self.positions.device, torch.float64)

    def _own(self, name: str, value: Tensor) -> Tensor:
        """An input in the model's precision, if that holds it."""
        own = value.to(self.positions)
        if not all_finite(own):
            raise DomainError(f"{name} has entries beyond the range of {own.dtype}; scale the system first")
        return own

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``config.json`` and ``model.safetensors`` into a folder; ``nf.load`` reads them."""
        if self.stacked:
            raise OptionError("a stack is saved model by model; take one with member(solver, k)")
        extra = {"read_in": self.read_in.weight, "positions": self.positions}
        extra |= {"probe_x": self.probe_x.weight, "probe_rd": self.probe_rd.weight}
        return io.save(path, "solver", self.blocks, self.config.to_json(), extra)


def from_config(config: dict[str, Any], model: NLAFormer, **weights: Tensor) -> Solver:
    """A solver from what ``Solver.save`` wrote; weights of other shapes than the config gives are refused."""
    # Neither the family nor the teacher is looked for: a model loads without them.
    solver = Solver(Config.from_json(config).validate(sources=False), model, **weights)
    with torch.device("meta"):  # shapes alone
        expected = initial(solver.config, probed=solver.probe_rd.weight.shape[-2])
    if found := differing(solver, expected):
        raise FileError(f"the saved weights are not those of the config: {', '.join(found[:3])}")
    return solver


def differing(one: nn.Module, other: nn.Module) -> list[str]:
    """What differs between two models: weights that one lacks or has in another shape, else the layers around them."""
    found, wanted = ({name: value.shape for name, value in model.state_dict().items()} for model in (one, other))
    names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    layers = [[io.structure(m) for m in model.modules() if isinstance(m, NLAFormer)] for model in (one, other)]
    return names or ["other layers"] * (layers[0] != layers[1])


def initial(config: Config, probed: int | None = None) -> Solver:
    """The model before training; weights are drawn on the CPU, so that a seed gives the same ones everywhere.

    ``probed`` is the length of what the second probe reads; none: of the teacher's states that the config names.
    """
    generator = torch.Generator().manual_seed(config.seed)
    unshared = 0 if config.shared else config.loops

    def block(layers: int) -> list[Layer]:
        return [initial_layer(config, generator) for _ in range(layers)]

    blocks = NLAFormer(
        block(config.pre_layers),
        block(config.loop_layers * max(unshared, 1)),
        block(config.post_layers),
        inject=config.inject,
        unshared=unshared,
    )
    n, d = config.n, config.d
    positions = 0.5 * torch.randn(n + 1, d, generator=generator)
    read_in = normal(d, n + 1, generator)
    probed = config.make_teacher().entries(n) if probed is None else probed
    return Solver(config, blocks, read_in, positions, torch.zeros(n, d), torch.zeros(probed, d))


def initial_layer(config: Config, generator: torch.Generator) -> Layer:
    """A layer before training."""
    d, width = config.d, config.ffn_width
    W_Q, W_K, W_U, W_O = (normal(d, d, generator) for _ in range(4))
    W_1, W_2 = normal(width, d, generator), normal(d, width, generator)
    W_Q *= _query_scale(config)
    W_O *= config.output_scale
    W_2 *= config.output_scale
    return Layer(
        Heads(Dense(W_Q), Dense(W_K), Dense(W_U), Dense(W_O), config.heads),
        FFN(Dense(W_1), torch.zeros(width), Dense(W_2), torch.zeros(d)),
        (torch.ones(d), torch.ones(d)) if config.norm == "rms" else None,
        config.causal,
    )


def _query_scale(config: Config) -> float:
    """The 1/sqrt(head width) of common implementations, which is part of W_Q here."""
    return math.sqrt(config.heads / config.d)


def lr_scale(name: str, config: Config) -> float:
    """The factor on a parameter's learning rate.

    Adam's steps do not shrink with the parameter: W_Q, which carries ``_query_scale``, must take steps that much
    smaller to train as it would with the factor outside.
    """
    return _query_scale(config) if name.endswith("W_Q.weight") else 1.0


def stack(models: Sequence[_Model]) -> _Model:
    """Models of one shape as one model with a leading axis."""
    together = copy.deepcopy(models[0])
    sources = [dict(model.named_parameters()) for model in models]
    for name, parameter in together.named_parameters():
        parameter.data = torch.stack([source[name].data for source in sources])
    return together


def member(together: _Model, k: int, config: Config | None = None) -> _Model:
    """One model of a stack, without the leading axis."""
    alone: Any = copy.deepcopy(together)
    for parameter in alone.parameters():
        parameter.data = parameter.data[k].clone()
    alone.config = config or alone.config
    return alone  # type: ignore[no-any-return]


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def normal(out: int, into: int, generator: torch.Generator) -> Tensor:
    """A weight that keeps the size of what it is applied to."""
    return torch.randn(out, into, generator=generator) / math.sqrt(into)
