"""nf.microscope: one model under every test, each beside the candidates of ``candidates`` and an untrained network.

Errors, deviations and the name (``naming``); Krylov spaces and error operators (``measures``); and

- symmetries. The iterates of most methods scale, permute and rotate with the system; PCG with Jacobi's preconditioner
  knows the coordinates, so its iterates do not rotate.
- termination. A Krylov method is exact after as many iterations as A has distinct eigenvalues. The matrices are those
  of the family with their eigenvalues replaced: all but the largest by their geometric mean (two), and the lower half,
  the upper half and the largest (three).
- additivity in b, |x_t(b + b') - x_t(b) - x_t(b')|^2: zero for every method whose coefficients do not depend on b.
- other systems, scaled to the size of the family's own, since scale is a test of its own: means, medians, failures.
- more iterations than the model was trained for;
- exchanges of parts of a trained solver's state between two systems (``interchange``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nlaformer import problems
from nlaformer.arrays import flag
from nlaformer.compiler import library
from nlaformer.errors import OptionError, look_up, shown
from nlaformer.learn.evaluate import squared_deviations, squared_relative_errors
from nlaformer.learn.model import Solver
from nlaformer.microscope import naming
from nlaformer.microscope.candidates import candidates
from nlaformer.microscope.interchange import Interchange, interchange, loops
from nlaformer.microscope.measures import (
    ErrorOperator,
    Krylov,
    Spread,
    error_operator,
    iterations_of_same_error,
    krylov,
    krylov_basis,
)
from nlaformer.microscope.naming import Explanation
from nlaformer.microscope.subject import Subject, program_method, subject
from nlaformer.microscope.untrained import UNTRAINED, untrained
from nlaformer.problems import Family, Systems
from nlaformer.problems.vectors import product
from nlaformer.report import microscope as drawn
from nlaformer.report.findings import FINDINGS, about, drawable, finding
from nlaformer.report.html import panel, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 18_000_000
MODEL = "model"
SHOWN = (1, 2, 4, 6, 8)  # of the error operators, and what tables show
_SHORT = 8  # iterations of the tests that are over soon
_BEYOND = 4  # times T
_Everyone = tuple[Subject, ...]  # the model first
_Runs = dict[str, Tensor]  # iterates by subject


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    count: int  # systems of every test
    matrices: int  # of the error operators
    right_hand_sides: int  # of each of them
    fitting: int  # systems that the polynomial and the untrained read-out are fitted on
    pairs: int = 24  # of systems that exchange their states


FULL, QUICK = Effort(256, 12, 320, 512, 96), Effort(24, 2, 60, 64, 24)


@dataclass(frozen=True)
class Symmetry:
    """What a transformation of the systems does: the defect of every iterate, and the error of the last one."""

    defect: Spread
    error: Spread


@dataclass(frozen=True)
class Microscopy:
    """What the microscope saw. Every table by subject: "model", the candidates, "untrained".

    ``print`` shows a line for each test. Spreads are of squared relative quantities, by iterate from t = 0 on.
    ``explanations`` are sorted, the best first; ``named`` is what the rule of ``nlaformer.microscope.naming`` says,
    ``until`` up to which iterate.
    """

    model: str
    n: int
    T: int
    family: str
    seed: int
    effort: Effort
    named: str | None
    until: int
    explanations: tuple[Explanation, ...]
    errors: dict[str, Spread]
    cg_iterations: tuple[float | None, ...]
    """Iterations of CG with the same mean error as x_0, x_1, ..., x_T."""
    krylov: dict[str, Krylov]
    operators: dict[str, ErrorOperator]
    symmetries: dict[str, dict[str, Symmetry]]
    termination: dict[str, dict[str, Spread]]
    additivity: dict[str, Spread]
    elsewhere: dict[str, dict[str, Spread]]
    """Of the last iterate."""
    beyond: dict[str, Spread]
    """After T, 2 T, 3 T and 4 T iterations; empty where the model has T only."""
    interchange: Interchange | None
    """Of a trained solver."""

    def __str__(self) -> str:
        found = self.to_json()
        lines = [f"{name}: {finding(name, found)}" for name in FINDINGS if drawable(name, found)]
        return "\n".join([f"{self.model} under the microscope, {about(found)}", *lines])

    def to_json(self) -> dict[str, object]:
        """Everything as plain data, numbers to five digits."""
        return {name: _short(value) for name, value in asdict(self).items()}

    def plot(self, test: str = "explanations") -> Figure:
        """Draw one of the tests: "explanations", "errors", "krylov", "operators", "filters", "symmetries" and so on.

        Returns
        -------
        matplotlib.figure.Figure : its title states what was measured
        """
        draw, found = look_up("test", test, drawn.FIGURES), self.to_json()
        if not drawable(test, found):
            raise OptionError(f"{test} was not measured: this model runs no longer than T, or has no state to exchange")
        return draw(found)

    def to_html(self) -> str:
        """A page with every figure, complete in itself."""
        return drawn.page(self.to_json() | {"given": self.model})

    def _repr_html_(self) -> str:
        found = self.to_json()
        return panel(f"{self.model} under the microscope", tag("div", about(found)), drawn.table(found))


def microscope(
    model: object,
    family: Family | None = None,
    *,
    iterations: int | None = None,
    seed: int = SEED,
    quick: bool = False,
    effort: Effort | None = None,
    say: Callable[[str], None] = lambda test: None,
) -> Microscopy:
    """Which algorithm a model is like, by its iterates, and where it is not; what a trained solver's state carries.

    Parameters
    ----------
    model : a trained model, a compiled algorithm, an ``nf.Program``, or a function or torch module of A (count, n, n)
        and b (count, n) that returns iterates (count, T + 1, n); modules get tensors, functions NumPy arrays. If it
        has a parameter ``iterations``, it is run for longer too
    family : the systems it is meant for; by default those of its training, for algorithms the paper's
    iterations : T; by default that of the training, for algorithms n
    seed : of the systems
    quick : fewer systems, for a first look
    effort : how much is measured, an ``nlaformer.microscope.battery.Effort``, instead of ``quick``
    say : called with the name of each test when it begins

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> def gradient(A, b):  # the best step along the residual
    ...     x = [np.zeros_like(b)]
    ...     for _ in range(6):
    ...         r = b - (A @ x[-1][..., None])[..., 0]
    ...         alpha = (r * r).sum(-1) / np.einsum("ki,kij,kj->k", r, A, r)
    ...         x.append(x[-1] + alpha[:, None] * r)
    ...     return np.stack(x, 1)
    >>> seen = nf.microscope(gradient, family=nf.problems.SPD(n=6), quick=True)
    >>> seen.named, seen.until
    ('steepest_descent', 6)
    """
    of = subject(model, family, iterations)
    if not isinstance(effort, Effort | None):
        raise OptionError(f"effort is {shown(effort)}; expected an Effort, such as {QUICK}")
    size = effort or (QUICK if flag("quick", quick) else FULL)
    systems, fitting = of.family.sample(size.count, seed), of.family.sample(size.fitting, seed + 1)
    if not of.family.definite or not torch.allclose(systems.A, systems.A.mT):
        raise OptionError(f"the tests are for symmetric positive definite systems; {of.family!r} draws others")
    say("errors and explanations")
    everyone = (of.renamed(MODEL), *candidates(of, fitting), untrained(of, fitting))
    runs = {each.name: each.iterates(systems.A, systems.b) for each in everyone}
    known = {name: run for name, run in runs.items() if name not in (MODEL, UNTRAINED)}
    explanations = naming.explain(runs[MODEL], known, systems.x)
    accepted = naming.named(explanations)
    errors = {name: _errors(run, systems.x) for name, run in runs.items()}
    tests: dict[str, Any] = {}
    for field, label, measure in (
        ("krylov", "Krylov spaces", lambda: _krylov(systems, runs)),
        ("operators", "error operators", lambda: _operators(everyone, of.family, size, seed + 2)),
        ("symmetries", "symmetries", lambda: _symmetries(everyone, systems, runs, seed + 3)),
        ("termination", "few eigenvalues", lambda: _termination(everyone, systems)),
        ("additivity", "additivity", lambda: {each.name: _additivity(each, systems, runs) for each in everyone}),
        ("elsewhere", "other systems", lambda: _elsewhere(everyone, systems, seed)),
        ("beyond", "more iterations", lambda: _beyond(everyone, systems) if of.longer else {}),
        ("interchange", "exchanges", lambda: _interchange(of, size, seed + 200_000)),
    ):
        say(label)
        tests[field] = measure()
    return Microscopy(
        model=of.name,
        n=of.family.n,
        T=of.T,
        family=repr(of.family),
        seed=seed,
        effort=size,
        named=accepted.candidate if accepted else None,
        until=accepted.until if accepted else 0,
        explanations=explanations,
        errors=errors,
        cg_iterations=_iterations_of_cg(errors[MODEL], systems, of.T),
        **tests,
    )


def _krylov(systems: Systems, runs: _Runs) -> dict[str, Krylov]:
    basis = krylov_basis(systems.A, systems.b)
    return {name: krylov(basis, found, systems.x) for name, found in runs.items()}


def _iterations_of_cg(errors: Spread, systems: Systems, T: int) -> tuple[float | None, ...]:
    """CG runs for longer than the model: a better one may be ahead by more than T."""
    A, b, x = systems
    reference = _errors(program_method(library.program("cg"))(A, b, _BEYOND * T), x)
    return iterations_of_same_error(errors.mean, reference.mean)


def _termination(everyone: _Everyone, systems: Systems) -> dict[str, dict[str, Spread]]:
    return {
        label: {each.name: _errors(each.iterates(few.A, few.b, min(each.T, _SHORT)), few.x) for each in everyone}
        for label, few in _few_eigenvalues(systems)
    }


def _elsewhere(everyone: _Everyone, systems: Systems, seed: int) -> dict[str, dict[str, Spread]]:
    return {
        label: {each.name: _errors(each.iterates(other.A, other.b)[:, -1:], other.x) for each in everyone}
        for label, other in _others(everyone[0].family, systems, seed)
    }


def _beyond(everyone: _Everyone, systems: Systems) -> dict[str, Spread]:
    A, b, x = systems
    return {each.name: _errors(each.iterates(A, b, _BEYOND * each.T)[:, each.T :: each.T], x) for each in everyone}


def _interchange(of: Subject, size: Effort, seed: int) -> Interchange | None:
    if not isinstance(of.model, Solver) or not loops(of.model):
        return None
    return interchange(of.model, of.family, count=size.pairs, seed=seed)


def _short(value: object) -> object:
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_short(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _errors(iterates: Tensor, x: Tensor) -> Spread:
    return Spread.of(squared_relative_errors(iterates, x))


def _operators(everyone: _Everyone, family: Family, size: Effort, seed: int) -> dict[str, ErrorOperator]:
    """The error operators of every subject, on the same matrices and right-hand sides."""
    T = everyone[0].T
    at = tuple(t for t in SHOWN if t <= T)
    A = family.sample(size.matrices, seed).A
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size.matrices, size.right_hand_sides, family.n, generator=generator, dtype=A.dtype)
    b = x @ A  # A is symmetric
    found = {}
    for each in everyone:
        runs = [each.iterates(M.expand(len(right), -1, -1), right, at[-1]) for M, right in zip(A, b, strict=True)]
        found[each.name] = error_operator(A, x, torch.stack(runs), at)
    return found


_Back = Callable[[Tensor], Tensor]


def _transformations(systems: Systems, seed: int) -> Iterator[tuple[str, Systems, _Back]]:
    """Transformed systems, and the way back for their iterates (count, T + 1, n)."""
    A, b, x = systems
    count, n = b.shape
    generator = torch.Generator().manual_seed(seed)
    for factor in (2, 3):  # a power of two changes no digit, so a method may be blind to it alone
        yield f"A and b times {factor}", Systems(factor * A, factor * b, x), lambda y: y
    yield "b times 4", Systems(A, 4 * b, 4 * x), lambda y: y / 4
    order = torch.stack([torch.randperm(n, generator=generator) for _ in range(count)])
    P = torch.eye(n, dtype=A.dtype)[order]
    Q = torch.linalg.qr(torch.randn(count, n, n, generator=generator, dtype=A.dtype)).Q
    for label, U in (("permutation", P), ("rotation", Q)):
        turned = Systems(U @ A @ U.mT, product(U, b), product(U, x))
        yield label, turned, partial(torch.matmul, other=U)


def _symmetries(everyone: _Everyone, systems: Systems, runs: _Runs, seed: int) -> dict[str, dict[str, Symmetry]]:
    return {
        label: {each.name: _symmetry(each, change, back, runs[each.name], systems.x) for each in everyone}
        for label, change, back in _transformations(systems, seed)
    }


def _symmetry(each: Subject, changed: Systems, back: _Back, before: Tensor, x: Tensor) -> Symmetry:
    after = each.iterates(changed.A, changed.b)
    return Symmetry(Spread.of(squared_deviations(back(after), before, x)), _errors(after[:, -1:], changed.x))


def _few_eigenvalues(systems: Systems) -> Iterator[tuple[str, Systems]]:
    """The systems with the eigenvalues of A replaced by two or three values, their eigenvectors and x kept."""
    values, vectors = torch.linalg.eigh(systems.A)
    n = values.shape[-1]
    half = (n - 1) // 2
    for label, cuts in (("two eigenvalues", (n - 1,)), ("three eigenvalues", (half, n - 1))):
        groups = values.clamp(min=1e-300).log().tensor_split(cuts, -1)
        means = torch.cat([group.mean(-1, keepdim=True).expand_as(group) for group in groups if group.shape[-1]], -1)
        A = problems.base.symmetric((vectors * means.exp()[:, None]) @ vectors.mT)
        yield label, Systems(A, product(A, systems.x), systems.x)


def _additivity(each: Subject, systems: Systems, runs: _Runs) -> Spread:
    """The defect of x_t((b + b') / sqrt 2); the root keeps the sum as long as b is."""
    A, b, x = systems
    other = x.roll(1, 0)  # the solution of another system is as likely as any
    right, until = product(A, other), min(each.T, _SHORT)
    together = each.iterates(A, (b + right) / math.sqrt(2), until)
    apart = (runs[each.name][:, : until + 1] + each.iterates(A, right, until)) / math.sqrt(2)
    return Spread.of(squared_deviations(together, apart, (x + other) / math.sqrt(2)))


def _others(family: Family, own: Systems, seed: int) -> Iterator[tuple[str, Systems]]:
    """Other families with the size that the matrices of the model's own have in the median."""
    usual, n = own.A.flatten(1).norm(dim=-1).median(), family.n
    kinds: dict[str, Family] = {f"spd, sigma {sigma:g}": problems.SPD(n=n, sigma=(sigma,)) for sigma in (0.8, 1.8)}
    for name in problems.families():
        definite = problems.FAMILIES[name].definite
        if definite and name not in ("spd", "matrix-market") and not problems.complaints(name, n=n):
            kinds[name] = problems.family(name, n=n)
    for label, kind in kinds.items():
        if kind == family:
            continue
        A, b, x = kind.sample(len(own.b), seed)
        c = usual / A.flatten(1).norm(dim=-1)
        yield label, Systems(c[:, None, None] * A, c[:, None] * b, x)
