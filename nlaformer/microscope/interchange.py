"""Interchange: which part of a network's state carries the iteration, by exchanging it between two systems.

Two systems with one A and two right-hand sides b, b' run side by side. After t loops, a part of the first one's state P
is replaced by the other's P', at every token; with all of it replaced, the next iterates are those of the other system,
as CG would go on if its (x, r, d) were exchanged. With the patched iterates y and CG's own iterates x' for b',

    share(k) = 1 - sum |y_(t+k) - x'_(t+k)|^2 / sum |x_(t+k) - x'_(t+k)|^2

is 0 where nothing follows, and nearly 1 where all does. A share near 0 does not say that the exchange has no effect:
the iterates may move elsewhere. How far they move at all is moved(k) = sum |y_(t+k) - x_(t+k)|^2 / sum |x_(t+k)|^2.

Two kinds of parts are exchanged, both found on one set of systems and measured on another.

- Directions: P + Q Q^T (P' - P), for the principal directions Q of P' - P over systems and tokens. The one that moves
  most alone is chosen. Controls are a random direction and every direction but the chosen one. What the chosen
  component is like is told by the absolute cosine of its difference between the systems, a number for each equation,
  with the differences of b and of CG's x, r and d; that of b with each of these stands beside it, since they are alike.
- What probes read: at the token of each equation i a ridge regression reads x_i, r_i, d_i and b_i of CG after t steps,
  and least squares tell how P' - P depends on these four, P' - P = sum over v of a_v (v' - v)_i + rest. With the
  probe w_v, P + a_v w_v^T (P' - P) has v exchanged and the others left. (P moved along w_v itself would hardly change:
  a probe reads where noise is small, not where v is large.) CG can do the same, so ``as_cg`` is the share with CG's
  iterates after an exchange of that vector alone in place of x'; rho = r . r goes with r. The control reads the
  difference from another pair of systems. The probe of x that the training fitted reads the last token only, and is
  exchanged there.

The last line is CG itself with its x exchanged and its r and d left: a share that is no larger does not show that more
than x is carried.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

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
from nlaformer.report.findings import interchange_finding
from nlaformer.report.html import panel, table, tag
from nlaformer.report.microscope import interchange_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 18_200_000
_LOOPS = (2, 4)  # where the state is exchanged
_AFTER = 3  # iterates that are looked at
_PRINCIPAL = 4  # directions that are tried alone
_VECTORS = ("x", "r", "d", "b")  # what probes read; b is left where it is
_PENALTY = 1e-3  # of the probes, as a share of the sum of squares of what they read


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
    read: dict[str, float]
    """R^2 of the probes of CG's x, r, d and of b at the token of each equation."""
    held: float
    """Share of the variance of P' - P that the four explain together."""
    as_cg: dict[str, tuple[float, ...]]
    """Shares with what CG does after the same exchange, of what the probes read."""


@dataclass(frozen=True)
class Interchange:
    """The exchanges of a model."""

    model: str
    n: int
    family: str
    seed: int
    count: int
    exchanges: tuple[Exchange, ...]

    @property
    def finding(self) -> str:
        """What the exchange of x, r and d does, and its control."""
        return interchange_finding(self.to_json())

    def __str__(self) -> str:
        return f"{self.model}: {self.finding}"

    def to_json(self) -> dict[str, object]:
        """Everything as plain data."""
        return asdict(self)

    def plot(self) -> Figure:
        """Draw how far the next iterates follow the other system's, by what was exchanged; a panel for each loop.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return interchange_figure(self.to_json())

    def _repr_html_(self) -> str:
        parts = []
        for each in self.exchanges:
            headings = (f"after {each.loop} loops", *(f"t = {each.loop + k}" for k in range(1, _AFTER + 1)))
            parts.append(table(headings, [(k, *(f"{v:.2f}" for v in row)) for k, row in each.shares.items()]))
        title = f"Exchanges in {self.model}: how far the next iterates follow CG's for the other b"
        return panel(title, *parts, tag("div", self.finding))


def interchange(model: Solver, family: Family | None = None, *, count: int = 96, seed: int = SEED) -> Interchange:
    """Exchange parts of a trained solver's state between two right-hand sides, and see which iterates follow.

    Parameters
    ----------
    model : a trained solver
    family : the systems; by default those of its training
    count : systems that the directions come from, and as many that the shares are measured on
    seed : of the systems

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
    found = tuple(_exchange(model, t, fitting, fresh, seed) for t in loops(model))
    if not found:
        raise OptionError(f"this model has {model.config.T} iterations, too few for an exchange; at least 6 are needed")
    return Interchange(model.config.recipe, own.n, repr(own), seed, count, found)


