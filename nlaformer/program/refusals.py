"""What cannot be compiled, in NumPy's names, and what to write instead.

Each piece of advice is followed in a test (``tests/test_program.py``).
"""

from __future__ import annotations

_SWITCH = "np.where(u > v, s, t) is s or t by the data"
DECISION = (
    "a decision that depends on the data. Omit a test for convergence: iterations= of a run is the number of steps, n "
    f"for a method that ends after n. {_SWITCH}, with u > v + 1e-9 where u may be v: rounding would decide; and "
    "np.maximum, np.minimum, np.abs and np.clip can be compiled. For a while, write a for with a fixed number of "
    "passes of this kind"
)
KEY = "a traced value as a key: the value is known only when the weights run. Keys are names and whole numbers"
INDEX = (
    "an index that depends on the data; entries are picked by whole numbers that are known beforehand. A state that "
    "starts as np.eye(n)[0] and becomes np.roll(e, 1) picks another entry in each step: e @ v, or the row e @ A"
)
MASK = (
    "entries that are picked by the data, as many as that may be. For v[v > 0] write np.where(v > 0, v, 0); "
    "v[v > 0] = s can be compiled"
)
ARRAY = (
    "a function that takes arrays of numbers alone, or an array made by one, but the value is known only when the "
    "weights run. np.array, np.zeros, np.ones, np.eye, np.full and np.empty make arrays that take traced values, if "
    "they are called by these names"
)
TAKES_VALUES = "np.zeros, np.zeros_like(b) and np.array(w) make arrays that take traced values, the last of constants"
_COMPARES = f"no line can ask for it; {_SWITCH}, and so do np.maximum, np.minimum and np.clip"
_SORTS = (
    "with n = len(v) and v = v.copy(), the lines for k in range(n): for i in range(k % 2, n - 1, 2): v[i], v[i + 1] = "
    "np.minimum(v[i], v[i + 1]), np.maximum(v[i], v[i + 1]) sort v; then v[n // 2] is the median, for an even n its "
    "mean with v[n // 2 - 1]"
)
_PICKS = (
    "e = np.maximum(np.sign(v - np.max(v) + 1e-9 * np.max(np.abs(v))), 0) is 1 at the largest entry of v and 0 at the "
    "others: e @ w is w[np.argmax(v)], e @ A is that row. For np.argmin(v), take -v in its place"
)
_EXPONENTIALS = "write w = np.exp(v - np.max(v)); w / np.sum(w) is the softmax, np.max(v) + np.log(np.sum(w)) logsumexp"
_PRODUCTS = "write the products with @, *, np.outer, np.sum and .T"
_ROUNDS = "no value of the weights jumps but np.sign(v), comparisons and np.where"
_SUBSTITUTES = (
    "with x = np.zeros_like(b), write for i in range(len(b)): x[i] = (b[i] - L[i, :i] @ x[:i]) / L[i, i]; of an upper "
    "triangle for i in reversed(range(len(b))): x[i] = (b[i] - U[i, i + 1 :] @ x[i + 1 :]) / U[i, i]"
)
# The programs of the library that compute what NumPy and SciPy have one function for, and what they give.
PROGRAMS = {
    "solve": ("cgnr", "the solution of any nonsingular system"),
    "lstsq": ("lsqr", "the least squares solution"),
    "inv": ("newton_schulz", "the inverse"),
    "pinv": ("newton_schulz", "the pseudoinverse"),
    "qr": ("gram_schmidt", "Q, and R as a state"),
    "cholesky": ("cholesky", "the lower factor"),
    "lu": ("lu", "U, and L as a state, without exchanges of rows"),
    "lu_factor": ("lu", "U, and L as a state, without exchanges of rows"),
    "det": ("lu", "U, whose diagonal has the determinant as its product"),
    "slogdet": ("lu", "U, whose diagonal has the determinant as its product"),
    "eig": ("power", "the dominant eigenvector x, x @ A @ x its eigenvalue"),
    "eigh": ("subspace_iteration", "three dominant eigenvectors of a symmetric matrix, x @ A @ x an eigenvalue"),
    "eigvals": ("power", "the dominant eigenvector x, x @ A @ x its eigenvalue"),
    "eigvalsh": ("subspace_iteration", "three dominant eigenvectors of a symmetric matrix, x @ A @ x an eigenvalue"),
    "svd": ("singular_vectors", "the dominant singular vectors, and the singular value as a state"),
    "expm": ("matrix_exponential", "the exponential"),
    "sqrtm": ("square_root", "the root of a positive definite matrix"),
    "signm": ("matrix_sign", "the sign of a symmetric matrix"),
    "polar": ("polar", "the orthogonal factor"),
}


def _written_out(name: str, gives: str) -> str:
    return (
        f"write the iteration out: {name} of nf.algorithms() gives {gives}, nlaformer algorithms {name} shows its "
        "lines. What can be computed beforehand may be a further input"
    )


OTHERWISE = "write it with + - * / @ ** and what docs/compile.md lists"
REMEDIES = (
    {name: _written_out(*program) for name, program in PROGRAMS.items()}
    | dict.fromkeys(("isclose", "allclose", "array_equal", "array_equiv"), _COMPARES)
    | dict.fromkeys(("isnan", "isinf", "isfinite"), "omit it: the status of a run says whether it was finite")
    | dict.fromkeys(("argmax", "argmin"), _PICKS)
    | dict.fromkeys(("sort", "median", "percentile", "quantile", "topk"), _SORTS)
    | dict.fromkeys(("softmax", "log_softmax", "logsumexp"), _EXPONENTIALS)
    | dict.fromkeys(("einsum", "tensordot"), _PRODUCTS)
    | dict.fromkeys(("round", "rint", "floor", "ceil", "trunc", "remainder", "mod", "floor_divide"), _ROUNDS)
    | {
        "solve_triangular": _SUBSTITUTES,
        "average": "write np.sum(w * v) / np.sum(w), or np.mean(v)",
        "cbrt": "write np.sign(v) * np.abs(v) ** (1 / 3)",
        "count_nonzero": "write np.sum(np.abs(np.sign(v)))",
        "imag": "numbers are real: omit it",
    }
)


def remedy(name: str) -> str:
    """What to write instead of a function or a method."""
    return REMEDIES.get(name) or REMEDIES.get(name.rpartition(".")[2]) or OTHERWISE


_OF_MATH = (
    *("sqrt", "exp", "log", "expm1", "log1p", "exp2", "log2", "log10", "sinh", "cosh", "tanh", "hypot", "fabs"),
    *("sin", "cos", "tan", "copysign"),
)
_OF_PYTHON = dict.fromkeys(("int", "round"), _ROUNDS) | {
    "range": "the number of passes is fixed: write a number, a constant of the class or len(b)",
    "math.pow": "write **",
    "math.fsum": "write np.sum(v)",
    "math.dist": "write np.linalg.norm(u - v)",
    "math.sumprod": "write u @ v",
    "max": "write np.max(v) for a vector, np.maximum(u, v) for two values",
    "min": "write np.min(v) for a vector, np.minimum(u, v) for two values",
    "sorted": _SORTS,
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


def decision(name: str) -> str:
    """What to write where Python decides by a value; ``name`` is of the function that does, "" where a line does."""
    instead = in_python(name)
    return f"a decision that depends on the data; {instead}" if instead else DECISION


def in_python(name: str) -> str:
    """What to write instead of a function of Python itself."""
    return _OF_PYTHON.get(name, "")
