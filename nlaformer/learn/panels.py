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


class Shown:
    """A model in one line, in a few lines, and in a notebook."""

    @property
    def _shown(self) -> tuple[str, _Facts]:
        """What is shown of it: a title, and facts by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, told = self._shown
        return f"<{title}: {told['recipe']}, {told['systems']}, {told['iterations']}, {told['weights']}>"

    def __str__(self) -> str:
        title, told = self._shown
        wide = max(map(len, told)) + 2
        return "\n".join([title, *(f"  {name:{wide}}{value}" for name, value in told.items())])

    def _repr_html_(self) -> str:
        title, told = self._shown
        return panel(title, rows(told))