def loops(model: Solver) -> list[int]:
    """The loops after which states are exchanged: a model whose loops share no layers has no more than it has."""
    return [t for t in _LOOPS if model.config.shared or t + _AFTER + 1 <= model.config.T]


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

    @property
    def rows(self) -> Tensor:
        """P' - P at the tokens of the equations, (count n, row)."""
        return self.difference[:, :, 1:].movedim(1, -1).flatten(0, 1)

    @property
    def vectors(self) -> Tensor:
        """CG's x, r, d after t steps, and b: those of the other system less those of the first, (count, n, 4)."""
        one, other = (
            library.program("cg").run(self.pair.A, b, iterations=self.t) for b in (self.pair.b, self.pair.other)
        )
        found = [(other.state[name] - one.state[name])[:, self.t] for name in _VECTORS[:-1]]
        return torch.stack([*found, self.pair.other - self.pair.b], -1)

    @property
    def after(self) -> slice:
        return slice(self.t + 1, self.t + _AFTER + 1)

    def patched(self, P: Tensor) -> Tensor:
        """The next iterates, (count, 3, n), if P is the state after t loops."""
        with patch(self.model, {_place(self.t): P.to(self.model.positions)}):
            y = self.model.iterates(self.pair.A, self.pair.b, self.t + _AFTER + 1, normalize=False)
        return y[:, self.after]

    def effect(self, P: Tensor) -> Effect:
        """What such a state does to the next iterates."""
        return Effect.of(self.x[:, self.after], self.patched(P), self.target[:, self.after])

    def within(self, Q: Tensor) -> Effect:
        """The effect where the components in the span of Q, (row, k), are exchanged at every token."""
        return self.effect(self.P + Q @ (Q.mT @ self.difference))

    def cg(self, *exchanged: str) -> Tensor:
        """CG's next iterates for b, (count, 3, n), if these states were the other system's after t steps."""
        A = self.pair.A
        program = library.program("cg").graph(A.shape[-1])
        one, other = ({"A": A, "b": b, "x0": torch.zeros_like(b)} for b in (self.pair.b, self.pair.other))
        *_, states = program.iterate(one, self.t)
        *_, theirs = program.iterate(other, self.t)
        states |= {name: theirs[name] for name in (*exchanged, *(["rho"] if "r" in exchanged else []))}
        found = []
        for _ in range(_AFTER):
            states = program.next(one, program.carried(states))
            found.append(states["x"])
        return torch.stack(found, 1)


def _place(t: int) -> str:
    return f"loop[{t}].layer[0].input"


def _exchange(model: Solver, t: int, fitting: _Pair, fresh: _Pair, seed: int) -> Exchange:
    fitted, run = _Run.of(model, t, fitting), _Run.of(model, t, fresh)
    _, sizes, principal = torch.linalg.svd(fitted.rows, full_matrices=False)
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
    code = _Code.of(fitted)
    read, as_cg = _probed(run, code)
    cg = library.program("cg").run(run.pair.A, run.pair.b, iterations=t + _AFTER).x[:, run.after]
    effects |= read | {"x alone, in CG itself": Effect.of(cg, run.cg("x"), run.target[:, run.after])}
    variance = sizes.square() / sizes.square().sum()
    component = (Q.mT @ run.difference)[:, 0, 1:]  # (count, n)
    return Exchange(
        t,
        numbers(variance[:_PRINCIPAL]),
        k + 1,
        shares={name: effect.share for name, effect in effects.items()},
        moved={name: effect.moved for name, effect in effects.items()},
        cosine=_cosines(component, run.vectors),
        cosine_of_b=_cosines(run.vectors[..., -1], run.vectors),
        read=code.read(run),
        held=float(1 - (run.rows - run.vectors.flatten(0, 1) @ code.a).square().sum() / run.rows.square().sum()),
        as_cg=as_cg,
    )


@dataclass(frozen=True)
class _Code:
    """How the tokens of the equations hold x, r, d and b: a_v as the rows of ``a``, w_v as the columns of ``w``."""

    a: Tensor
    w: Tensor

    @classmethod
    def of(cls, run: _Run) -> _Code:
        rows, vectors = run.rows, run.vectors.flatten(0, 1)
        ridge = _PENALTY * rows.square().sum() * torch.eye(rows.shape[-1], dtype=rows.dtype)
        return cls(
            torch.linalg.lstsq(vectors, rows).solution, torch.linalg.solve(rows.mT @ rows + ridge, rows.mT @ vectors)
        )

    def read(self, run: _Run) -> dict[str, float]:
        """R^2 of the probes."""
        vectors = run.vectors.flatten(0, 1)
        r2 = 1 - (run.rows @ self.w - vectors).square().sum(0) / vectors.square().sum(0)
        return dict(zip(_VECTORS, numbers(r2), strict=True))

    def exchanged(self, run: _Run, names: tuple[str, ...], difference: Tensor) -> Tensor:
        """The state with what the probes of these vectors read from a difference exchanged."""
        chosen = [_VECTORS.index(name) for name in names]
        P = run.P.clone()
        P[:, :, 1:] += self.a[chosen].mT @ (self.w[:, chosen].mT @ difference[:, :, 1:])
        return P


def _probed(run: _Run, code: _Code) -> tuple[dict[str, Effect], dict[str, tuple[float, ...]]]:
    """The exchanges of what probes read: towards the other system, and as CG does the same."""
    effects, as_cg = {}, {}
    state = _VECTORS[:-1]
    for label, names, difference in (
        *((f"{name} as probes read it", (name,), run.difference) for name in state),
        ("x, r and d as probes read them", state, run.difference),
        ("x, r and d of a third system", state, run.difference.roll(1, 0)),
    ):
        y = run.patched(code.exchanged(run, names, difference))
        effects[label] = Effect.of(run.x[:, run.after], y, run.target[:, run.after])
        as_cg[label] = Effect.of(run.x[:, run.after], y, run.cg(*names)).share
    return effects, as_cg


def _with_probed(run: _Run) -> Tensor:
    """The state with the last token's components in the rows of the probe of x exchanged."""
    rows = torch.linalg.qr(run.model.probe_x.weight.detach().double().mT).Q  # (row, n)
    P = run.P.clone()
    P[..., -1:] += rows @ (rows.mT @ run.difference[..., -1:])
    return P


def _cosines(of: Tensor, vectors: Tensor) -> dict[str, float]:
    """The absolute cosine with each of the vectors, mean over the systems."""
    found = torch.cosine_similarity(of[..., None], vectors, dim=1).abs().mean(0)
    return dict(zip(_VECTORS, numbers(found), strict=True))
