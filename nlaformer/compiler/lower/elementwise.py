"""Values that are given, sums, and functions of single entries."""

from __future__ import annotations

from nlaformer.compiler.lower.context import Lowering, lowers
from nlaformer.compiler.lower.moves import spread
from nlaformer.compiler.lower.sizes import in_rows
from nlaformer.compiler.machine.instructions import Relu
from nlaformer.compiler.terms import Term, Terms, add
from nlaformer.program.ir import Node


@lowers("input")
def lower_input(low: Lowering, node: Node) -> Terms:
    return (Term(1.0, low.plan.inputs[node.extra]),)


@lowers("state")
def lower_state(low: Lowering, node: Node) -> Terms:
    stored = low.plan.state[node.extra]
    if stored.logarithm:
        return (Term(1.0, low.machine.one, ((stored.row, 1.0),)),)
    return (Term(1.0, stored.row, () if stored.scale is None else ((stored.scale, 1.0),)),)


@lowers("constant")
def lower_constant(low: Lowering, node: Node) -> Terms:
    return low.numbers(node.extra)


@lowers("add")
def lower_add(low: Lowering, node: Node) -> Terms:
    return add(*(spread(low, argument, node.shape) for argument in node.args))


@lowers("positive")
def lower_positive(low: Lowering, node: Node) -> Terms:
    return low.value(node.args[0])


@lowers("relu")
def lower_relu(low: Lowering, node: Node) -> Terms:
    """An exact function of a value in rows that commutes with positive factors."""
    source, exponent = in_rows(low, node.args[0])
    if not source:
        return ()
    known = low.machine.like(source, scalar=not node.shape)
    return (Term(1.0, low.machine.add(Relu((source,)), low.machine.height(source), known), exponent),)
