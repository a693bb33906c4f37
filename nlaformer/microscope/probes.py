"""nf.probe: which quantities a linear map reads from the state of a model, and which it reads without the model.

For every iterate t a ridge regression maps the state there to each target: fitted on one set of systems, its penalty
chosen by leave-one-out errors on these, scored on other systems,

    R^2 = 1 - sum |y - prediction|^2 / sum |y - mean|^2,

1 where the probe reads the target, 0 where it does no better than the mean. Intervals are those of a bootstrap over the
scored systems. Vectors are scaled to length one first, or a few systems with large right-hand sides would count alone.

A probe is fitted, so it reads whatever is a linear function of anything the state retains. Three controls say what an
R^2 is worth: the same probe on the network before its training (``untrained``); on the input itself, b and A and the
products of a first step, A b, diag(A) b and b / diag(A); and on the state of the model with the targets of other
systems, which is 0 but for the size of the sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from nlaformer.arrays import FloatArray, flag, full_precision, whole
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.errors import OptionError, SampleWarning, shown, unknown_name
from nlaformer.learn.model import Solver
from nlaformer.learn.programs import TrainedProgram
from nlaformer.microscope.places import transformers
from nlaformer.microscope.recording import trace
from nlaformer.microscope.subject import subject
from nlaformer.microscope.targets import Target, values
from nlaformer.microscope.untrained import before_training
from nlaformer.problems import Family, Systems
from nlaformer.report.html import panel, table, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Probed: TypeAlias = Solver | TrainedProgram | Algorithm
_PENALTIES = np.logspace(-8, 4, 13)
_AT_ONCE = 256  # systems that run through a model together
_FITTED_FOR_EACH = 5  # systems for each number that a probe reads
_FEWEST = 2
_LEAST = 400
_RESAMPLES = 400


@dataclass(frozen=True)
class Score:
    """R^2 of a target read from one source, with an interval that holds 95% of the resamples of the systems.

    Attributes
    ----------
    r2, low, high : (T + 1,), one for every iterate; NaN where there is no state or the target does not vary
    mean, mean_low, mean_high : the same for the mean over t >= 1
    """

    r2: FloatArray
    low: FloatArray
    high: FloatArray
    mean: float
    mean_low: float
    mean_high: float


@dataclass(frozen=True)
class Probing:
    """What linear probes read. Made by ``nf.probe``; ``print`` shows the means over the iterates.

    Attributes
    ----------
    scores : by target, then by source: "model", and with controls "untrained", "input" and "permuted"
    fitted, scored : numbers of systems
    at, token : where the state was read
    """

    scores: dict[str, dict[str, Score]]
    fitted: int
    scored: int
    at: str
    token: int | str
    family: Family = field(repr=False)

    def __getitem__(self, target: str) -> dict[str, Score]:
        if target not in self.scores:
            raise unknown_name("target", target, self.scores)
        return self.scores[target]

    def beyond_controls(self, target: str) -> bool:
        """Whether the model's interval of the mean R^2 lies above those of all controls."""
        scores = self[target]
        if len(scores) == 1:
            raise OptionError("this was read without controls; nf.probe(..., controls=True) has them")
        return all(scores["model"].mean_low > score.mean_high for name, score in scores.items() if name != "model")

    def plot(self) -> Figure:
        """Draw R^2 by iterate, a panel for each target, the model's state in front of the controls.

        Returns
        -------
        matplotlib.figure.Figure : each title has the mean over t >= 1, and the largest of a control
        """
        from nlaformer.report.curves import scores_figure

        titles = []
        for name, scores in self.scores.items():
            controls = [score.mean for source, score in scores.items() if source != "model"]
            beside = f", controls up to {max(controls):.2f}" if controls else ""
            titles.append(f"{name}: mean R^2 {scores['model'].mean:.2f}{beside}")
        curves = {t: {source: s.r2.tolist() for source, s in scores.items()} for t, scores in self.scores.items()}
        return scores_figure(curves, titles, "R^2")

    def _repr_html_(self) -> str:
        sources = list(next(iter(self.scores.values()), {}))
        lines = [
            (name, *(f"{s.mean:.2f} [{s.mean_low:.2f}, {s.mean_high:.2f}]" for s in scores.values()))
            for name, scores in self.scores.items()
        ]
        note = f"Fitted on {self.fitted:,} systems, scored on {self.scored:,} others; {self.at}, token {self.token}"
        title = "Probes: mean R^2 over t >= 1, with 95% intervals"
        return panel(title, table(("target", *sources), lines), tag("div", note))

    def __str__(self) -> str:
        sources = list(next(iter(self.scores.values())))
        wide = max(len(name) for name in (*self.scores, "target"))
        lines = ["  ".join([f"{'target':{wide}}", *(f"{name:>19}" for name in sources)])]
        for name, scores in self.scores.items():
            cells = (f"{s.mean:6.2f} [{s.mean_low:5.2f},{s.mean_high:5.2f}]" for s in scores.values())
            lines.append("  ".join([f"{name:{wide}}", *(f"{cell:>19}" for cell in cells)]))
        lines.append(
            f"mean R^2 over t >= 1 with 95% intervals; fitted on {self.fitted} systems, scored on {self.scored} "
            f"others; state: {self.at}, token {self.token}"
        )
        return "\n".join(lines)


