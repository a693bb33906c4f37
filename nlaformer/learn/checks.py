"""What makes a config impossible: fields out of range, fields that contradict each other, sources that do not work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nlaformer.errors import NLAFormerError, OptionError
from nlaformer.learn.settings import spelt

if TYPE_CHECKING:
    from nlaformer.learn.config import Config

_Limit = tuple[Callable[[Any], bool], str]


def _at_least(least: int) -> _Limit:
    return (lambda value: value >= least), f"be at least {least}"


_LIMITS: dict[str, _Limit] = {
    **dict.fromkeys(("pre_layers", "post_layers", "warmup", "eta", "lambda_"), _at_least(0)),
    **dict.fromkeys(("T", "d", "heads", "ffn", "loop_layers", "window", "steps", "batch", "chunk"), _at_least(1)),
    "threads": _at_least(1),
    "n": _at_least(2),
    "seed": ((lambda value: 0 <= value < 2**63), "be at least 0 and below 2^63"),
    **dict.fromkeys(("output_scale", "floor", "lr", "clip"), ((lambda value: value > 0), "be positive")),
    **dict.fromkeys(("power", "final_lr"), ((lambda value: 0 <= value <= 1), "lie in [0, 1]")),
    **dict.fromkeys(("beta1", "beta2"), ((lambda value: 0 <= value < 1), "lie in [0, 1)")),
    "sigma": ((lambda value: value and all(0 < v < math.inf for v in value)), "be one or more positive numbers"),
}


def complaints(config: Config, sources: bool = True) -> list[str]:
    """Everything that makes a config impossible, one sentence each.

    Without ``sources`` the family, the teacher and the program are not looked for: a model is loaded without them.
    """
    given = {field.name: getattr(config, field.name) for field in fields(config)}
    found = [
        f"{name}={given[name]} must {expected}"
        for name, (valid, expected) in _LIMITS.items()
        if given[name] is not None and not valid(given[name])
    ]
    found += [f"{name}={v} must be finite" for name, v in given.items() if isinstance(v, float) and math.isinf(v)]
    found += [
        f"{spelt(name)}={given[name]} has no effect: {reason}"
        for name, reason in config.without_effect().items()
        if given[name] != getattr(type(config), name)
    ]
    return found + _contradictions(config) + (_source_complaints(config) if sources else [])


def _contradictions(config: Config) -> list[str]:
    """Fields that do not go together."""
    found = []
    if config.heads > 0 and config.d % config.heads:
        found.append(f"d={config.d} is not divisible by heads={config.heads}")
    if config.window is not None and config.window > config.T + 1:
        found.append(f"window={config.window} exceeds the T+1={config.T + 1} iterates")
    if config.warmup > config.steps:
        found.append(f"warmup={config.warmup} exceeds steps={config.steps}; set warmup too, to at most that")
    if config.truncate and not config.inject:
        found.append("truncate=True needs inject=True: without it the read-in would get no gradient")
    if not config.shared and config.loops < 1:
        found.append(f"shared=False needs at least one loop, T={config.T} leaves {config.loops}")
    if config.program is not None and config.supervision == "joint":
        found.append("supervision=joint needs the probe of a solver; a program has none")
    if config.program is not None and config.precision in ("bf16", "bf16x3"):
        found.append(f"precision={config.precision}: the networks of a program compute in tf32 or float32")
    return found


def _source_complaints(config: Config) -> list[str]:
    """What is wrong with the family, the teacher and the program."""
    # With an n and a sigma that are valid here: what is wrong with them is said elsewhere.
    sigma = tuple(value for value in config.sigma if 0 < value < math.inf) or (1.0,)
    valid, found = dataclasses.replace(config, n=max(config.n, 1), sigma=sigma), []
    makes: list[Callable[[], object]] = [valid.make_family]
    makes += [valid.make_teacher] if config.imitates else []
    makes += [lambda: _check_program(valid)] if config.program is not None else []
    for make in makes:
        try:
            make()
        except NLAFormerError as error:
            found.append(str(error))
    return found


def _check_program(config: Config) -> None:
    """Refuse a program that cannot be trained, or that a setting has no effect on."""
    import torch

    from nlaformer.learn.programs import initial
    from nlaformer.program.language import KINDS

    smallest = dataclasses.replace(config, d=1, heads=1, ffn=1, pre_layers=1, loop_layers=1, seed=0)
    with torch.device("meta"):  # shapes alone
        program = initial(smallest, config.make_program()).program
    if further := program.inputs.keys() - KINDS.keys():
        raise OptionError(
            f"program={config.program} takes {', '.join(sorted(further))}; a family draws A and b alone, so a program "
            "that is trained takes A, b and x0"
        )
    if (kind := program.answer.kind) != "vector":
        raise OptionError(f"program={config.program} gives a {kind}; the answers of a family are vectors")
    if config.loop_layers != type(config).loop_layers and all(part.method == "start" for part in program.parts):
        raise OptionError(f"loop_layers={config.loop_layers} has no effect: {config.program} has no part in step")
