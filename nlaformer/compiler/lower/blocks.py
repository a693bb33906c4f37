"""A program to a plan of the machine: start, step and finish, and what each block writes.

What ``step`` computes from the inputs alone is computed once, in the pre block. A block ends with what it writes:
vectors and matrices at fixed scale as they are, floating ones divided by their group's new scale, positive scalars as
logarithms, other scalars divided by their own size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nlaformer.compiler.lower import elementwise, logs, moves, network, products
from nlaformer.compiler.lower.context import RULES, Lowering
from nlaformer.compiler.lower.facts import Facts, facts_of
from nlaformer.compiler.lower.normal import normal
from nlaformer.compiler.lower.sizes import common_exponent, in_rows, maximum, normalized, peak
from nlaformer.compiler.machine.instructions import Attend, Relu
from nlaformer.compiler.machine.rows import STOP, UNKNOWN, UNKNOWN_SCALAR, ZERO, Block, Plan, Range, Stored, Target
from nlaformer.compiler.terms import Combination, Term, combine
from nlaformer.errors import CompileError
from nlaformer.program.data import ProgramGraph
from nlaformer.program.ir import Node

RULE_MODULES = (elementwise, logs, moves, network, products)  # whose rules are entered when they are imported


def lower(program: ProgramGraph, target: Target, networks: Mapping[str, Any] | None = None) -> tuple[Plan, Facts]:
    """The plan of a program, and what was found out about it; ``networks`` fill its learned parts."""
    facts = facts_of(normal(program))
    problems = [*facts.problems]
    reason = "there are no weights for it; Program.run computes it"
    problems += [(node, f"{node.op}: {reason}") for node in facts.core.nodes if node.op not in RULES]
    if problems:
        node, text = problems[0]
        raise CompileError(f"{program.name} cannot be compiled.\n  {node.line}\n    {text}")
    low = Lowering(facts, target, networks or {})
    _write_states(low, "pre", facts.core.start)
    _write_states(low, "loop", facts.core.step)
    low.machine.block, answer = "post", facts.core.answer
    low.plan.answer = low.plan.state[answer.extra] if answer.op == "state" else _write_answer(low, answer)
    return low.plan, facts


def _write_states(low: Lowering, block: Block, nodes: Mapping[str, Node]) -> None:
    machine = low.machine
    machine.block = block
    targets: dict[int | None, Combination] = {None: ()}
    for group, names in low.floating.items():
        targets[group] = machine.writes[block][low.scale_row[group]] = _new_scale(low, group, names, nodes)
    for name, node in nodes.items():
        home = low.group_of(low.core.state[name])
        stopped = [(1.0, ((row, 1.0),)) for row, cleared in low.stops[block].items() if name in cleared]
        with machine.within(block, node.line):
            _write(low, low.plan.state[name], node, combine((1.0, targets[home]), *stopped))


def _write(low: Lowering, stored: Stored, node: Node, target: Combination = ()) -> None:
    """A block's last FFN writes a value, a vector divided by e^target, into its rows."""
    one, writes = low.machine.one, low.machine.writes[low.machine.block]
    if stored.logarithm:
        c, exponent = logs.logarithm(low, node, "numerator")
        writes[stored.row] = combine((1.0, exponent), (math.log(c), ((one, 1.0),)))
    elif stored.kind == "scalar" and stored.scale is not None:
        source, exponent = in_rows(low, node)
        log: Combination
        if len(source) == 1 and source[0][0] == one:
            log = ((one, math.log(abs(source[0][1]))),)
            source = ((one, math.copysign(1.0, source[0][1])),)
        else:
            source, log = normalized(low, source, 0)
        writes[stored.row], writes[stored.scale] = source, combine((1.0, exponent), (1.0, log))
    else:
        writes[stored.row] = combine(*((c, _moved(low, row)) for row, c in low.stored(low.value(node), target)))


def _moved(low: Lowering, number: int) -> Combination:
    """A row; of a view a copy, by a head: what it shows may then be cleared before something else stands there."""
    row = low.machine.rows[number]
    if not row.view or low.machine.block != "loop":
        return ((number, 1.0),)
    shown = [part for part in row.view if part]
    if not shown:
        return ()  # zeros
    pairs = tuple((part[1], k) for k, part in enumerate(row.view) if part)
    source = ((shown[0][0], 1.0),)
    tokens = tuple(range(1, low.n + 1))
    return ((low.machine.add(Attend((source,), ((tokens, pairs),)), row.height, row.range), 1.0),)