@torch.no_grad()
@full_precision()
def probe(
    model: Probed,
    family: Family | None = None,
    targets: Sequence[str] | Mapping[str, Target] = ("cg.x", "cg.r", "cg.d"),
    *,
    controls: bool = True,
    at: str = "output",
    token: int | str | None = None,
    systems: int | None = None,
    iterations: int | None = None,
    seed: int = 0,
) -> Probing:
    """Fit linear probes from the state of a model at every iterate to quantities of known methods.

    Parameters
    ----------
    model : a trained model, a program with one learned part, or a compiled algorithm
    family : the systems, as in ``nf.problems``; those of its training by default
    targets : names such as "cg.r", "pcg.d", "cg.alpha", "solution" (any state of any of
        ``nf.algorithms()``), or a mapping from names of your own to such names, to (program, state), or to functions
        of (A, b)
    controls : also probe the network before its training, the input, and the model with the targets of other systems
    at : the part of the last layer before each iterate that is read, "output" or another one of ``nf.trace``; that of
        a certain layer with "layer[0].ffn.hidden"
    token : the token that is read, a number, "all", or "own": entry i of a vector from the token of equation i. The
        default is the last one for a trained model, the sink (0) for a learned part, "own" for a compiled algorithm
    systems : how many to draw; three quarters are fitted. By default five for each number that a probe reads, and 400
        at least. Where there are fewer than two, a SampleWarning
    iterations : iterates beyond x_0; as trained by default, n for an algorithm
    seed : of the systems

    Returns
    -------
    Probing

    Examples
    --------
    >>> import nlaformer as nf
    >>> cg = nf.algorithm("cg", n=3, verify=False)
    >>> found = nf.probe(cg, targets=["cg.r", "chebyshev.r"], iterations=2, systems=160, controls=False)
    >>> bool(found["cg.r"]["model"].mean > 0.99 > found["chebyshev.r"]["model"].mean)
    True
    """
    if not isinstance(model, (Solver, TrainedProgram, Algorithm)):
        raise OptionError(
            f"nf.probe takes trained models, programs and compiled algorithms, not {type(model).__name__}"
        )
    of = subject(model, family, iterations)
    if token is None:
        token = -1 if isinstance(model, Solver) else 0 if isinstance(model, TrainedProgram) else "own"
    sources = _sources(model, of.T, flag("controls", controls), of.family.n, at, token)
    first = of.family.sample(2, seed=seed)
    count = _count(systems, max(X.shape[-1] for read in sources.values() for X in read(first) if X is not None))
    drawn = of.family.sample(count, seed=seed)
    fitted = 3 * count // 4
    Y = {name: _unit(value) for name, value in values(targets, drawn, of.T).items()}
    if token == "own" and (wrong := [name for name, value in Y.items() if value.shape[-1] != of.family.n]):
        raise OptionError(f"{', '.join(wrong)} has no entry for each token; read it with token=0 or token='all'")
    own = _read(sources["model"], drawn)
    scores: dict[str, dict[str, Score]] = {name: {} for name in Y}
    for source, read in sources.items():
        # A control is scored at the iterates at which the model has a state.
        states = own if read is sources["model"] else _read(read, drawn)
        states = [None if mine is None else X for mine, X in zip(own, states, strict=True)]
        wanted = Y if source != "permuted" else {name: np.roll(value, 1, axis=0) for name, value in Y.items()}
        for name, score in _scores(states, wanted, fitted, seed).items():
            scores[name][source] = score
    return Probing(scores, fitted, count - fitted, at, token, of.family)


