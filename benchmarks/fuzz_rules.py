"""The operations that random programs are made of, as texts: one rule for each thing that the compiler's language has.

A rule gives a scalar, a vector or a matrix (s, v, m) of size 3. Its *terms* are the absolute terms of its last
operation, which deviations are measured against. A rule may need statements: they stand before the line that uses its
value, and their terms are their own values, of the terms (``MOVED``) or of the absolute values (``SIZED``) of the
arguments. ``tests/test_compiler_fuzz.py`` compares the rules with the language.
"""

from __future__ import annotations

from dataclasses import dataclass

MOVED, SIZED = "the statements, of the terms", "the statements, of absolute values"


@dataclass(frozen=True)
class Rule:
    """An operation: what it gives, what it takes, its text and that of its terms.

    In a text, {0} and {1} are the arguments, in that of the terms also {t0}, the terms of the first argument, and
    {self}, the value. In statements, {t} is the name that they give the value.
    """

    name: str
    gives: str
    takes: str
    text: str
    terms: str = "np.abs({self})"
    statements: bool = False


def _moves(name: str, gives: str, takes: str, text: str) -> Rule:
    """A rule that puts entries into other places."""
    terms = text
    for k in range(len(takes)):
        terms = terms.replace(f"{{{k}}}", f"({{t{k}}})")
    return Rule(name, gives, takes, text, terms)


def _sized(name: str, gives: str, takes: str, text: str) -> Rule:
    """A rule whose terms are what it makes of absolute values: sums of products."""
    terms = text
    for k in range(len(takes)):
        terms = terms.replace(f"{{{k}}}", f"np.abs({{{k}}})")
    return Rule(name, gives, takes, text, terms)


def _lines(name: str, gives: str, takes: str, *lines: str) -> Rule:
    """Statements whose terms are what they make of absolute values."""
    return Rule(name, gives, takes, "\n".join(lines), SIZED, statements=True)


def _filled(name: str, gives: str, takes: str, *lines: str) -> Rule:
    """Statements that put entries into places, and add some."""
    return Rule(name, gives, takes, "\n".join(lines), MOVED, statements=True)


def _changed(name: str, gives: str, takes: str, *lines: str) -> Rule:
    """Statements on a copy of the first argument."""
    return _filled(name, gives, takes, "{t} = {0}.copy()", *lines)


_FOR = ("{t} = np.zeros(3)", "for i in range(3):")


