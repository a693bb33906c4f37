"""The lines of a program beside the instructions that its transformer carries out.

Every instruction has the line that first needed it. Here the stages before the weights run once more, and the lines
are put in the order of ``AlgorithmConfig.schedule``: instructions, then what the block writes.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping

from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.lower.blocks import lower
from nlaformer.compiler.machine.networks import Network
from nlaformer.compiler.machine.rows import BLOCKS, Block, Target
from nlaformer.compiler.machine.schedule import in_words, schedule
from nlaformer.errors import CompileError
from nlaformer.program.ir import Line, Node
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
    config, kind, graph = compiled.config, type(program), program.graph(compiled.n)
    plan, _ = lower(graph, Target(config.n, compiled.dtype, config.order, config.bound), networks)
    layers = schedule(plan)
    if in_words(plan, layers) != config.schedule:
        raise CompileError(f"{compiled.name} was not compiled from {kind.__name__} as it is written now")
    numbers = {number: k for k, (number, _) in enumerate(_numbered(kind))}
    file = inspect.getsourcefile(kind)

    def at(line: Line | None) -> int:
        return -1 if line is None or line.file != file else numbers.get(line.number, -1)

    found: dict[str, list[list[int]]]
    found = {block: [[at(each.line) for each in layer] for layer in layers.layers[block]] for block in BLOCKS}
    written: dict[Block, Mapping[str, Node]] = {"pre": graph.start, "loop": graph.step, "post": {}}
    for block, values in written.items():
        if not found[block]:
            continue
        states = {stored.row: values[name].line for name, stored in plan.state.items() if name in values}
        found[block][-1] += [at(states.get(row)) for row in plan.machine.writes[block]]
    return found
