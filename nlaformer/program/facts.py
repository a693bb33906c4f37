"""Rules by which facts pass through a primitive.

*Units*: by which powers of A and b a value is multiplied when these are; linear in those and in some unknowns. A rule
takes the node, the exponents of its arguments and ``vanishes``, which notes an exponent that must be 0.

*Signs*: whether a value is positive. A rule takes the node and ``known``, which tells it of other nodes. With
``or_zero``, 0 counts as well. The logarithm of a scalar that may vanish must not be its only trace, so a scalar that is
0 or positive is not positive; entries of arrays are kept as they are, and are.

*What vanishes*: whether a value is 0, from whether its arguments are; Python's ``all`` and ``any`` are such rules.

*Kin*: the arguments of a vector or matrix that share its scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from nlaformer.program.ir import Node, is_input, is_number, is_transpose

# --- units ---

Unit = dict[str, Fraction]
UnitRule = Callable[[Node, Sequence[Unit], Callable[[Unit], None]], Unit]


def combine(u: Unit, v: Unit, factor: Fraction | int) -> Unit:
    """U + factor v."""
    total = dict(u)
    for name, coefficient in v.items():
        total[name] = total.get(name, Fraction(0)) + factor * coefficient
    return {name: coefficient for name, coefficient in total.items() if coefficient}


def unit_same(node: Node, units: Sequence[Unit], vanishes: Callable[[Unit], None]) -> Unit:
    return units[0]


def unit_none(node: Node, units: Sequence[Unit], vanishes: Callable[[Unit], None]) -> Unit:
    return {}


def unit_without(node: Node, units: Sequence[Unit], vanishes: Callable[[Unit], None]) -> Unit:
    """Of a function of numbers without a unit, such as exp."""
    vanishes(units[0])
    return {}


def unit_sum(node: Node, units: Sequence[Unit], vanishes: Callable[[Unit], None]) -> Unit:
    """What is added, or stands in one array, has one unit."""
    for other in units[1:]:
        vanishes(combine(units[0], other, -1))
    return units[0]


def unit_product(node: Node, units: Sequence[Unit], vanishes: Callable[[Unit], None]) -> Unit:
    return combine(units[0], units[1], 1)


def unit_quotient(node: Node, units: Sequence[Unit], vanishes: Callable[[Unit], None]) -> Unit:
    return combine(units[0], units[1], -1)


def unit_root(node: Node, units: Sequence[Unit], vanishes: Callable[[Unit], None]) -> Unit:
    return {name: coefficient / 2 for name, coefficient in units[0].items()}


# --- signs ---

SignRule = Callable[[Node, Callable[[Node], bool], bool], bool]


def sign_unknown(node: Node, known: Callable[[Node], bool], or_zero: bool) -> bool:
    return False


def sign_always(node: Node, known: Callable[[Node], bool], or_zero: bool) -> bool:
    return True


def sign_kept(node: Node, known: Callable[[Node], bool], or_zero: bool) -> bool:
    """Positive where all arguments are."""
    if node.op == "move" and node.extra.min(initial=0) < 0 and not or_zero and not node.shape:
        return False  # a scalar 0
    return all(map(known, node.args))


def sign_of_zero(node: Node, known: Callable[[Node], bool], or_zero: bool) -> bool:
    """Of what is 0 or positive."""
    return or_zero or bool(node.shape)


def sign_of_constant(node: Node, known: Callable[[Node], bool], or_zero: bool) -> bool:
    if not node.extra.any():
        return or_zero or bool(node.shape)
    return bool((node.extra > 0).all())


def sign_of_product(node: Node, known: Callable[[Node], bool], or_zero: bool) -> bool:
    """Of positive factors, a square, or a product u . w u with a positive weight w."""
    u, v = node.args
    if node.op == "matmul" and not u.ndim == v.ndim == 1:
        return known(u) and known(v)
    return u is v or _is_weighted(u, v, known) or _is_weighted(v, u, known) or (known(u) and known(v))


def _is_weighted(u: Node, v: Node, known: Callable[[Node], bool]) -> bool:
    """Whether v is u times or over something positive."""
    if v.op == "multiply":
        return any(v.args[k] is u and known(v.args[1 - k]) for k in (0, 1))
    return v.op == "divide" and v.args[0] is u and known(v.args[1])


# --- what vanishes ---


def never_vanishes(known: Sequence[bool]) -> bool:
    return False


def first_vanishes(known: Sequence[bool]) -> bool:
    return known[0]


# --- kin ---


def no_kin(node: Node) -> Sequence[Node]:
    return ()


def kin_arrays(node: Node) -> Sequence[Node]:
    """All but scalars, which have scales of their own."""
    return [argument for argument in node.args if argument.shape]


def kin_of_product(node: Node) -> Sequence[Node]:
    """A multiple by a constant number."""
    return [node.args[1]] if is_number(node.args[0]) and node.shape else ()


def kin_of_quotient(node: Node) -> Sequence[Node]:
    """A quotient of arrays by what never changes."""
    u, v = node.args
    return [u] if u.shape and v.shape and v.invariant else ()


def kin_of_matmul(node: Node) -> Sequence[Node]:
    """A @ v and A.T @ v, since A has norm 1."""
    left, right = node.args
    return [right] if is_input(left.args[0] if is_transpose(left) else left, "A") else ()
