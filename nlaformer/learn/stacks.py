"""Stacks: which configs can train together as one program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from nlaformer import problems
from nlaformer.errors import OptionError
from nlaformer.learn.config import Config

# Fields that may differ within a stack: they become tensors over the members, or act on a member's data alone.
_PER_MEMBER = frozenset({
    "recipe", "family", "family_options", "sigma", "output_scale", "supervision", "teacher", "teacher_options", "probe",
    "eta", "lambda_", "window", "power", "floor", "lr", "warmup", "final_lr", "clip", "start", "seed",
})  # fmt: skip


def shape_of(config: Config) -> dict[str, Any]:
    """The fields a stack must share: those that give the program its shape."""
    shared = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in _PER_MEMBER}
    if config.program is None:
        shared["entries of the probed states"] = config.make_teacher().entries(config.n)
    else:
        shared["whether a teacher's iterates are targets"] = config.imitates
        family = config.make_family()
        if type(family).error is not problems.Family.error:  # one program has one measure
            shared |= {"family": config.family, "family_options": config.family_options}
    return shared | ({"window": config.window} if config.truncate else {})


def check_stack(configs: Sequence[Config]) -> None:
    """Refuse configs that cannot train as one program; the error names every field that differs."""
    if not configs:
        raise OptionError("a stack needs at least one config")
    shapes = [shape_of(config) for config in configs]
    names = sorted({name for shape in shapes for name in shape})
    mixed = {name: list(dict.fromkeys(shape.get(name) for shape in shapes)) for name in names}
    if differing := [f"{name}: {', '.join(map(str, values))}" for name, values in mixed.items() if len(values) > 1]:
        raise OptionError(
            "configs train as one program only if these fields agree:\n"
            + "\n".join(f"- {line}" for line in differing)
            + "\ntrain them one after another, or make them equal"
        )