# --- the states ---

# The state at every iterate, (systems, numbers) or, by token, (n, systems, numbers); None where there is none.
_States = list[Any]
_Source = Callable[[Systems], _States]


def _sources(model: Probed, T: int, controls: bool, n: int, at: str, token: int | str) -> dict[str, _Source]:
    found: dict[str, _Source] = {"model": _state_source(model, T, at, token)}
    if controls:
        found["untrained"] = _state_source(before_training(model, n, T), T, *_same_place(model, at, token))
        found["input"] = lambda systems: [_inputs(systems, token == "own")] * (T + 1)
        found["permuted"] = found["model"]
    return found


def _same_place(model: Probed, at: str, token: int | str) -> tuple[str, int | str]:
    """Where the untrained network is read: as the model is; the one beside an algorithm has other layers."""
    return (at, token) if not isinstance(model, Algorithm) else ("output", token if token in ("own", "all") else -1)


def _state_source(model: Probed, T: int, at: str, token: int | str) -> _Source:
    names = _names(model, at if isinstance(at, str) else shown(at), T)
    if not any(names):
        raise OptionError(f"at is {at!r}, which no layer of the model has; see nf.trace(model, A, b).names")
    options = {"normalize": False} if isinstance(model, Solver) else {}

    def read(systems: Systems) -> _States:
        record = trace(model, systems.A, systems.b, keep=[name for name in names if name], iterations=T, **options)
        return [None if name is None else _tokens(record[name], token) for name in names]

    return read


def _names(model: Probed, at: str, T: int) -> list[str | None]:
    """The names of a part at every iterate."""
    if len(parts := transformers(model)) > 1:
        raise OptionError("this program has several learned parts; nf.probe reads programs with one. See nf.trace")
    ((prefix, transformer),) = parts.items()
    posts = isinstance(model, Solver) and len(transformer.post) > 0
    blocks = ["pre", *["loop"] * (T - posts), *["post"] * posts]
    known = transformer.hooks
    found: list[str | None] = []
    for t, block in enumerate(blocks):
        where = f"loop[{t - 1}]" if block == "loop" else block
        stem = where if transformer.unshared else block
        layers = sum(name.startswith(f"{stem}.") and name.endswith(".input") for name in known)
        part = at if at.startswith("layer[") else f"layer[{layers - 1}].{at}"
        found.append(f"{prefix}{where}.{part}" if f"{stem}.{part}" in known else None)
    return found


def _tokens(value: torch.Tensor, token: int | str) -> np.ndarray:
    """The chosen token of an intermediate (systems, ..., token) as numbers; every equation's own as (n, systems, p)."""
    array = value.double().cpu().numpy()
    if token == "own":
        return np.moveaxis(array[..., 1:], -1, 0).reshape(array.shape[-1] - 1, len(array), -1)
    if token == "all":
        return array.reshape(len(array), -1)
    if isinstance(token, bool) or not isinstance(token, int) or not -array.shape[-1] <= token < array.shape[-1]:
        raise OptionError(f"token is {token!r}; expected a number below {array.shape[-1]}, 'own' or 'all'")
    return array[..., token].reshape(len(array), -1)


def _inputs(systems: Systems, own: bool) -> np.ndarray:
    """The input and the products of a first step; for every equation its own row and entries."""
    A, b = systems.A.numpy(), systems.b.numpy()
    diagonal = np.diagonal(A, axis1=-2, axis2=-1)
    vectors = [_unit(v) for v in (b, (A @ b[..., None])[..., 0], diagonal * b, b / diagonal)]
    if own:
        return np.moveaxis(np.concatenate([A, np.stack(vectors, -1)], -1), 1, 0)
    upper = A[:, *np.triu_indices(A.shape[-1])]
    return np.concatenate([_unit(upper), *vectors], -1)


def _read(read: _Source, systems: Systems) -> _States:
    """The states of all systems, some at a time."""
    pieces = [read(Systems(*piece)) for piece in zip(*(part.split(_AT_ONCE) for part in systems), strict=True)]
    return [None if parts[0] is None else np.concatenate(parts, -2) for parts in zip(*pieces, strict=True)]


# --- the probe ---


