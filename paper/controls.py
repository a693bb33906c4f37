"""Controls for the paper's probe: which vectors can be read from a trained state, and which without training?

The paper reads (r_t, d_t) of CG from the state with a linear probe. A probe is fitted, so its discrepancy can fall on
any state that contains the input. Here a ridge regression maps the state at every iterate t to a vector of some method
at its own iterate t: fitted on one set of systems, its penalty chosen on a second, scored on a third by R^2. The same
probe is fitted to the states of a network with random weights and to the input, also for methods that the network has
never seen. Vectors are scaled to length one, or a few systems with large right-hand sides would dominate; the paper's
discrepancy uses them as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from nlaformer import pretrained
from nlaformer.compiler.library import program
from nlaformer.console import Sheet
from nlaformer.errors import OptionError
from nlaformer.learn import teachers
from nlaformer.learn.model import Solver, initial
from nlaformer.learn.models import load_solver
from nlaformer.learn.recipes import recipe
from nlaformer.problems import Systems
from nlaformer.report.figure import CURVES, FAINT, INK, curve, tidy
from paper.plan import BUNDLED
from paper.results import Results

FILE = "controls"
_UNTRAINED_SEEDS = (101, 102)
_OWN_TOKEN_ITERATES = (1, 2, 4, 8, 16)
# The trained network; one with random weights; b, A, A b, diag(A) b and b / diag(A); b and A; vectors of other systems.
SOURCES = ("trained", "untrained", "products", "inputs", "shuffled")
_OTHERS = {"steepest descent": "steepest_descent", "Richardson": "richardson", "Chebyshev": "chebyshev",
           "Newton-Schulz": "newton_schulz"}  # fmt: skip
_VECTORS = (
    *("r of CG", "d of CG", "r of PCG", "d of PCG"),
    *(f"r of {method}" for method in _OTHERS),
    "d of Chebyshev",
    "r of the network's own x",
    *("x of CG", "x of PCG"),
    *(f"x of {method}" for method in _OTHERS),
    "the solution",
)
_PENALTIES = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e2, 1e4)
_AT_ONCE = 256  # systems that run through a network together


@dataclass(frozen=True)
class Sizes:
    """Numbers of systems to fit a probe, to choose its penalty and to score it, and their seed."""

    train: int = 2048
    validation: int = 512
    test: int = 1024
    seed: int = 8_000_000

    @property
    def count(self) -> int:
        return self.train + self.validation + self.test


# --- the vectors ---


def vectors(systems: Systems, T: int) -> dict[str, Tensor]:
    """The residual r, the direction d where there is one, and the iterate x of every method, (count, T+1, n) each.

    The iterate of Newton-Schulz is X_t b, where X_t approximates the inverse of A.

    >>> from nlaformer import problems
    >>> held = vectors(problems.SPD(n=3).sample(5, seed=0), T=4)
    >>> held["r of CG"].shape, sorted(name for name in held if name.startswith("d"))
    (torch.Size([5, 5, 3]), ['d of CG', 'd of Chebyshev', 'd of PCG'])
    """
    A, b, x = systems
    held: dict[str, Tensor] = {}
    for method, path in (("CG", teachers.cg(A, b, T)), ("PCG", teachers.pcg(A, b, T))):
        held |= {f"r of {method}": path.r, f"d of {method}": path.d, f"x of {method}": path.x}
    for method, name in _OTHERS.items():
        inverting = method == "Newton-Schulz"
        run = program(name).run(A, None if inverting else b, iterations=T)
        iterates = (run.x @ b[:, None, :, None])[..., 0] if inverting else run.x
        held |= {f"r of {method}": b[:, None] - iterates @ A.mT, f"x of {method}": iterates}
        if "d" in run.state:
            held[f"d of {method}"] = run.state["d"]
    return held | {"the solution": x[:, None].expand(-1, T + 1, -1)}


# --- the states ---


@torch.no_grad()
def hidden(solver: Solver, systems: Systems, own: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
    """The states of a solver: of the last token, which the paper's probes read, (count, T+1, d); and at the iterates
    in ``own`` those of the tokens of the equations, (n, count, d) each.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    solver = copy.deepcopy(solver).to(device)  # the caller's stays where it is
    last, tokens = [], {t: [] for t in own}  # type: ignore[var-annotated]
    for A, b in zip(systems.A.split(_AT_ONCE), systems.b.split(_AT_ONCE), strict=True):
        states = dict(solver.states(A.to(solver.positions), b.to(solver.positions)))
        last.append(torch.stack([P[..., -1] for P in states.values()], 1).cpu())
        for t in own:
            tokens[t].append(states[t][..., solver.layout.data_tokens].permute(2, 0, 1).cpu())
    return torch.cat(last), {t: torch.cat(parts, 1) for t, parts in tokens.items()}


