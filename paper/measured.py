"""Small measurements and the paper's diagrams: compiled CG, the systems of section 4, Figures 1 to 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nlaformer.console import Sheet
from nlaformer.learn.evaluate import SEED, plain_factor
from nlaformer.learn.recipes import recipe
from nlaformer.problems import SPD
from nlaformer.report import diagrams
from paper import plan
from paper.curves import short
from paper.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CG, SYSTEMS = "conjugate-gradients", "systems"
_BARE = "without"  # key of the matrices without a diagonal
_QUANTILES = (0.1, 0.5, 0.9)
_RECIPE = recipe("cg-imitation")  # whose sizes the diagrams show
_TITLE = f"{_RECIPE.recipe}, n = {_RECIPE.n}"


# --- Theorem 3.1: conjugate gradients ---


def measure_cg(results: Results, small: bool) -> None:
    """Compile CG, run it and count."""
    from benchmarks import algorithms as compiled

    rows = [compiled.measure("cg", n=4 if small else 20)]
    about = {"command": "python -m paper run theorem-cg", "systems": compiled.SYSTEMS, "seed": compiled.SEED}
    results.write(CG, about | {"algorithms": rows})


def cg_table(results: Results) -> list[Sheet]:
    """How it converges, and the same program in NumPy."""
    document = results.document(CG)
    (cg,) = document["algorithms"]
    theirs = cg["reference_iterations"]
    lines = [
        (f"iterations to {level}", str(k or "-"), str(theirs[level] or "-")) for level, k in cg["iterations"].items()
    ]
    lines.append(("relative error at the end", f"{cg['error']:.0e}", f"{cg['reference_error']:.0e}"))
    note = f"Medians of {document['systems']} systems, the error of the worst. How it is made: docs/compile.md."
    return [Sheet(f"Conjugate gradients, n = {cg['n']}", ("", "transformer", "NumPy"), tuple(lines), note)]


# --- the systems of section 4 ---


def measure_systems(results: Results, small: bool) -> None:
    """Condition numbers of scikit-learn's matrices, and of the paper's systems, which have a diagonal added to them."""
    import torch
    from sklearn.datasets import make_spd_matrix

    count, n = 64 if small else 4096, 20
    bare = torch.stack([torch.from_numpy(make_spd_matrix(n, random_state=SEED + k)) for k in range(count)])
    matrices = {_BARE: bare} | {f"{sigma:g}": SPD(n=n, sigma=(sigma,)).sample(count, SEED).A for sigma in plan.SIGMAS}
    spectra = {which: torch.linalg.eigvalsh(A) for which, A in matrices.items()}
    quantiles = torch.tensor(_QUANTILES, dtype=torch.float64)
    conditions = {key: torch.quantile(found[:, -1] / found[:, 0], quantiles).tolist() for key, found in spectra.items()}
    smallest = {which: float(found.min()) for which, found in spectra.items()}
    about = {"command": "python -m paper run table-systems", "count": count, "n": n, "seed": SEED}
    results.write(SYSTEMS, about | {"condition": conditions, "smallest_eigenvalue": smallest})


def systems_table(results: Results) -> list[Sheet]:
    """A line for each diagonal."""
    found = results.document(SYSTEMS)
    lines = tuple(
        (
            "make_spd_matrix alone" if which == _BARE else f"with the diagonal, sigma {which}",
            *map(plain_factor, row),
            short(found["smallest_eigenvalue"][which]),
        )
        for which, row in found["condition"].items()
    )
    headings = ("systems", *(f"{100 * quantile:g}% quantile" for quantile in _QUANTILES), "smallest eigenvalue")
    return [Sheet(f"Condition numbers of {found['count']:,} matrices each, n = {found['n']}", headings, lines)]


# --- Figures 1 to 3 ---


def transformer_figure(results: Results) -> Figure:
    """A layer with its shapes."""
    config, (layer, *_) = _RECIPE, _structure().blocks["loop"]
    return diagrams.layer_figure(layer, config.d, config.n + 1, f"One layer, eq. (1): the loop's of {_TITLE}")


def structure_figure(results: Results) -> Figure:
    """The pre, loop and post blocks."""
    return diagrams.structure_figure(_structure(), _TITLE)


def probe_figure(results: Results) -> Figure:
    """The probes of x and of (r, d)."""
    return diagrams.probe_figure(_structure(), _RECIPE.n, 2 * _RECIPE.n, _TITLE)


def _structure() -> diagrams.Structure:
    config = _RECIPE
    layer = diagrams.LayerShape(config.heads, config.d // config.heads, config.ffn_width, normalized=True)
    layers = {"pre": config.pre_layers, "loop": config.loop_layers, "post": config.post_layers}
    blocks = {block: [layer] * count for block, count in layers.items()}
    return diagrams.Structure((("a", config.n), ("b", 1)), config.n + 1, blocks, width=config.d, T=config.T)
