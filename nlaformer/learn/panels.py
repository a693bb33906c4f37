"""What a notebook shows of a trained model: its sizes and its training, never its weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from nlaformer.learn.config import Config
from nlaformer.report.html import panel, rows


def model_panel(title: str, config: Config, model: nn.Module, further: Mapping[str, str] | None = None) -> str:
    """The panel of a model; ``further`` are lines of its own."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    layers = f"{config.pre_layers} pre, {config.loop_layers} loop"
    if config.program is None:
        layers += f", {config.post_layers} post"
    sigma = f", sigma {', '.join(f'{value:g}' for value in config.sigma)}" if config.family == "spd" else ""
    told = {
        "recipe": config.recipe,
        "systems": f"{config.family}{sigma}, n = {config.n}",
        "iterations": f"T = {config.T}",
        "layers": f"{layers}; d = {config.d}, {config.heads} heads",
        "weights": f"{weights:,} numbers",
        "training": f"{config.steps:,} steps of {config.batch:,} systems",
    }
    return panel(title, rows(told | dict(further or {})))