def _count(systems: int | None, width: int) -> int:
    """How many systems to draw for a probe that reads so many numbers."""
    if systems is None:
        return max(_LEAST, 4 * _FITTED_FOR_EACH * width // 3)
    count = whole("systems", systems, 8)
    if 3 * count // 4 < _FEWEST * width:
        warnings.warn(
            f"{3 * count // 4} systems are few to fit a probe of {width} numbers; R^2 is then too small and says "
            f"little. Draw {4 * _FITTED_FOR_EACH * width // 3}, or omit systems=",
            SampleWarning,
            stacklevel=5,  # the user's line, above two decorators
        )
    return count


def _unit(X: np.ndarray) -> np.ndarray:
    """Vectors along the last axis scaled to length one, 0 stays 0; single numbers as they are."""
    if X.shape[-1] == 1:
        return X
    return X / np.maximum(np.linalg.norm(X, axis=-1, keepdims=True), 1e-300)


def _scores(states: _States, Y: Mapping[str, np.ndarray], fitted: int, seed: int) -> dict[str, Score]:
    """Probes of all targets at all iterates."""
    ends = np.cumsum([0, *(value.shape[-1] for value in Y.values())])
    columns = {name: slice(a, b) for name, a, b in zip(Y, ends[:-1], ends[1:], strict=True)}
    together = np.concatenate(list(Y.values()), -1)  # (systems, T + 1, all numbers)
    left, total = (np.full((len(Y), len(states), len(together) - fitted), np.nan) for _ in range(2))
    for t, X in enumerate(states):
        if X is None or not np.isfinite(X).all():
            continue
        squares = _residuals(X, together[:, t], fitted, list(columns.values()))
        deviation = (together[fitted:, t] - together[:fitted, t].mean(0)) ** 2
        for k, place in enumerate(columns.values()):
            left[k, t], total[k, t] = squares[:, place].sum(-1), deviation[:, place].sum(-1)
    return {name: _score(left[k], total[k], seed) for k, name in enumerate(Y)}


def _residuals(X: np.ndarray, Y: np.ndarray, fitted: int, columns: Sequence[slice]) -> np.ndarray:
    """Squared residuals on the systems that are not fitted, (systems, numbers).

    X (n, systems, p) has a state for each token; each reads its own entry of every vector.
    """
    usable = np.isfinite(Y).all(0)
    result = np.full((len(Y) - fitted, Y.shape[1]), np.nan)
    if X.ndim == 2:
        result[:, usable] = _fit(X, Y[:, usable], fitted)
        return result
    for i, own in enumerate(X):
        entries = np.array([place.start + i for place in columns])
        entries = entries[usable[entries]]
        result[:, entries] = _fit(own, Y[:, entries], fitted)
    return result


def _fit(X: np.ndarray, Y: np.ndarray, fitted: int) -> np.ndarray:
    from sklearn.linear_model import RidgeCV
    from sklearn.preprocessing import StandardScaler

    if not Y.shape[1]:
        return np.zeros((len(Y) - fitted, 0))
    X = StandardScaler().fit(X[:fitted]).transform(X)
    ridge = RidgeCV(_PENALTIES, alpha_per_target=True).fit(X[:fitted], Y[:fitted])
    squares: np.ndarray = (ridge.predict(X[fitted:]).reshape(Y[fitted:].shape) - Y[fitted:]) ** 2
    return squares


def _score(left: np.ndarray, total: np.ndarray, seed: int) -> Score:
    """R^2 with intervals, from the squares (T + 1, systems) of the residual and of the deviation from the mean."""
    systems = left.shape[1]
    drawn = np.random.default_rng(seed).multinomial(systems, np.full(systems, 1 / systems), _RESAMPLES)
    chosen = np.concatenate([np.ones((1, systems)), drawn])  # (1 + resamples, systems): how often each counts
    with np.errstate(invalid="ignore", divide="ignore"):
        varies = total.sum(1) > 1e-20 * systems
        r2 = np.where(varies[:, None], 1 - (left @ chosen.T) / (total @ chosen.T), np.nan)  # (T + 1, 1 + resamples)
    usable: np.ndarray = np.asarray(np.isfinite(r2).all(1))
    usable[0] &= not usable[1:].any()  # t >= 1, or t = 0 where there is nothing else
    means = r2[usable].mean(0) if usable.any() else np.full(r2.shape[1], np.nan)
    low, high = np.quantile(r2[:, 1:], (0.025, 0.975), axis=1)
    return Score(r2[:, 0], low, high, float(means[0]), *(float(q) for q in np.quantile(means[1:], (0.025, 0.975))))