def _write_answer(low: Lowering, node: Node) -> Stored:
    """The answer in rows of its own, with a row for their scale if they have one; a power of e by its logarithm."""
    machine, kind = low.machine, ("scalar", "vector", "matrix")[node.ndim]
    value, writes, height = low.value(node), machine.writes["post"], low.height(node)
    power = len(value) == 1 and low.is_exponential(node) and value[0].coefficient > 0 and not low.is_partial(node)
    if power or (not node.shape and low.facts.is_positive(node)):
        stored = Stored(kind, machine.row("log answer", "input", height, Range()), logarithm=True)
        _write(low, stored, node)
        return stored
    source, exponent = in_rows(low, node)
    row = machine.row("answer", "input", height, UNKNOWN)
    writes[row] = source
    if not exponent:
        return Stored(kind, row)
    scale = machine.row("scale of answer", "input", range=UNKNOWN_SCALAR)
    writes[scale] = exponent
    return Stored(kind, row, scale)


# --- the new scale of a group ---


def _new_scale(low: Lowering, group: int, names: list[str], nodes: Mapping[str, Node]) -> Combination:
    """The logarithm of a group's new scale: half of a dot the program makes anyway, or of a norm at entry.

    A norm at entry will do for combinations of the group's own states; of anything else the size is measured.
    """
    machine, one = low.machine, low.machine.one
    own = low.own_scale(group)
    if own is not None:
        c, exponent = logs.logarithm(low, nodes[own], "numerator")
        return combine((0.5, _without_stops(low, exponent, names)), (0.5 * math.log(c), ((one, 1.0),)))
    scale = low.scale_row[group]
    terms = [term for name in names for term in low.value(nodes[name])]
    registers = {low.plan.state[name].row for name in names}
    begun = nodes if machine.block == "pre" else low.core.state
    if machine.block == "pre":
        rows = [low.stored(low.value(nodes[name])) for name in names]
        base: Combination = ()
        simple = all(not term.exponent for term in terms) and all(machine.calibrated(row) for row in rows)
    else:
        rows = [((low.plan.state[name].row, 1.0),) for name in names]
        base = ((scale, 1.0),)
        simple = all(term.register in registers and dict(term.exponent).get(scale) == 1.0 for term in terms)
        simple = simple and any(term.exponent == base for term in terms)
    rows = [row for row in rows if row]
    if not simple or nodes[names[0]].ndim != 1:
        return _measured_scale(low, names, nodes)
    squares = combine((1.0, {products.dot_row(low, row, row): 1.0 for row in rows}.items()))
    seeds = {id(begun[name]) for name in names}
    c, log = logs.log_of_rows(low, squares, "numerator", True, logs.vanishing_states(low, seeds, {group}))
    growth = maximum(low, [(), *_growths(low, terms, base)])
    return combine((1.0, base), (0.5, log), (0.5 * math.log(c), ((one, 1.0),)), (1.0, growth))


def _without_stops(low: Lowering, exponent: Combination, names: list[str]) -> Combination:
    """A logarithm without its stop: what is cleared is 0 at any scale.

    Where not all the states are, it is 0 and not -ZERO where the stop is whole: their scale stays.
    """
    machine, stops = low.machine, logs.stops_of(low, exponent)
    parts = [(1.0, exponent), (2.0, stops)]
    for stop, _ in stops:
        if not low.stops[machine.block][stop].issuperset(names):
            over = combine((1.0, ((stop, 1.0),)), (-STOP, ((machine.one, 1.0),)))
            beyond = machine.add(Relu((over,)), 1, UNKNOWN_SCALAR)
            parts.append((ZERO / STOP, ((stop, 1.0), (beyond, -1.0))))
    return combine(*parts)


def _growths(low: Lowering, terms: list[Term], base: Combination) -> list[Combination]:
    """What a step multiplies rows of a group by, as far as that is known when it begins: A has norm 1."""
    rows = low.machine.rows
    exponents = (combine((1.0, term.exponent), (-1.0, base)) for term in terms)
    return [e for e in exponents if e and all(rows[row].block == "input" for row, _ in e)]


def _measured_scale(low: Lowering, names: list[str], nodes: Mapping[str, Node]) -> Combination:
    """The logarithm of the largest entry of the new states, which are put into rows for it."""
    machine, peaks = low.machine, []
    for name in names:
        node = nodes[name]
        with machine.within(machine.block):
            value = low.value(node)
            exponent = common_exponent(low, value, node)
            source = low.stored(value, exponent)
        low.has_value(node, tuple(Term(c, row, exponent) for row, c in source))
        if source:
            peaks.append(combine((1.0, exponent), (1.0, peak(low, source, node.ndim))))
    # Between the largest entry and the norm of a vector of equal entries.
    shift = (0.25 * math.log(low.n), ((machine.one, 1.0),))
    return combine((1.0, maximum(low, peaks)), shift) if peaks else ()
