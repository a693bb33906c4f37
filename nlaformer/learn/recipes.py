"""The named recipes: configs for the paper's settings, for programs with learned parts, and for a first try."""

from __future__ import annotations

from typing import Any

from nlaformer.errors import OptionError, look_up, shown
from nlaformer.learn.config import Config as Config

_ACCELERATED = Config(
    supervision="step+solution", lambda_=10.0, window=20, lr=3e-3, final_lr=0.002, power=0.5, floor=1e-8
)
_PROGRAM = Config(supervision="solution", power=0.0, floor=1e-24, sigma=(1.0, 1.2, 1.4), warmup=500, clip=20.0)
_SMALL = _PROGRAM.replace(program="guided-cg", n=8, sigma=(1.2,), T=5, d=64, heads=4, batch=32)
_COLUMNS = {"rank": 8, "coarse": True, "memory": True}
_RECIPES: dict[str, tuple[str, Config]] = {
    "quickstart": (
        "Two minutes on a laptop: iterates that beat CG's first ones on systems of eight unknowns.",
        Config(n=8, T=8, d=64, heads=4, supervision="step+solution", lr=4e-3, steps=1500, warmup=100, threads=1),
    ),
    "cg-imitation": (
        "The paper's first setting, result supervision: the iterates of CG, nothing else (the paper's loss: power=1).",
        Config(supervision="result", lr=3e-3, final_lr=0.002, power=0.75),
    ),
    "cg-joint": (
        "The paper's first setting, joint supervision: CG's x, r and d, with the paper's loss.",
        Config(supervision="joint", eta=5e-4, lr=3e-3),
    ),
    "cg-accelerated": (
        "The paper's second setting: step + 10 solution, converging faster than CG (the paper's loss: power=1).",
        _ACCELERATED,
    ),
    "pcg-accelerated": (
        "The paper's second setting with Jacobi-preconditioned CG as the teacher (the paper's loss: power=1).",
        _ACCELERATED.replace(teacher="pcg"),
    ),
    "guided-cg": (
        "Conjugate gradients with a network that writes a preconditioner in every loop: half of CG's iterations.",
        # The rare systems with the widest diagonals make up the mean error at sigma 1.4; at 1.6 there are more of them.
        _PROGRAM.replace(program="guided-cg", sigma=(1.0, 1.2, 1.4, 1.6), T=10, steps=40_000),
    ),
    "learned-preconditioner": (
        "A network reads A once and writes a preconditioner, a diagonal plus one column; the rest is PCG.",
        _PROGRAM.replace(program="learned-pcg", T=6, pre_layers=2, steps=16_000),
    ),
    "guided-gcr": (
        "Nonsymmetric systems: GCR with a network that writes a preconditioner in every loop; its rival is GMRES.",
        _PROGRAM.replace(program="guided-gcr", program_options={"rank": 8}, family="nonsymmetric", T=8, steps=20_000),
    ),
    "guided-nonlinear": (
        "A x + x^3 = b: nonlinear CG with a network that writes a preconditioner in every loop.",
        _PROGRAM.replace(program="guided-nonlinear", family="cubic", T=8, steps=20_000),
    ),
    "guided-cgls": (
        "Least squares: CGLS with a network that writes a preconditioner in every loop.",
        _PROGRAM.replace(program="guided-cgls", program_options=_COLUMNS, family="least-squares", n=40, T=10).replace(
            steps=20_000
        ),
    ),
    "guided-eigen": (
        "The smallest eigenpair: conjugate directions, preconditioned by a network in every loop.",
        _PROGRAM.replace(
            program="guided-eigen", program_options={"rank": 8, "memory": True}, family="smallest-eigenpair"
        ).replace(T=12, steps=20_000),
    ),
    "guided-diffusion": (
        "guided-cg for diffusion with variable coefficients on a grid of 8 x 8; for 16 x 16, n=256.",
        _PROGRAM.replace(program="guided-cg", program_options={"rank": 8}, family="poisson-2d", n=64, T=10).replace(
            chunk=16, steps=20_000
        ),
    ),
    "learned-preconditioner-diffusion": (
        "A preconditioner of a diagonal plus 16 columns, for diffusion on a grid of 8 x 8; for 16 x 16, n=256.",
        _PROGRAM.replace(
            program="learned-pcg", program_options={"rank": 16, "coarse": True}, family="poisson-2d"
        ).replace(n=64, T=10, pre_layers=3, chunk=16, steps=20_000),
    ),
    "guided-quickstart": (
        "guided-cg in two minutes on a laptop, on systems of eight unknowns.",
        _SMALL.replace(lr=2e-3, steps=1500, warmup=100, threads=1),
    ),
}


def recipe(name: str, **changes: Any) -> Config:
    """A named training configuration, with some of its fields changed.

    Examples
    --------
    >>> import nlaformer as nf
    >>> nf.recipe("cg-accelerated", sigma=(1.0, 1.2, 1.4)).sigma
    (1.0, 1.2, 1.4)
    >>> nf.recipe("cg-accelerated", steps=50).warmup
    5
    """
    if "recipe" in changes:
        raise OptionError(f"recipe={shown(changes['recipe'])} is the name, which comes first: nf.recipe(name, n=20)")
    return look_up("recipe", name, _RECIPES)[1].adapted(recipe=name, **changes)


def recipes() -> tuple[str, ...]:
    """The names that ``recipe`` takes.

    Examples
    --------
    >>> import nlaformer as nf
    >>> nf.recipes()[:3]
    ('quickstart', 'cg-imitation', 'cg-joint')
    """
    return tuple(_RECIPES)


def description(name: str) -> str:
    """What a recipe trains, in a sentence or two.

    >>> description("cg-joint")
    "The paper's first setting, joint supervision: CG's x, r and d, with the paper's loss."
    """
    return look_up("recipe", name, _RECIPES)[0]
