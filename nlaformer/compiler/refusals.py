"""What cannot be compiled, in NumPy's names, and what to write instead.

Each piece of advice is followed in a test (``tests/test_compiler_refusals.py``).
"""

from __future__ import annotations

DECISION = (
    "a decision that depends on the data; the weights are fixed. A test for convergence is not needed: further loops "
    "leave the answer as it is. Entry by entry, np.maximum, np.minimum, np.abs and np.clip can be compiled, and for "
    "np.where(u > v, s, t) write t + (s - t) * np.maximum(np.sign(u - v), 0), with np.sign(u - v - 1e-9) where u may "
    "be v: rounding would decide. For a while, write a for with a fixed number of passes of this kind"
)
PARTS = (
    "an index that cannot be compiled; entries, rows, columns, slices and lists of whole numbers can. For "
    "v[:, None] * w write np.outer(v, w), for v[:, None] * A (A.T * v).T, for v[:, None] + w "
    "np.outer(v, np.ones_like(w)) + w"
)
INDEX = (
    "an index that depends on the data; entries are picked by whole numbers that are known beforehand. A state that "
    "starts as np.eye(n)[0] and becomes np.roll(e, 1) picks another entry in each step: e @ v, or the row e @ A"
)
ARRAY = (
    "a function that takes arrays of numbers alone, or an array made by one, but the value is known only when the "
    "weights run. np.array, np.zeros, np.ones, np.eye, np.full and np.empty make arrays that take traced values, if "
    "they are called by these names"
)
TAKES_VALUES = "np.zeros, np.zeros_like(b) and np.array(w) make arrays that take traced values, the last of constants"
_COMPARES = "nothing can be decided by the data; np.maximum, np.minimum, np.clip, np.abs and np.sign can be compiled"
_INVERTS = (
    "there are no inverses and factorizations; write an iteration, such as newton_schulz or gauss_seidel of "
    "nf.algorithms(), or give what can be computed beforehand as a further input"
)
_ORDERS = (
    "entries cannot be put in order; np.max(v) and np.min(v) can be compiled, and with w = np.exp(20 * v / "
    "np.max(np.abs(v))) most of w / np.sum(w) lies on the largest entry"
)
_EXPONENTIALS = "write w = np.exp(v - np.max(v)); w / np.sum(w) is the softmax, np.max(v) + np.log(np.sum(w)) logsumexp"
_MOVES = "A.T, A[::-1], np.flip(A, axis) and np.roll(A, 1, axis) move entries"
_JOINS = (
    "np.concatenate joins arrays, np.outer makes a matrix of vectors, np.zeros an array that takes entries and slices"
)
_PRODUCTS = "write the products with @, *, np.outer, np.sum and .T"
_ROUNDS = "no value of the weights jumps but np.sign(v)"
_WAVES = (
    "there are no weights for it; of a small v, v - v**3 / 6 + v**5 / 120 is sin(v), 1 - v**2 / 2 + v**4 / 24 cos(v)"
)
OTHERWISE = "write it with + - * / @ ** and what docs/compile.md lists"
REMEDIES = (
    dict.fromkeys(("where", "any", "all", "isnan", "isfinite", "isclose", "allclose", "array_equal"), _COMPARES)
    | dict.fromkeys(("solve", "inv", "pinv", "lstsq", "qr", "eigh", "eig", "eigvalsh", "eigvals", "svd"), _INVERTS)
    | dict.fromkeys(("cholesky", "det", "slogdet", "cond", "expm", "solve_triangular", "lu", "lu_factor"), _INVERTS)
    | dict.fromkeys(("argmax", "argmin", "sort", "argsort", "median", "percentile", "quantile", "topk"), _ORDERS)
    | dict.fromkeys(("softmax", "log_softmax", "logsumexp"), _EXPONENTIALS)
    | dict.fromkeys(("block", "pad", "meshgrid", "broadcast_to", "expand_dims"), _JOINS)
    | dict.fromkeys(("swapaxes", "moveaxis", "rot90", "fliplr", "flipud"), _MOVES)
    | dict.fromkeys(("sin", "cos", "tan", "arctan", "arctan2", "arcsin", "arccos", "atan2"), _WAVES)
    | dict.fromkeys(("einsum", "tensordot", "multi_dot", "kron"), _PRODUCTS)
    | dict.fromkeys(("round", "rint", "floor", "ceil", "trunc", "remainder", "mod", "floor_divide"), _ROUNDS)
    | {
        "cumprod": "of positive entries it is np.exp(np.cumsum(np.log(v)))",
        "prod": "of positive entries it is np.exp(np.sum(np.log(v))); else write v[0] * v[1] * ...",
        "average": "write np.sum(w * v) / np.sum(w), or np.mean(v)",
        "heaviside": "write (1 + np.sign(v)) / 2",
        "copysign": "write np.abs(u) * np.sign(v)",
        "cbrt": "write np.sign(v) * np.abs(v) ** (1 / 3)",
        "count_nonzero": "write np.sum(np.abs(np.sign(v)))",
        "ptp": "write np.max(v) - np.min(v)",
        "subtract.outer": "write np.outer(u, np.ones_like(v)) - np.outer(np.ones_like(u), v)",
        "keepdims": "rows of A are divided by v with (A.T / v).T, columns with A / v",
        "empty_like": "write np.zeros_like",
        "real": "numbers are real: omit it",
        "imag": "numbers are real: omit it",
    }
)


def remedy(name: str) -> str:
    """What to write instead of a function or a method."""
    return REMEDIES.get(name) or REMEDIES.get(name.rpartition(".")[2]) or OTHERWISE


_OF_MATH = ("sqrt", "exp", "log", "expm1", "log1p", "exp2", "log2", "log10", "sinh", "cosh", "tanh", "hypot", "fabs")
_OF_PYTHON = dict.fromkeys(("int", "round"), _ROUNDS) | {
    "range": "the number of passes is fixed: write a number, a constant of the class or len(b)",
    "math.pow": "write **",
    "math.fsum": "write np.sum(v)",
    "math.dist": "write np.linalg.norm(u - v)",
    "math.sumprod": "write u @ v",
    "max": "write np.max(v) for a vector, np.maximum(u, v) for two values",
    "min": "write np.min(v) for a vector, np.minimum(u, v) for two values",
    "sorted": _ORDERS,
}


def number_wanted(name: str) -> str:
    """What to write where Python takes a number; ``name`` is of the function that takes it, "" where it is unknown."""
    library, _, inner = name.rpartition(".")
    what = f"{name}(...) takes a Python number" if name else "a Python number is needed here"
    if inner in ("float", "float64", "float32"):
        instead = f"Omit {name}(...)"
    elif library in ("", "math") and inner in _OF_MATH:
        instead = f"Write np.{inner}"
    elif name:
        instead = in_python(name) or remedy(inner)
        instead = instead[0].upper() + instead[1:]
    else:
        instead = f"Sizes, indices and constants are Python's numbers; {TAKES_VALUES}"
    return f"{what}, but the value is known only when the weights run. {instead}"


def in_python(name: str) -> str:
    """What to write instead of a function of Python itself."""
    return _OF_PYTHON.get(name, "")
