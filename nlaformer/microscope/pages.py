"""A recording as a page to look at, and as a panel in a notebook."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nlaformer.arrays import FloatArray, to_tensor, whole
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.errors import OptionError
from nlaformer.express.operation import Operation
from nlaformer.learn.model import Solver
from nlaformer.learn.programs import TrainedProgram
from nlaformer.microscope.places import Model
from nlaformer.report.html import panel, rows, tag
from nlaformer.report.recording import RecordedLayer, recording_page

if TYPE_CHECKING:
    from nlaformer.microscope.recording import Trace


@dataclass(frozen=True)
class About:
    """What was recorded: a title, the names and heights of P's rows, and what the layers of each block compute."""

    title: str
    rows: tuple[tuple[str, int], ...] = ()
    schedule: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model) -> About:
        if isinstance(model, Operation):
            return cls(f"operation {model.name}, n = {model.n}", tuple(model.layout.registers))
        if isinstance(model, Algorithm):
            words = {block: ["; ".join(each) for each in layers]
                     for block, layers in model.config.schedule.items()}  # fmt: skip
            return cls(f"algorithm {model.name}, n = {model.n}", tuple(model.layout.registers), words)
        if isinstance(model, Solver):
            return cls(f"solver {model.config.recipe}, n = {model.config.n}")
        return cls(f"program {model.program.name}" if isinstance(model, TrainedProgram) else "NLAFormer")

    def computes(self, name: str) -> str:
        """What a layer computes, in words, where that is known; ``name`` is as in ``loop[3].layer[0]``."""
        where, _, number = name.removesuffix("]").rpartition(".layer[")
        layers = self.schedule.get(where.partition("[")[0], ())
        return layers[int(number)] if int(number) < len(layers) else ""


def trace_page(trace: Trace[Any], system: int) -> str:
    """The page of one system of a recording."""
    count = int(np.prod(trace.batch))
    if not 0 <= whole("system", system, 0) < count:
        raise OptionError(f"system is {system}; this recording has {count}, counted from 0")
    return recording_page(trace.about.title, _layers(trace, system), _states(trace, system), trace.about.rows)


def _layers(trace: Trace[Any], system: int) -> list[RecordedLayer]:
    """Every layer of which something was kept, in the order of the run."""
    found: dict[str, dict[str, FloatArray]] = {}
    for name, value in trace.kept.items():
        where, _, rest = name.rpartition(".layer[")
        number, _, part = rest.partition("].")
        if where:
            layer = found.setdefault(f"{where}.layer[{number}]", {})
            if part in ("input", "output", "attention.weights"):
                layer[part.removeprefix("attention.")] = value[system].double().cpu().numpy()
    return [RecordedLayer(name, trace.about.computes(name), _step(name), **parts) for name, parts in found.items()]


def _step(name: str) -> int:
    """The passes of the loop that were complete before a layer, by its name."""
    number = re.search(r"(?:loop|post)\[(\d+)\]", name)
    return 0 if number is None else int(number[1])


def _states(trace: Trace[Any], system: int) -> dict[str, FloatArray]:
    """The answer and the registers, or what the probes read, at every step."""
    known = {} if trace.iterates is None else {"x": trace.iterates}
    known |= trace.registers | {f"probe of {name}": value for name, value in trace.probes.items()}
    arrays = {name: to_tensor(name, value).double().cpu().numpy() for name, value in known.items()}
    return {name: array.reshape(-1, *array.shape[len(trace.batch) :])[system] for name, array in arrays.items()}


def _size(bytes_kept: int) -> str:
    return f"{bytes_kept / 1e6:,.1f} MB" if bytes_kept >= 1e5 else f"{bytes_kept / 1e3:,.1f} kB"


def trace_panel(trace: Trace[Any]) -> str:
    """What was recorded, in a few lines."""
    passes = list(dict.fromkeys(name.rpartition(".layer[")[0] for name in trace if ".layer[" in name))
    told = {
        "kept": f"{len(trace):,} intermediates, {_size(trace.memory)}",
        "systems": str(trace.batch) if trace.batch else "one",
        "passes": ", ".join(passes[:4]) + ", ..." * (len(passes) > 4),
        "registers": ", ".join(trace.registers),
        "probes": ", ".join(trace.probes),
    }
    hint = tag("div", "trace.to_html() is a page that shows every layer")
    return panel(f"Trace of {trace.about.title}", rows({name: text for name, text in told.items() if text}), hint)
