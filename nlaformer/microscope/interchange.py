"""Interchange: which part of a network's state carries the iteration, by exchanging it between two systems.

Two systems with one A and two right-hand sides b, b' run side by side. After t loops, P + Q Q^T (P' - P) takes the
place of P: the components in the span of Q, at every token, are those of the other system. If the span of Q carries the
state, the next iterates are those of the other system, as CG would go on if its (x, r, d) were exchanged. With the
patched iterates y and CG's own iterates x' for b',

    share(k) = 1 - sum |y_(t+k) - x'_(t+k)|^2 / sum |x_(t+k) - x'_(t+k)|^2

is 0 where nothing follows, and nearly 1 where all does; an exchange of the whole state gives its largest value. A share
near 0 does not say that the exchange has no effect: the iterates may move elsewhere. How far they move at all is

    moved(k) = sum |y_(t+k) - x_(t+k)|^2 / sum |x_(t+k)|^2.

The directions are the principal ones of P' - P over systems and tokens. The one that moves most alone is chosen on the
systems that the directions come from; all numbers are of fresh systems. Controls are a random direction, every
direction but the chosen one, what the probe of x reads from the last token, and CG itself with its x exchanged and its
r and d left as they are: a share that is no larger does not show that more than x is carried.

What the chosen component is like: its difference between the two systems, a number for each equation, is compared with
the differences of b and of CG's x, r and d by the absolute cosine, averaged over the systems. These differences are
alike themselves, so the cosine of each with the difference of b stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nlaformer.arrays import whole
from nlaformer.compiler import library
from nlaformer.errors import OptionError
from nlaformer.learn.model import Solver
from nlaformer.microscope.measures import numbers
from nlaformer.microscope.patching import patch
from nlaformer.microscope.recording import trace
from nlaformer.problems import Family, Systems

SEED = 18_200_000
_LOOPS = (2, 4)  # where the state is exchanged
_AFTER = 3  # iterates that are looked at
_PRINCIPAL = 4  # directions that are tried alone


class Effect(NamedTuple):
    """What an exchange does to x_(t+1), x_(t+2), x_(t+3)."""

    share: tuple[float, ...]
    moved: tuple[float, ...]

    @classmethod
    def of(cls, x: Tensor, y: Tensor, target: Tensor) -> Effect:
        """Of iterates x that became y, on the way to the target; (count, iterates, n) each."""
        far, near, moved, size = (each.square().sum((0, 2)) for each in (x - target, y - target, y - x, x))
        return cls(numbers(1 - near / far), numbers(moved / size))


@dataclass(frozen=True)
class Exchange:
    """The exchanges after t loops; shares and what they moved by what was exchanged."""

    loop: int
    variance: tuple[float, ...]
    """Share of the variance of P' - P in each of the principal directions."""
    chosen: int
    """Index of the chosen direction among them, from 1 on."""
    shares: dict[str, tuple[float, ...]]
    moved: dict[str, tuple[float, ...]]
    cosine: dict[str, float]
    """Of the chosen component with CG's x, r, d and with b; of their differences, absolute, mean over the systems."""
    cosine_of_b: dict[str, float]
    """The same with b in place of the component: what any number that follows b would have."""


@dataclass(frozen=True)
class Interchange:
    """The exchanges of a model."""

    model: str
    n: int
    family: str
    seed: int
    count: int
    exchanges: tuple[Exchange, ...]

    def to_json(self) -> dict[str, object]:
        """Everything as plain data."""
        return asdict(self)


def interchange(
    model: Solver,
    family: Family | None = None,
    *,
    count: int = 96,
    seed: int = SEED,
    say: Callable[[str], None] = lambda name: None,
) -> Interchange:
    """Exchange parts of a trained solver's state between two right-hand sides, and see which iterates follow.

    Parameters
    ----------
    model : a trained solver
    family : the systems; by default those of its training
    count : systems that the directions come from, and as many that the shares are measured on
    seed : of the systems
    say : called with the name of each step

    Examples
    --------
    >>> import nlaformer as nf
    >>> from nlaformer.learn.model import initial
    >>> untrained = initial(nf.recipe("quickstart", n=4, d=16, heads=2))
    >>> [each.loop for each in interchange(untrained, count=8).exchanges]
    [2, 4]
    """
    if not isinstance(model, Solver):
        raise OptionError("states are exchanged in a trained solver; those of a program have names, see nf.patch")
    count = whole("count", count, 2)
    own = family or model.config.make_family()
    fitting, fresh = (_Pair.of(own.sample(count, seed + k)) for k in range(2))
    found = []
    for t in _LOOPS:
        say(f"exchanging after {t} loops")
        found.append(_exchange(model, t, fitting, fresh, seed))
    return Interchange(model.config.recipe, own.n, repr(own), seed, count, tuple(found))


@dataclass(frozen=True)
class _Pair:
    """Matrices with two right-hand sides each."""

    A: Tensor
    b: Tensor
    other: Tensor

    @classmethod
    def of(cls, systems: Systems) -> _Pair:
        A, b, x = systems
        return cls(A, b, (A @ x.roll(1, 0)[..., None])[..., 0])


