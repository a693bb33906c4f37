"""From the graph to instructions: each node becomes a value; a value that must be in a row becomes an instruction.

``start``, ``step`` and ``finish`` are selected in this order. What ``step`` computes from the inputs alone is computed
once, in the pre block. A block ends with what it writes: vectors and matrices at fixed scale as they are, floating ones
divided by their group's new scale, positive scalars as logarithms, other scalars divided by their own size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from nlaformer.compiler.analysis import Analysis
from nlaformer.compiler.filled import Network
from nlaformer.compiler.graph import Node
from nlaformer.compiler.instructions import TRIP, ZERO, Block, Selection, StateRows, Target
from nlaformer.compiler.products import Products
from nlaformer.compiler.terms import Combination, Term, combine
from nlaformer.compiler.trace import refuse


def select(analysis: Analysis, target: Target, networks: Mapping[str, Network]) -> Selection:
    """Instructions for start, step and finish; ``networks`` fill the learned parts."""
    traced = analysis.lowered
    without = [node for node in traced.nodes if not hasattr(_Selector, f"_{node.op}")]
    reason = "there are no weights for it; Program.run computes it"
    problems = [f"{node.place}\n    {node.op}: {reason}" for node in without]
    refuse(traced.program, problems)
    return _Selector(analysis, target, networks).select()


class _Selector(Products):
    """One pass over start, step and finish."""

    # --- the blocks ---

    def select(self) -> Selection:
        self._write_states("pre", self.traced.start)
        self._write_states("loop", self.traced.step)
        self.block, answer = "post", self.traced.answer
        self.out.answer = self.out.state[answer.extra] if answer.op == "state" else self._write_answer(answer)
        return self.out

    def _write_states(self, block: Block, nodes: dict[str, Node]) -> None:
        self.block = block
        targets: dict[int | None, Combination] = {None: ()}
        for group, names in self.floating.items():
            targets[group] = self.out.writes[block][self.scale_row[group]] = self._new_scale(group, names, nodes)
        for name, node in nodes.items():
            home = self.group_of(self.traced.state[name])
            tripped = [(1.0, ((row, 1.0),)) for row, cleared in self.trips[block].items() if name in cleared]
            with self.within(block, node.place):
                self._write(self.out.state[name], node, combine((1.0, targets[home]), *tripped))

    def _write(self, rows: StateRows, node: Node, target: Combination = ()) -> None:
        """A block's last FFN writes a value, a vector divided by e^target, into its rows."""
        writes = self.out.writes[self.block]
        if rows.logarithm:
            factor, exponent = self.logarithm(node, "num")
            writes[rows.register] = combine((1.0, exponent), (math.log(factor), ((self.one, 1.0),)))
        elif rows.kind == "scalar" and rows.scale is not None:
            source, exponent = self._in_row(node)
            log: Combination
            if len(source) == 1 and source[0][0] == self.one:
                log = ((self.one, math.log(abs(source[0][1]))),)
                source = ((self.one, math.copysign(1.0, source[0][1])),)
            else:
                source, log = self.normalized(source, "scalar")
            writes[rows.register], writes[rows.scale] = source, combine((1.0, exponent), (1.0, log))
        else:
            writes[rows.register] = self.materialize(self.value(node), target)

    def _write_answer(self, node: Node) -> StateRows:
        """The answer in rows of its own, with a row for their scale if they have one; a power of e by its logarithm."""
        height = self.n if node.kind == "matrix" else 1
        value, writes = self.value(node), self.out.writes["post"]
        power = len(value) == 1 and self._is_exponential(node) and value[0].coefficient > 0
        if power or (node.kind == "scalar" and self.analysis.is_positive(node)):
            rows = StateRows(node.kind, self._register("log answer", "input", height=height), logarithm=True)
            self._write(rows, node)
            return rows
        source, exponent = self._in_row(node)
        row = self._register("answer", "input", height=height)
        writes[row] = source
        if not exponent:
            return StateRows(node.kind, row)
        scale = self._register("scale of answer", "input", scalar=True)
        writes[scale] = exponent
        return StateRows(node.kind, row, scale)

    def _new_scale(self, group: int, names: list[str], nodes: dict[str, Node]) -> Combination:
        """The logarithm of a group's new scale: half of a dot the program makes anyway, or of a norm at entry.

        A norm at entry will do for combinations of the group's own states; of anything else the size is measured.
        """
        own = self._own_scale(group)
        if own is not None:
            factor, exponent = self.logarithm(nodes[own], "num")
            return combine((0.5, self._untripped(exponent, names)), (0.5 * math.log(factor), ((self.one, 1.0),)))
        scale, kind = self.scale_row[group], nodes[names[0]].kind
        terms = [term for name in names for term in self.value(nodes[name])]
        states = {self.out.state[name].register for name in names}
        seeds = {id((nodes if self.block == "pre" else self.traced.state)[name]) for name in names}
        if self.block == "pre":
            rows = [self.materialize(self.value(nodes[name])) for name in names]
            base: Combination = ()
            simple = all(not term.exponent for term in terms) and all(self._tame(row) for row in rows)
        else:
            rows = [((self.out.state[name].register, 1.0),) for name in names]
            base = ((scale, 1.0),)
            simple = all(term.register in states and dict(term.exponent).get(scale) == 1.0 for term in terms)
            simple = simple and any(term.exponent == base for term in terms)
        rows = [row for row in rows if row]
        if not simple or kind != "vector":
            return self._measured_scale(names, nodes)
        squares = combine((1.0, {self._dot_of(row, row, spread=False): 1.0 for row in rows}.items()))
        factor, log = self._log_of(squares, "num", True, self._vanishing_states(seeds, {group}))
        growth = self.maximum([(), *self._growths(terms, base)])
        return combine((1.0, base), (0.5, log), (0.5 * math.log(factor), ((self.one, 1.0),)), (1.0, growth))

    def _untripped(self, exponent: Combination, names: list[str]) -> Combination:
        """A logarithm without its trip: what is cleared is 0 at any scale.

        Where not all the states are, it is 0 and not -ZERO where the trip is whole: their scale stays.
        """
        parts = [(1.0, exponent), (2.0, self._trips(exponent))]
        for trip, _ in self._trips(exponent):
            if not self.trips[self.block][trip].issuperset(names):
                over = combine((1.0, ((trip, 1.0),)), (-TRIP, ((self.one, 1.0),)))
                beyond = self.emit("relu", [over], scalar=True, tame=False)
                parts.append((ZERO / TRIP, ((trip, 1.0), (beyond, -1.0))))
        return combine(*parts)

    def _growths(self, terms: list[Term], base: Combination) -> list[Combination]:
        """What a step multiplies rows of a group by, as far as that is known when it begins: A has norm 1."""
        exponents = (combine((1.0, term.exponent), (-1.0, base)) for term in terms)
        return [e for e in exponents if e and all(self.out.registers[r].block == "input" for r, _ in e)]

    def _measured_scale(self, names: list[str], nodes: dict[str, Node]) -> Combination:
        """The logarithm of the largest entry of the new states, which are put into rows for it."""
        peaks = []
        for name in names:
            with self.within(self.block):
                value = self.value(nodes[name])
                exponent = self.common_exponent(value, nodes[name])
                source = self.materialize(value, exponent)
            self.values[(self._home(nodes[name]), id(nodes[name]))] = tuple(
                Term(c, register, exponent) for register, c in source
            )
            if source:
                peaks.append(combine((1.0, exponent), (1.0, self._peak(source, nodes[name].kind))))
        # Between the largest entry and the norm of a vector of equal entries.
        return combine((1.0, self.maximum(peaks)), (0.25 * math.log(self.n), ((self.one, 1.0),))) if peaks else ()