def inputs(systems: Systems) -> Tensor:
    """The input, b and the upper triangle of A, each scaled to length one: (count, n + n (n+1)/2)."""
    A, b, _ = systems
    row, column = torch.triu_indices(A.shape[-1], A.shape[-1])
    return torch.cat([over_length(b), over_length(A[:, row, column])], -1)


def products(systems: Systems) -> Tensor:
    """The input and the products of a first step, A b, diag(A) b and b / diag(A), each scaled to length one."""
    return torch.cat([inputs(systems), *_formed(systems)], -1)


def own_products(systems: Systems) -> Tensor:
    """The same for each equation: its row of A, and its entries of b and of the products, (n, count, n+4)."""
    vectors = torch.stack([over_length(systems.b), *_formed(systems)], -1)  # (count, n, 4)
    return torch.cat([systems.A, vectors], -1).transpose(0, 1)


def _formed(systems: Systems) -> list[Tensor]:
    A, b, _ = systems
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    return [over_length(vector) for vector in ((A @ b[..., None])[..., 0], diagonal * b, b / diagonal)]


def over_length(X: Tensor) -> Tensor:
    """Vectors along the last axis scaled to length one; 0 stays 0."""
    return torch.nn.functional.normalize(X, dim=-1, eps=1e-300)


# --- the probe ---


class Scores(NamedTuple):
    """Sums of squares over the test systems and the entries of each of m vectors, (..., m)."""

    left: Tensor  # the residual of the probe
    total: Tensor  # the deviation of the vector from its mean

    @property
    def r2(self) -> Tensor:
        """R^2; NaN for a vector that never varies, such as the first iterate 0."""
        return torch.where(self.total > 0, 1 - self.left / self.total, torch.nan)


def probe(X: Tensor, Y: Tensor, sizes: Sizes) -> Scores:
    """Fit ridge regressions from X (..., count, p) to Y (..., count, m, n); score the best for each of the m vectors.

    The best on the validation systems, over penalties and over X as it is or scaled to length one: states, like the
    entries of the paper's A, may vary over orders of magnitude.

    >>> X = torch.randn(900, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> Y = torch.stack([X[:, :2], X[:, :2].flip(0)], 1)  # a part of X, and the same part of other systems
    >>> [abs(round(value, 1)) for value in probe(X, Y, Sizes(500, 200, 200)).r2.tolist()]
    [1.0, 0.0]
    """
    X, Y = X.double(), Y - Y[..., : sizes.train, :, :].mean(-3, keepdim=True)
    forms = [_ridge(form, Y, sizes) for form in (X, over_length(X))]
    chosen, left = (torch.stack(squares) for squares in zip(*forms, strict=True))  # (forms, ..., m)
    best = left.gather(0, chosen.argmin(0, keepdim=True))[0]
    return Scores(best, Y[..., -sizes.test :, :, :].square().sum((-3, -1)))


