"""Every function that is taken, called in every way: it computes what NumPy's or torch's does, or is refused."""

import linecache
import warnings

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import CompileError
from nlaformer.program.functions import FUNCTIONS
from nlaformer.program.numpy import MOVES
from nlaformer.program.primitives import BY_NAME

N = 4
A = np.random.default_rng(0).standard_normal((N, N))
B = np.array([0.7, -0.4, 1.3, -1.1])
X = 0.5 * B + 0.25
C = np.random.default_rng(1).standard_normal((N, N))
W = np.array([0.5, -1.0, 2.0, 0.25])
# Arguments after the first; a call that the library itself does not take is left out.
POSITIONS = (
    *("", "0", "1", "-1", "2", "1.5", "np.inf", "'fro'", "True", "False", "(0,)", "(1,)", "[1]", "(0, 1)", "[0, 1]"),
    *("b", "x", "A", "s", "C", "W", "0, 1", "1, 0", "0, 0", "1, -1", "2, 1", "1, (0, 1)", "1, (1, 0)", "np.inf, 0"),
    *("1, (1,)", "2, (0,)", "(1, 2), (0, 1)", "0, None, None, True", "0, False", "-0.2, 0.2", "None, 0.2", "b, 2"),
)
OPTIONS = (
    *("axis=0", "axis=1", "axis=-1", "axis=None", "axis=(0,)", "axis=(1,)", "axis=(0, 1)", "axis=(-1, 0)", "axis=()"),
    *("dim=0", "dim=1", "dim=(0, 1)", "keepdims=True", "keepdims=False", "keepdim=True", "axis=1, keepdims=True"),
    *("ddof=1", "ddof=2", "axis=1, ddof=1", "axis=0, ddof=4", "correction=0", "correction=1", "dim=1, correction=2"),
    *("unbiased=False", "unbiased=True", "dim=0, unbiased=False", "mean=0.2"),
    *("ord=1", "ord=2", "ord=0", "ord=3", "ord=np.inf", "ord=-np.inf", "ord='fro'", "ord='nuc'", "ord=False"),
    *("ord=1, axis=0", "ord=1, axis=1", "ord=np.inf, axis=0", "ord=np.inf, axis=1", "ord='fro', axis=(0, 1)"),
    *("ord=1, axis=(1, 0)", "ord=np.inf, axis=(1, 0)", "ord=2, axis=(0,)", "ord=1, dim=1", "ord=1, keepdims=True"),
    *("p=1", "p=2", "p=3", "p=float('inf')", "p='fro'", "p=1, dim=0", "p=float('inf'), dim=1", "p=2, dim=1"),
    *("where=np.arange(N) > 1", "where=False", "where=True", "initial=0.3", "initial=False", "axis=0, initial=-9"),
    *("dtype=float", "dtype=int", "dtype=np.float32", "dtype=torch.float32", "casting='unsafe'", "casting='no'"),
    *("order='F'", "order='C'", "subok=False", "copy=False", "copy=True", "k=1", "k=-2", "n=2", "n=0", "n=1, axis=0"),
    *("offset=1", "offset=-2", "diagonal=1", "axis1=1, axis2=0", "dim1=1, dim2=0", "prepend=0.0", "append=0.0"),
    *("alpha=2", "rounding_mode='floor'", "min=-0.2", "max=0.2", "min=b", "min=0.1, max=-0.1", "shape=(2, 2)"),
    *("shift=1, axis=(0, 1)", "shift=1, axis=1", "shift=2, axis=()", "shifts=1, dims=1", "shifts=(1, 2), dims=(0, 1)"),
    *("shifts=1", "dims=(1,)", "dims=(0, 1)", "axes=(0, 1)", "axes=(1, 0)", "beta=2", "fill_value=0.2", "exponent=2"),
)
OF_TWO = ("add", "subtract", "sub", "multiply", "divide", "div", "maximum", "minimum", "hypot", "power", "pow", "dot")
OF_TWO += ("matmul", "vdot", "vecdot", "inner", "outer", "linalg.vecdot")


