"""What is shown of a trained model, as text and in a notebook: its sizes and its training, never its weights."""

from __future__ import annotations

from nlaformer.learn.config import Config
from nlaformer.report.html import panel, rows

_Facts = dict[str, str]


def facts(config: Config, numbers: int) -> _Facts:
    """The sizes and the training of a model with so many numbers for weights."""
    layers = f"{config.pre_layers} pre, {config.loop_layers} loop"
    if config.program is None:
        layers += f", {config.post_layers} post"
    sigma = f", sigma {', '.join(f'{value:g}' for value in config.sigma)}" if config.family == "spd" else ""
    return {
        "recipe": config.recipe,
        "systems": f"{config.family}{sigma}, n = {config.n}",
        "iterations": f"T = {config.T}",
        "layers": f"{layers}; d = {config.d}, {config.heads} heads",
        "weights": f"{numbers:,} numbers",
        "training": f"{config.steps:,} steps of {config.batch:,} systems",
    }


def as_line(title: str, told: _Facts) -> str:
    """A model in one line, for ``repr``."""
    return f"<{title}: {told['recipe']}, {told['systems']}, {told['iterations']}, {told['weights']}>"


def as_text(title: str, told: _Facts) -> str:
    """A model in a few lines, for ``print``."""
    wide = max(map(len, told)) + 2
    return "\n".join([title, *(f"  {name:{wide}}{value}" for name, value in told.items())])


def as_panel(title: str, told: _Facts) -> str:
    """A model in a notebook."""
    return panel(title, rows(told))