@dataclass(frozen=True)
class _Run:
    """A pair of runs up to x_(t+3): their states after t loops, (count, row, token), and the first one's iterates."""

    model: Solver
    t: int
    pair: _Pair
    P: Tensor
    difference: Tensor
    x: Tensor
    target: Tensor  # CG's iterates for the other right-hand side

    @classmethod
    def of(cls, model: Solver, t: int, pair: _Pair) -> _Run:
        # One loop more than is looked at: the last iterate is read after the post block.
        first, second = (
            trace(model, pair.A, b, keep=_place(t), iterations=t + _AFTER + 1, normalize=False)
            for b in (pair.b, pair.other)
        )
        P, P_other = first[_place(t)].double(), second[_place(t)].double()
        target = library.program("cg").run(pair.A, pair.other, iterations=t + _AFTER).x
        assert first.iterates is not None
        return cls(model, t, pair, P, P_other - P, first.iterates, target)

    def effect(self, P: Tensor) -> Effect:
        """What the next iterates do if P is the state after t loops."""
        with patch(self.model, {_place(self.t): P.to(self.model.positions)}):
            y = self.model.iterates(self.pair.A, self.pair.b, self.t + _AFTER + 1, normalize=False)
        after = slice(self.t + 1, self.t + _AFTER + 1)
        return Effect.of(self.x[:, after], y[:, after], self.target[:, after])

    def within(self, Q: Tensor) -> Effect:
        """The effect where the components in the span of Q, (row, k), are exchanged at every token."""
        return self.effect(self.P + Q @ (Q.mT @ self.difference))


def _place(t: int) -> str:
    return f"loop[{t}].layer[0].input"


def _exchange(model: Solver, t: int, fitting: _Pair, fresh: _Pair, seed: int) -> Exchange:
    fitted, run = _Run.of(model, t, fitting), _Run.of(model, t, fresh)
    rows = fitted.difference[:, :, 1:].movedim(1, -1).flatten(0, 1)  # the tokens of the equations
    _, sizes, principal = torch.linalg.svd(rows, full_matrices=False)
    directions = [direction[:, None] for direction in principal[:_PRINCIPAL]]
    alone = [sum(fitted.within(direction).share) for direction in directions]
    k = max(range(len(alone)), key=alone.__getitem__)
    Q = directions[k]
    generator = torch.Generator().manual_seed(seed)
    random = torch.linalg.qr(torch.randn(len(Q), 1, generator=generator, dtype=Q.dtype)).Q
    effects = {"the whole state": run.effect(run.P + run.difference)}
    effects |= {f"principal direction {j + 1}": run.within(each) for j, each in enumerate(directions)}
    effects["every direction but the chosen"] = run.effect(run.P + run.difference - Q @ (Q.mT @ run.difference))
    effects["a random direction"] = run.within(random)
    effects["what the probe of x reads"] = run.effect(_with_probed(run))
    effects["x alone, in CG itself"] = _x_alone(run)
    variance = sizes.square() / sizes.square().sum()
    vectors = _differences(run)
    component = (Q.mT @ run.difference)[:, 0, 1:]  # (count, n)
    return Exchange(
        t,
        numbers(variance[:_PRINCIPAL]),
        k + 1,
        shares={name: effect.share for name, effect in effects.items()},
        moved={name: effect.moved for name, effect in effects.items()},
        cosine=_cosines(component, vectors),
        cosine_of_b=_cosines(vectors["b"], vectors),
    )


def _x_alone(run: _Run) -> Effect:
    """The effect in CG itself of an exchange of x, with r and d as they are: all later iterates shift by x' - x."""
    x = library.program("cg").run(run.pair.A, run.pair.b, iterations=run.t + _AFTER).x
    shift, after = (run.target - x)[:, run.t, None], slice(run.t + 1, None)
    return Effect.of(x[:, after], x[:, after] + shift, run.target[:, after])


def _with_probed(run: _Run) -> Tensor:
    """The state with the last token's components in the rows of the probe of x exchanged."""
    rows = torch.linalg.qr(run.model.probe_x.weight.detach().double().mT).Q  # (row, n)
    P = run.P.clone()
    P[..., -1:] += rows @ (rows.mT @ run.difference[..., -1:])
    return P


def _differences(run: _Run) -> dict[str, Tensor]:
    """CG's vectors after t steps and b, those of the other system less those of the first, (count, n)."""
    one, other = (library.program("cg").run(run.pair.A, b, iterations=run.t) for b in (run.pair.b, run.pair.other))
    found = {name: (other.state[name] - one.state[name])[:, run.t] for name in ("x", "r", "d")}
    return found | {"b": run.pair.other - run.pair.b}


def _cosines(of: Tensor, vectors: dict[str, Tensor]) -> dict[str, float]:
    """The absolute cosine with each of the vectors, mean over the systems."""
    return {name: float(torch.cosine_similarity(of, vector, dim=-1).abs().mean()) for name, vector in vectors.items()}