def function_of(library, name):
    found = {"np": np, "torch": torch}[library]
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def calls_of(library, name):
    """The calls of a function, or of a method where the library is "", in a user's spelling."""
    seconds = ("", "b, ") if name in OF_TWO else ("",)
    for v in ("x", "A", "s"):
        head = f"{library}.{name}({v}" if library else f"{v}.{name}("
        for given in (*POSITIONS, *(second + option for second in seconds for option in OPTIONS)):
            yield f"{head}, {given})" if library and given else f"{head}{given})"


def entries_of(result, shape):
    """A result in a shape that a program can return: what has another one as a weighted sum of its entries."""
    if isinstance(result, tuple):
        result = sum((k + 1.0) * part for k, part in enumerate(result))
    assert tuple(np.shape(result)) == shape, f"a result of shape {np.shape(result)}, {shape} in NumPy"
    if shape in ((), (N,), (N, N)):
        return result + 0.0
    return sum((1.0 + 0.37 * k) * result[place] for k, place in enumerate(np.ndindex(*shape)))


def program_of(call, shape):
    """The call as the line of a file, so that a refusal can name it."""
    text = f"def finish(self, A, b, x, s):\n    return entries_of({call}, {shape}) + 0.0 * s\n"
    linecache.cache[f"<{call}>"] = (len(text), None, text.splitlines(True), f"<{call}>")
    names = dict(globals())
    exec(compile(text, f"<{call}>", "exec"), names)

    class Once(nf.Program):
        finish = names["finish"]

        def start(self, b):
            return dict(x=0.5 * b + 0.25, s=b[0])

        def step(self, x, s):
            return dict(x=x, s=s)

        def residual(self, b):
            return b

    return Once()


def found(call, array):
    """Whether a call is "right" or "refused", on its own line, where the library takes it; else what is wrong."""
    given = {"A": array(A), "b": array(B), "x": array(X), "s": array(B[0])}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            wanted = eval(call, globals(), dict(given))
            shape = tuple(np.shape(sum(wanted) if isinstance(wanted, tuple) else wanted))
            wanted = np.asarray(entries_of(wanted, shape), dtype=float)
    except Exception:
        return "not taken by the library"
    try:
        run = program_of(call, shape).run(A.copy(), B.copy(), iterations=0)
    except CompileError as refused:
        message = str(refused)
        own = f"<{call}>, line 2" in message and "assertion" not in message
        return "refused" if own else message
    close = np.isclose(run.x[0], wanted, rtol=1e-11, atol=1e-11)
    return "right" if (close | np.isnan(run.x[0])).all() else "other values"


TAKEN = {name.removeprefix("torch.") for name in (*FUNCTIONS, *BY_NAME, *MOVES)}
METHODS = [name for name in TAKEN if callable(getattr(np.ndarray, name, None))]
NAMES = {(library, name) for library in ("np", "torch") for name in TAKEN if callable(function_of(library, name))}
NAMES |= {("", name) for name in METHODS}
WITH_LISTS = {("np", name) for name in ("column_stack", "hstack", "stack", "vstack", "allclose")}
WITH_LISTS |= {("", "tolist"), ("torch", "allclose"), ("torch", "equal"), ("torch", "meshgrid"), ("torch", "where")}
# Several arrays, of any numbers, or truth values that torch makes float32 of.
NAMES -= {(library, f"{how}split") for library in ("np", "torch", "") for how in ("", "h", "v", "array_")}
NAMES -= {("np", "empty_like"), ("torch", "empty_like"), ("torch", "any"), ("torch", "all")}
NAMES -= {("np", "copyto"), ("np", "fill_diagonal")}


@pytest.mark.parametrize(("library", "name"), sorted(NAMES))
def test_a_call_computes_what_its_library_does_or_is_refused(library, name):
    tensors = library == "torch" or not (library or hasattr(np.ndarray, name))
    array = torch.tensor if tensors else lambda value: np.array(value)[()]
    results = {call: found(call, array) for call in calls_of(library, name)}
    if (library, name) not in WITH_LISTS:
        assert set(results.values()) & {"right", "refused"} != {"refused"}  # of what the library takes, something is
    known = ("right", "refused", "not taken by the library")
    assert not {call: result for call, result in results.items() if result not in known}
