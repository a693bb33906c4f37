"""What cannot be compiled, in NumPy's names, and what to write instead.

Each piece of advice is followed in a test (``tests/test_compiler_refusals.py``).
"""

from __future__ import annotations

DECISION = (
    "a decision that depends on the data; the weights are fixed. A test for convergence is not needed: further loops "
    "leave the answer as it is. Entry by entry, np.maximum, np.minimum, np.abs and np.clip can be compiled, and for "
    "np.where(u > v, s, t) write t + (s - t) * (1 + np.sign(u - v)) / 2"
)
PARTS = (
    "a part of an array that is neither an entry nor a row nor a column; parts have another length than n. A shift is "
    "np.roll(v, 1), a mask is a product with a vector of zeros and ones, another order is a product with a constant "
    "matrix, such as np.eye(n)[::-1] @ v; for v[:, None] * w write np.outer(v, w), for v[:, None] * A (A.T * v).T"
)
NUMBER = (
    "a Python number is needed here, but the value is known only when the weights run. Omit float(...); for math.sqrt "
    "and its like write np.sqrt"
)
ARRAY = (
    "a function that takes arrays of numbers alone, or an array made by one, but the value is known only when the "
    "weights run. np.array, np.zeros, np.ones, np.eye, np.full and np.empty make arrays that take traced values, if "
    "they are called by these names"
)
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
_MOVES = "a constant matrix moves entries, such as np.eye(n)[::-1] @ v; a shift is np.roll(v, 1)"
_JOINS = "vectors have length n throughout; np.zeros_like(A) takes rows and columns, and a Python list keeps vectors"
_PRODUCTS = "write the products with @, *, np.outer, np.sum and .T"
_ROUNDS = "no value of the weights jumps but np.sign(v)"
OTHERWISE = "write it with + - * / @ ** and what docs/compile.md lists"
REMEDIES = (
    dict.fromkeys(("where", "any", "all", "isnan", "isfinite", "isclose", "allclose", "array_equal"), _COMPARES)
    | dict.fromkeys(("solve", "inv", "pinv", "lstsq", "qr", "eigh", "eig", "eigvalsh", "eigvals", "svd"), _INVERTS)
    | dict.fromkeys(("cholesky", "det", "slogdet", "cond", "expm", "solve_triangular", "lu", "lu_factor"), _INVERTS)
    | dict.fromkeys(("argmax", "argmin", "sort", "argsort", "median", "percentile", "quantile", "topk"), _ORDERS)
    | dict.fromkeys(("softmax", "log_softmax", "logsumexp"), _EXPONENTIALS)
    | dict.fromkeys(("concatenate", "stack", "vstack", "hstack", "column_stack", "block", "append"), _JOINS)
    | dict.fromkeys(("flip", "reshape", "tile", "repeat", "take", "broadcast_to"), _MOVES)
    | dict.fromkeys(("einsum", "tensordot", "multi_dot", "kron"), _PRODUCTS)
    | dict.fromkeys(("round", "rint", "floor", "ceil", "trunc", "remainder", "mod", "floor_divide"), _ROUNDS)
    | {
        "cumsum": "write np.tril(np.ones((n, n))) @ v",
        "diff": "write v - np.roll(v, 1), whose first entry is v[0] - v[-1]",
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
    }
)


def remedy(name: str) -> str:
    """What to write instead of a function or a method."""
    return REMEDIES.get(name) or REMEDIES.get(name.rpartition(".")[2]) or OTHERWISE
