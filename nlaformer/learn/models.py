"""The kinds of models that are trained: solvers that imitate, and programs with learned parts."""

from __future__ import annotations

import os
from typing import TypeAlias

from nlaformer import io, pretrained
from nlaformer.errors import OptionError
from nlaformer.learn import model, programs
from nlaformer.learn.config import Config
from nlaformer.learn.model import Solver, differing
from nlaformer.learn.programs import TrainedProgram

Model: TypeAlias = Solver | TrainedProgram


def untrained(config: Config) -> Model:
    """The model of a config before training.

    >>> import nlaformer as nf
    >>> type(untrained(nf.recipe("quickstart"))).__name__, type(untrained(nf.recipe("guided-quickstart"))).__name__
    ('Solver', 'TrainedProgram')
    """
    return model.initial(config) if config.program is None else programs.initial(config, config.make_program())


def starting_model(config: Config) -> Model:
    """The model that training starts from: ``untrained``, or one with the weights of the model ``config.start``."""
    fresh = untrained(config)
    if config.start is None:
        return fresh
    given = load_model(config.start)
    if others := differing(given, fresh):
        raise OptionError(
            f"start={config.start!r} has other weights than this config gives, first {others[0]}; a run that starts "
            "from a model keeps its n, d, heads, ffn, norm, read_norm and layers"
        )
    fresh.load_state_dict(given.state_dict())
    return fresh


def load_model(path: str | os.PathLike[str]) -> Model:
    """The trained model in a folder, or the bundled one of that name; saved algorithms and operations are refused."""
    path = pretrained.locate(path)
    kind, config, blocks, extra = io.read(path)
    if kind not in ("solver", "program"):
        raise OptionError(f"{path} is not a trained model but a compiled {kind}; train one first")
    with io.describing(path, kind):
        return (model if kind == "solver" else programs).from_config(config, blocks, **extra)


def load_solver(path: str | os.PathLike[str]) -> Solver:
    """The same of a solver; a program is refused too."""
    found = load_model(path)
    if not isinstance(found, Solver):
        raise OptionError(f"{path} is a program with a learned part; expected a solver, such as cg-accelerated")
    return found
