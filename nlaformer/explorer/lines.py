"""The lines of a program beside the instructions that its transformer carries out.

The compiler notes for every instruction the line that first needed it. Here the stages before the weights run once
more, and the lines are put in the order of ``AlgorithmConfig.schedule``: instructions, then what the block writes.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping

from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.analysis import analyse
from nlaformer.compiler.filled import Network
from nlaformer.compiler.graph import Node
from nlaformer.compiler.instructions import Block, Target
from nlaformer.compiler.places import Place
from nlaformer.compiler.schedule import BLOCKS, schedule, schedule_data
from nlaformer.compiler.select import select
from nlaformer.compiler.trace import trace_program
from nlaformer.errors import CompileError
from nlaformer.program.language import Program

_METHODS = ("start", "step", "finish")


def source(kind: type[Program]) -> list[str]:
    """The three methods of a program as they are written, without the hints of types."""
    return [text for _, text in _numbered(kind)]


def _numbered(kind: type[Program]) -> list[tuple[int, str]]:
    """The lines of its methods with their numbers in the file."""
    found: list[tuple[int, str]] = []
    for method in _METHODS:
        if method in vars(kind):
            block, first = inspect.getsourcelines(vars(kind)[method])
            lines = textwrap.dedent("".join(block)).rstrip().split("\n")
            found += [(first + k, re.sub(": Any| -> _States| -> Any", "", text)) for k, text in enumerate(lines)]
    return found


def lines(
    program: Program, compiled: Algorithm, networks: Mapping[str, Network] | None = None
) -> dict[str, list[list[int]]]:
    """For every instruction of each layer the number of its line in ``source``, from 0; -1 for a line elsewhere.

    ``networks`` fill the learned parts of the program, as they do in the compiled algorithm.
    """
    config, kind = compiled.config, type(program)
    analysis = analyse(trace_program(program, config.n))
    traced = analysis.lowered
    target = Target(config.n, compiled.dtype, config.order, config.bound)
    selection = select(analysis, target, networks or {})
    layers = schedule(selection)
    if schedule_data(selection, layers) != config.schedule:
        raise CompileError(f"{compiled.name} was not compiled from {kind.__name__} as it is written now")
    numbers = {number: k for k, (number, _) in enumerate(_numbered(kind))}
    file = inspect.getsourcefile(kind)

    def at(place: Place | None) -> int:
        return -1 if place is None or place.file != file else numbers.get(place.line, -1)

    found: dict[str, list[list[int]]]
    found = {block: [[at(i.place) for i in layer] for layer in layers.layers[block]] for block in BLOCKS}
    written: dict[Block, dict[str, Node]] = {"pre": traced.start, "loop": traced.step, "post": {}}
    for block, values in written.items():
        if not found[block]:
            continue
        states = {rows.register: values[name].place for name, rows in selection.state.items() if name in values}
        found[block][-1] += [at(states.get(row)) for row in selection.writes[block]]
    return found