_SUM = "summed({0}, {1}, {t0}, {t1})"
_ARITHMETIC = (
    *(Rule("add", k, k + k, "({0} + {1})", _SUM) for k in "svm"),
    *(Rule("subtract", k, k + k, "({0} - {1})", _SUM) for k in "svm"),
    Rule("add a scalar", "v", "vs", "({0} + {1})", _SUM),
    Rule("add to rows", "m", "mv", "({0} + {1})", "(np.abs({0}) + np.abs({1}))"),
    *(Rule("multiply", k, k + k, "{0} * {1}") for k in "svm"),
    *(Rule("multiply by a scalar", k, "s" + k, "{0} * {1}") for k in "vm"),
    Rule("multiply columns", "m", "mv", "{0} * {1}"),
    Rule("divide", "s", "ss", "{0} / {1}"),
    Rule("divide", "v", "vs", "{0} / {1}"),
    Rule("divide", "v", "vv", "{0} / {1}"),
    Rule("divide safely", "v", "vv", "{0} / (1.0 + {1} * {1})"),
    Rule("negative", "v", "v", "-{0}", "{t0}"),
    Rule("named sums", "v", "vv", "np.subtract(np.add({0}, {1}), 1.0)", "(np.abs({0} + {1}) + 1.0)"),
    Rule("named products", "v", "vv", "np.divide(np.multiply({0}, np.negative({1})), 4.0)"),
    _moves("flatten", "v", "v", "{0}.flatten()"),
    _moves("named copies", "v", "v", "np.positive(np.copy({0}).astype(float).ravel())"),
    _sized("named product of matrices", "m", "mm", "np.matmul({0}, np.transpose({1}))"),
)
_PRODUCTS = (
    _sized("matvec", "v", "mv", "{0} @ {1}"),
    _sized("matmul", "m", "mm", "{0} @ {1}"),
    _sized("vector times matrix", "v", "vm", "{0} @ {1}"),
    _moves("transpose", "m", "m", "{0}.T"),
    Rule("outer", "m", "vv", "np.outer({0}, {1})"),
    _sized("dot", "s", "vv", "np.dot({0}, {1})"),
    _sized("vdot", "s", "vv", "np.vdot({0}, {1})"),
    _sized("inner", "s", "vv", "np.inner({0}, {1})"),
    _sized("vecdot", "s", "vv", "np.vecdot({0}, {1})"),
    _sized("named matvec", "v", "mv", "np.matvec({0}, {1})"),
    _sized("vecmat", "v", "vm", "np.vecmat({0}, {1})"),
    _sized("matrix power", "m", "m", "np.linalg.matrix_power({0}, 3)"),
    Rule("Frobenius product", "s", "mm", "np.sum({0} * {1})", "np.sum(np.abs({0} * {1}))"),
)
_SUMS = (
    Rule("norm", "s", "v", "np.linalg.norm({0})"),
    Rule("norm of a matrix", "s", "m", "np.linalg.norm({0})"),
    Rule("norm of order 1", "s", "v", "np.linalg.norm({0}, 1)"),
    Rule("vector norm", "s", "m", "np.linalg.vector_norm({0}, ord=1)"),
    Rule("matrix norm", "s", "m", "np.linalg.matrix_norm({0})"),
    Rule("largest absolute value", "s", "v", "np.linalg.norm({0}, np.inf)"),
    Rule("norms of columns", "v", "m", "np.linalg.norm({0}, axis=0)"),
    _sized("sum", "s", "v", "np.sum({0})"),
    _sized("mean", "s", "v", "np.mean({0})"),
    _sized("sums of rows", "v", "m", "{0}.sum(axis=1)"),
    _sized("reduced sums", "v", "m", "np.add.reduce({0})"),
    _sized("means of columns", "v", "m", "np.mean({0}, axis=0)"),
    _sized("cumulative sums", "v", "v", "np.cumsum({0})"),
    Rule("var", "s", "v", "np.var({0})"),
    Rule("std", "s", "v", "np.std({0})"),
    Rule("trace", "s", "m", "np.trace({0})", "np.sum(np.abs(np.diag({0})))"),
    _sized("item", "s", "v", "np.sum({0}).item()"),
    Rule("largest entry", "s", "v", "np.max({0})", "({t0})[np.argmax({0})]"),
    Rule("smallest entry", "s", "m", "{0}.min()", "np.ravel({t0})[np.argmin({0})]"),
)
_FUNCTIONS = (
    Rule("sqrt", "v", "v", "np.sqrt({0} * {0})"),
    Rule("sqrt of a promise", "v", "v", "np.sqrt(nf.positive({0}))"),
    Rule("sqrt of a sum", "s", "v", "np.sqrt(1.0 + np.dot({0}, {0}))"),
    Rule("exp", "v", "v", "np.exp({0})"),
    Rule("exp of a scalar", "s", "s", "np.exp({0})"),
    Rule("log", "s", "v", "np.log(1.0 + np.dot({0}, {0}))", "(1.0 + np.abs({self}))"),
    Rule("log of a promise", "v", "v", "np.log(nf.positive({0}))", "(1.0 + np.abs({self}))"),
    Rule("relu", "v", "v", "np.maximum({0}, 0.0)", "{t0}"),
    Rule("relu by name", "v", "v", "nf.relu({0})", "{t0}"),
    Rule("abs", "v", "v", "np.abs({0})", "{t0}"),
    Rule("abs of a scalar", "s", "s", "np.abs({0})", "{t0}"),
    Rule("maximum", "v", "vv", "np.maximum({0}, {1})", "np.where({0} >= {1}, {t0}, {t1})"),
    Rule("minimum", "v", "vv", "np.minimum({0}, {1})", "np.where({0} <= {1}, {t0}, {t1})"),
    Rule("clip", "v", "v", "np.clip({0}, -1.0, 1.0)", "np.where(np.abs({0}) <= 1.0, {t0}, 1.0)"),
    Rule("expm1", "v", "v", "np.expm1({0})"),
    Rule("log1p", "v", "v", "np.log1p({0} * {0})"),
    Rule("sinh", "v", "v", "np.sinh({0})"),
    Rule("cosh", "v", "v", "np.cosh({0})"),
    Rule("tanh", "v", "v", "np.tanh({0})"),
    Rule("hypot", "v", "vv", "np.hypot({0}, {1})"),
    Rule("logaddexp", "v", "vv", "np.logaddexp({0}, {1})", "larger({0}, {1}, {self})"),
    Rule("sign", "v", "v", "np.sign({0})"),
    Rule("square", "v", "v", "{0} ** 2"),
    Rule("named square", "v", "v", "np.square({0})"),
    Rule("cube of a scalar", "s", "s", "{0} ** 3"),
    Rule("power", "v", "v", "np.power(1.0 + {0} * {0}, 0.3)"),
    Rule("power of a half", "v", "v", "(1.0 + {0} * {0}) ** -1.5"),
    Rule("reciprocal", "v", "v", "np.reciprocal(1.0 + {0} * {0})"),
    Rule("exp2", "v", "v", "np.exp2({0})"),
    Rule("log2", "s", "v", "np.log2(1.0 + np.dot({0}, {0}))", "(1.0 + np.abs({self}))"),
    Rule("log10", "s", "v", "np.log10(1.0 + np.dot({0}, {0}))", "(1.0 + np.abs({self}))"),
    Rule("expit", "v", "v", "special.expit({0})"),
)
_PARTS = (
    _moves("diag", "v", "m", "np.diag({0})"),
    _moves("diagonal", "m", "v", "np.diag({0})"),
    _moves("triangle", "m", "m", "np.tril({0})"),
    _moves("upper triangle", "m", "m", "np.triu({0}, 1)"),
    _moves("roll", "v", "v", "np.roll({0}, 1)"),
    _moves("roll of a matrix", "m", "m", "np.roll({0}, -1, axis=1)"),
    _moves("flip", "v", "v", "np.flip({0})"),
    _moves("reversed", "v", "v", "{0}[::-1]"),
    _moves("reversed columns", "m", "m", "{0}[:, ::-1]"),
    _moves("another order", "v", "v", "{0}[[2, 0, 1]]"),
    _moves("entry", "s", "v", "{0}[1]"),
    _moves("entry of a matrix", "s", "m", "{0}[-1, 0]"),
    _moves("row", "v", "m", "{0}[1]"),
    _moves("column", "v", "m", "{0}[:, 2]"),
    _sized("products of slices", "s", "vv", "{0}[1:] @ {1}[:-1]"),
    _sized("part of a row", "s", "mv", "{0}[2, :2] @ {1}[:2]"),
    _sized("part of a column", "s", "m", "np.sum({0}[1:, 0])"),
    _sized("part of a matrix", "v", "mvs", "np.append({0}[1:, :2] @ {1}[:2], {2})"),
    _sized("every other entry", "s", "v", "np.sum({0}[::2])"),
    _sized("masked entries", "s", "v", "np.sum({0}[np.array([True, False, True])])"),
    _sized("listed rows", "s", "m", "np.sum({0}[[0, 2]])"),
    Rule("diff", "v", "vs", "np.append(np.diff({0}), {1})", "np.append(np.abs({0})[1:] + np.abs({0})[:-1], {t1})"),
    Rule(
        "functions of a slice",
        "v",
        "vs",
        "np.append(np.maximum(np.exp({0}[1:]), 0.5) / 2.0, {1})",
        "np.abs({self})",
    ),
    Rule("slices in arithmetic", "v", "vvs", "np.insert({0}[:2] * {1}[1:], 1, {2})", "np.abs({self})"),
    _moves("concatenate", "v", "vv", "np.concatenate([{0}[1:], {1}[:1]])"),
    _moves("hstack", "v", "sv", "np.hstack([{0}, {1}[1:]])"),
    _moves("stack", "m", "vvv", "np.stack([{0}, {1}, {2}])"),
    _moves("vstack", "m", "mv", "np.vstack([{0}[:2], {1}])"),
    _moves("column_stack", "m", "vm", "np.column_stack([{0}, {1}[:, 1:]])"),
    _moves("insert", "v", "vs", "np.insert({0}[1:], 0, {1})"),
    _moves("delete", "v", "vs", "np.append(np.delete({0}, 1), {1})"),
    _moves("reshape", "v", "m", "np.reshape({0}, 9)[2:5]"),
    _moves("take", "v", "v", "np.take({0}, [2, 2, 0])"),
    _moves("tile", "v", "v", "np.tile({0}, 2)[1:4]"),
    _moves("repeat", "v", "v", "np.repeat({0}[:1], 3)"),
    _moves("array of entries", "v", "vs", "np.array([{0}[2], {1}, {0}[0]])"),
    _sized("rows in a comprehension", "v", "mv", "np.array([row @ {1} for row in {0}])"),
)
_NEW_ARRAYS = (
    Rule("zeros", "v", "v", "np.zeros_like({0})"),
    Rule("ones", "v", "v", "np.ones_like({0})"),
    _moves("full", "v", "s", "np.full(3, {0})"),
    _moves("full_like", "v", "vs", "np.full_like({0}, {1})"),
    Rule("made ones", "v", "s", "np.ones(3) * {0}"),
    Rule("identity", "m", "", "np.eye(3)"),
    Rule("identity by name", "m", "", "np.identity(3)"),
    Rule("identity_like", "m", "m", "nf.identity_like({0})"),
    Rule("constant vector", "v", "", "self.w"),
    Rule("constant matrix", "m", "", "self.K"),
    Rule("sizes", "v", "v", "{0} * (len({0}) / {0}.shape[0] * {0}.size / {0}.ndim)", "3.0 * {t0}"),
    Rule("named sizes", "v", "m", "np.diag({0}) / (np.size({0}) * np.ndim({0}) * np.shape({0})[1])"),
)
_STATEMENTS = (
    _lines("fill by entries", "v", "vv", *_FOR, "    {t}[i] = {0}[i] * {1}[~i]"),
    _lines("loop over entries", "s", "v", "{t} = 0.0", "for entry in {0}:", "    {t} = {t} + entry * entry"),
    _lines("loop over rows", "v", "mv", "{t} = {1} * 1.0", "for row in {0}:", "    {t} += row * 0.5"),
    _lines("substitution", "v", "mv", *_FOR, "    {t}[i] = {1}[i] + {0}[i, :i] @ {t}[:i]"),
    _lines("tall array", "v", "vv", "V = np.zeros((3, 2))", "V[:, 0] += {0}", "V[:, 1] = {1}", "{t} = V @ (V.T @ {0})"),
    _lines(
        "wide array", "v", "mv", "H = np.zeros((2, 3))", "H[0] = {1}", "H[1, 1:] += {0}[0, :2]", "{t} = {1} @ H.T @ H"
    ),
    _lines(
        "small array", "s", "vv", "H = np.zeros((2, 2))", "H[0] += {0}[1:]", "H[1, 0] = {1}[0]", "{t} = np.sum(H @ H)"
    ),
    _lines("power in place", "v", "v", "{t} = {0}.copy()", "{t} **= 2"),
    _lines("product in place", "m", "mm", "{t} = {0}.copy()", "{t} @= {1}"),
    _filled("set everything", "v", "v", "{t} = np.empty(3)", "{t}[:] = {0}", "{t}[::-1] = +{t}"),
    _filled("shift with zeros", "v", "v", "{t} = np.zeros_like({0})", "{t}[:-1] = {0}[1:]"),
    _filled("matrix by parts", "m", "vv", "{t} = np.zeros((3, 3))", "{t}[0] = {0}", "{t}[1:, 1] = {1}[1:]"),
    _filled("asarray", "v", "v", "{t} = np.asarray({0}) + 0.0", "{t} = np.asarray([{t}[1], 0.5, {t}[0]])"),
    _filled("copyto", "v", "vv", "{t} = np.empty(3)", "np.copyto({t}, {0})", "np.copyto({t}[1:], {1}[:2])"),
    _filled("out=", "v", "vv", "{t} = np.zeros_like({0})", "np.add({0}, {1}, out={t})"),
    _changed("set an entry", "v", "vs", "{t}[1] = {1}"),
    _changed("change an entry", "v", "vs", "{t}[-1] += {1}"),
    _changed("set a slice", "v", "vv", "{t}[1:] = {1}[:-1]"),
    _changed("change a slice", "v", "vv", "{t}[1:] += {1}[:-1]", "{t}[:2] *= 0.5"),
    _changed("set listed entries", "v", "vv", "{t}[[0, 2]] = {1}[[2, 1]]"),
    _changed("change listed entries", "v", "vv", "{t}[[0, 2]] += {1}[:2]"),
    _changed("set masked entries", "v", "v", "{t}[np.array([True, False, True])] = 0.5"),
    _changed("view of a slice", "v", "vv", "part = {t}[1:]", "part += {1}[1:]"),
    _changed("set entries of a matrix", "m", "ms", "{t}[0, 1] = {1}", "{t}[2, 2] += {1}"),
    _changed("set a row", "m", "mv", "{t}[1] = {1}"),
    _changed("view of a row", "m", "mv", "row = {t}[1]", "row += {1}"),
    _changed("set a column", "m", "mv", "{t}[:, 0] = {1}", "{t}[:, 2] += {1}"),
    _changed("set part of a row", "m", "mv", "{t}[1, 1:] = {1}[:2]", "{t}[2, :2] += {1}[1:]"),
    _changed("set part of a column", "m", "mv", "{t}[1:, 1] = {1}[1:]", "{t}[:2, 0] += {1}[1:]"),
    _changed("set part of a matrix", "m", "mm", "{t}[1:, 1:] = {1}[:2, :2]", "{t}[:2, 1:] += {1}[1:, :2]"),
    _changed("set columns in another order", "m", "mm", "{t}[:, ::-1] = {1}"),
    _changed("view of a transpose", "m", "mv", "{t}.T[0] = {1}", "{t}.T[2] += {1}"),
    _changed("fill_diagonal", "m", "ms", "np.fill_diagonal({t}, {1})"),
    _changed("in place", "v", "vv", "{t} += {1}", "{t} *= 0.5"),
    Rule("subtract in place", "v", "vv", "{t} = {0}.copy()\n{t} -= {1}", "(np.abs({0}) + np.abs({1}))", True),
    Rule("divide in place", "v", "vv", "{t} = {0}.copy()\n{t} /= 1.0 + {1} * {1}", "np.abs({self})", True),
)
RULES = (*_ARITHMETIC, *_PRODUCTS, *_SUMS, *_FUNCTIONS, *_PARTS, *_NEW_ARRAYS, *_STATEMENTS)