def _ridge(X: Tensor, Y: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The residuals on the validation systems, with the penalty that is best there, and on the test systems."""
    fitted = X[..., : sizes.train, :]
    X = (X - fitted.mean(-2, keepdim=True)) / (fitted.std(-2, keepdim=True) + 1e-300)
    X_train, Y_train = X[..., : sizes.train, :], Y[..., : sizes.train, :, :].flatten(-2)
    spectrum, V = torch.linalg.eigh(X_train.mT @ X_train / sizes.train)
    moments = V.mT @ (X_train.mT @ Y_train) / sizes.train  # (..., p, m n)
    unseen = X[..., sizes.train :, :] @ V
    X_choose, X_test = unseen[..., : sizes.validation, :], unseen[..., sizes.validation :, :]
    Y_choose, Y_test = Y[..., sizes.train : -sizes.test, :, :], Y[..., -sizes.test :, :, :]

    def left(X: Tensor, Y: Tensor, penalty: Tensor) -> Tensor:
        each = penalty.repeat_interleave(Y.shape[-1], -1)  # the same for every entry of a vector
        found = X @ (moments / (spectrum.clamp(min=0)[..., None] + each[..., None, :]))
        return (found.unflatten(-1, Y.shape[-2:]) - Y).square().sum((-3, -1))  # (..., m)

    penalties = torch.tensor(_PENALTIES, dtype=X.dtype)
    tried = torch.stack([left(X_choose, Y_choose, penalty.expand(Y.shape[-2])) for penalty in penalties])
    least, which = tried.min(0)
    return least, left(X_test, Y_test, penalties[which])


# --- measuring ---


def measure(small: bool) -> dict[str, Any]:
    """Probe the bundled models; small: an untrained quickstart network stands in for them, on few systems."""
    if small:
        solvers, sizes = {"quickstart, untrained": initial(recipe("quickstart"))}, Sizes(256, 64, 128)
    else:
        solvers, sizes = {name: load_solver(pretrained.HOME / name) for name in BUNDLED}, Sizes()
    return document(solvers, sizes)


def document(solvers: dict[str, Solver], sizes: Sizes) -> dict[str, Any]:
    """The controls of some models, as they are filed."""
    models = {name: examine(solver, sizes) for name, solver in solvers.items()}
    return {"sizes": asdict(sizes), "untrained_seeds": list(_UNTRAINED_SEEDS), "models": models}


def examine(solver: Solver, sizes: Sizes) -> dict[str, Any]:
    """R^2 of every vector from every source at every iterate, and the paper's discrepancy."""
    config = solver.config
    if config.T < 2:
        raise OptionError(f"a probe needs a model of at least T = 2 iterations; this one has T = {config.T}")
    systems = config.make_family().sample(sizes.count, sizes.seed)
    held = vectors(systems, config.T)
    own = [t for t in _OWN_TOKEN_ITERATES if t <= config.T]
    trained, trained_tokens = hidden(solver, systems, own)
    if not bool(trained.isfinite().all()):
        raise OptionError("the states of this model are not finite, so no probe can be fitted to them")
    random = [hidden(initial(config.replace(seed=seed)), systems, own) for seed in _UNTRAINED_SEEDS]
    iterates = trained @ solver.probe_x.weight.detach().cpu().mT
    held["r of the network's own x"] = systems.b[:, None] - iterates.double() @ systems.A.mT

    Y = over_length(torch.stack(list(held.values()), -2)).transpose(0, 1)  # (T+1, count, m, n)
    fixed = {"products": products(systems), "inputs": inputs(systems)}
    states = {"trained": [trained], "untrained": [last for last, _ in random]}
    states |= {name: [X[:, None].expand(-1, config.T + 1, -1)] for name, X in fixed.items()}
    r2 = {name: _mean([_by_iterate(X, Y, sizes).r2 for X in found]) for name, found in states.items()}
    others = torch.randperm(sizes.count, generator=torch.Generator().manual_seed(sizes.seed))
    r2["shuffled"] = _by_iterate(trained, Y[:, others], sizes).r2
    tokens = {"trained": [trained_tokens], "untrained": [tokens for _, tokens in random]}
    tokens["products"] = [dict.fromkeys(own, own_products(systems))]
    own_r2 = {name: _mean([_own_token(X, Y, own, sizes) for X in found]) for name, found in tokens.items()}
    return {
        "config": config.to_json(),
        "r2": {name: _by_vector(held, scores) for name, scores in r2.items()},
        "own_token": {"iterates": own} | {name: _by_vector(held, scores) for name, scores in own_r2.items()},
        "discrepancy": _discrepancies(solver, states, held, systems.b, sizes),
    }


def _by_iterate(X: Tensor, Y: Tensor, sizes: Sizes) -> Scores:
    """A probe for every iterate from X (count, iterates, p) to Y (iterates, count, m, n), one after another."""
    found = [probe(X[:, t], Y[t], sizes) for t in range(len(Y))]
    return Scores(*(torch.stack(squares) for squares in zip(*found, strict=True)))


def _own_token(X: dict[int, Tensor], Y: Tensor, iterates: Sequence[int], sizes: Sizes) -> Tensor:
    """R^2 where entry i of a vector is read from the token of equation i, (iterates, m)."""
    found = [probe(X[t], Y[t].permute(2, 0, 1)[..., None], sizes) for t in iterates]
    return torch.stack([Scores(scores.left.sum(0), scores.total.sum(0)).r2 for scores in found])


def _discrepancies(
    solver: Solver, states: dict[str, list[Tensor]], held: dict[str, Tensor], b: Tensor, sizes: Sizes
) -> dict[str, dict[str, float]]:
    """The paper's discrepancy of (r_t, d_t), the mean over t = 2, ..., n, of probes fitted to every source.

    "each": one map for each iterate. "one": one map for all iterates, as in the paper; not for the input, which does
    not depend on t. r and d scale with b, so the normalized input is multiplied by the length of b.
    """
    n, T = solver.config.n, solver.config.T
    window, teacher = slice(2, min(n, T) + 1), solver.config.teacher.upper()
    rd = torch.cat([held[f"r of {teacher}"], held[f"d of {teacher}"]], -1)  # (count, T+1, 2n)
    tested = rd[-sizes.test :, window]
    seen = states["trained"][0] @ solver.probe_rd.weight.detach().cpu().mT
    answers = {"zero": torch.zeros_like(tested), "own probe": seen[-sizes.test :, window].double()}
    found = {name: {"one": float((X - tested).square().sum(-1).mean() / n)} for name, X in answers.items()}
    Y = rd[:, window].transpose(0, 1).unsqueeze(-2)  # (iterates, count, 1, 2n)
    length = b.norm(dim=-1)[:, None, None]
    states = states | {name: [length * X for X in states[name]] for name in ("products", "inputs")}
    for name, networks in states.items():
        left = [_by_iterate(X[:, window], Y, sizes).left.mean() / (sizes.test * n) for X in networks]
        found[name] = {"each": float(_mean(left))}
    for name in ("trained", "untrained"):
        found[name]["one"] = float(_mean([_one_map(X[:, window], rd[:, window], sizes) / n for X in states[name]]))
    return found


def _one_map(X: Tensor, Y: Tensor, sizes: Sizes) -> Tensor:
    """The mean squared residual of one map for all iterates, each of which counts as another system."""
    iterates = X.shape[1]
    more = replace(sizes, **{part: getattr(sizes, part) * iterates for part in ("train", "validation", "test")})
    return probe(X.flatten(0, 1), Y.flatten(0, 1).unsqueeze(-2), more).left[0] / more.test


def _mean(scores: list[Tensor]) -> Tensor:
    return torch.stack(scores).mean(0)


def _by_vector(held: dict[str, Tensor], scores: Tensor) -> dict[str, list[float]]:
    return {name: scores[:, k].tolist() for k, name in enumerate(held)}


# --- tables ---


def average(model: dict[str, Any], source: str, vector: str, own: bool = False) -> float:
    """The mean R^2 over t = 1, ..., min(T, n-1): x_0 is the same for all, CG's r_n is rounding.

    ``own``: where each entry is read from the token of its own equation, over the iterates probed so.
    """
    n, T = model["config"]["n"], model["config"]["T"]
    values = model["own_token"][source][vector] if own else model["r2"][source][vector][1 : min(T, n - 1) + 1]
    return fmean(values)


def tables(results: Results) -> list[Sheet]:
    """The tables of the committed controls."""
    return sheets(results.document(FILE))


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """R^2 of every vector in every model, also for untrained networks and products of the input; the discrepancy."""
    models = found["models"]
    headings = ("vector at iterate t", *(name.replace("-", "-\n") for name in models))

    def lines(own: bool) -> tuple[tuple[str, ...], ...]:
        return tuple(
            (vector, *(" / ".join(f"{average(model, source, vector, own):z.2f}" for source in SOURCES[:3])
                       for model in models.values()))
            for vector in _VECTORS
        )  # fmt: skip

    held = Sheet(
        "What a linear probe reads in the state, R^2: trained / random weights / products of the input",
        headings,
        lines(own=False),
        f"Means over t = 1, ..., n-1 of the last token; fitted on {found['sizes']['train']} systems, scored on "
        f"{found['sizes']['test']} others; vectors scaled to length one. With vectors of other systems R^2 is "
        f"{max(abs(average(model, 'shuffled', vector)) for model in models.values() for vector in _VECTORS):.2f} "
        "at most.",
    )
    own = Sheet(
        "The same where entry i of a vector is read from the token of equation i, or from its products",
        headings,
        lines(own=True),
        f"Means over t = {', '.join(map(str, next(iter(models.values()))['own_token']['iterates']))}.",
    )
    rows = (
        ("zero predictor", "zero", "one"),
        ("the network's own probe", "own probe", "one"),
        ("trained network, one map", "trained", "one"),
        ("random weights, one map", "untrained", "one"),
        ("trained network", "trained", "each"),
        ("random weights", "untrained", "each"),
        ("b, A and their products", "products", "each"),
    )
    cells = (
        (label, *(f"{model['discrepancy'][source][kind]:.3g}" for model in models.values()))
        for label, source, kind in rows
    )
    discrepancy = Sheet(
        "The paper's discrepancy of (r, d), by what the probe is fitted to",
        ("probe on", *headings[1:]),
        tuple(cells),
        "One map for all iterates, as the paper's probe is, or one for each. (r, d) of the model's own teacher.",
    )
    return [held, own, discrepancy]


# --- the figure ---

_BY_ITERATE = ("r of CG", "d of CG", "r of Richardson")


def figure(results: Results) -> Figure:
    """Above, what is read in the trained state beside the best control; below, by iterate, CG's vectors and another."""
    models = results.document(FILE)["models"]
    figure = Figure(figsize=(max(3.0 * len(models), 5) + 1.6, 8.2), layout="constrained")
    axes = figure.subplots(2, len(models), squeeze=False, sharey="row", height_ratios=(1.6, 1))
    for (name, model), above, below in zip(models.items(), *axes, strict=True):
        _draw_means(above, name, model)
        tidy(below, "", "iterate t")
        for k, vector in enumerate(_BY_ITERATE):
            curve(below, model["r2"]["trained"][vector], vector, k)
        below.set_ylim(-0.08, 1.02)
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_yticks(range(len(_VECTORS)), _VECTORS)
    axes[0, 0].invert_yaxis()
    axes[1, 0].set_ylabel("R^2, trained network, last token", fontsize=9)
    upper, lower = (axes[row, 0].get_legend_handles_labels() for row in (0, 1))
    figure.legend(*upper, frameon=False, fontsize=9, loc="outside upper center", ncols=2)
    figure.legend(*lower, frameon=False, fontsize=9, loc="outside lower center", ncols=len(_BY_ITERATE))
    return figure


def _draw_means(axes: Axes, name: str, model: dict[str, Any]) -> None:
    """The trained network and the best of its controls, a line between them."""
    trained = [average(model, "trained", vector) for vector in _VECTORS]
    controls = [max(average(model, source, vector) for source in SOURCES if source != "trained") for vector in _VECTORS]
    places = range(len(_VECTORS))
    axes.hlines(places, controls, trained, color=FAINT, linewidth=1.2)
    axes.plot(controls, places, "|", color=INK, markersize=9, label="the best control")
    axes.plot(trained, places, "o", color=CURVES[0], markersize=5.5, label="trained network")
    known, other = (average(model, "trained", vector) for vector in ("r of CG", "r of Richardson"))
    title = f"{name}: R^2 of CG's r {known:.2f},\nof Richardson's {other:.2f}"
    tidy(axes, title, "R^2, last token, mean over t")
    axes.set_xlim(-0.05, 1.02)
