"""``nf.operation``: from a name and a size to a transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nlaformer import io
from nlaformer.arrays import plain, usable_device
from nlaformer.errors import FileError, OptionError, look_up, unknown_name
from nlaformer.express import composition, pointwise, theorem
from nlaformer.express.operation import Construction, Operation
from nlaformer.express.options import FORMS, Options, check
from nlaformer.express.symbol import steps_of
from nlaformer.transformer import NLAFormer

BUILDERS: dict[str, Callable[[Options], Construction]] = {
    "add": theorem.add,
    "subtract": lambda options: theorem.add(options, -1.0),
    "multiply": pointwise.multiply,
    "divide": pointwise.divide,
    "pointwise": composition.compose,
    "column_shift": theorem.column_shift,
    "row_shift": theorem.row_shift,
    "vector_transpose": theorem.vector_transpose,
    "inner_product": theorem.inner_product,
    "outer_product": theorem.outer_product,
    "matrix_transpose": theorem.matrix_transpose,
    "transposed_matmul": theorem.transposed_matmul,
    "matmul": theorem.matmul,
    "matvec": theorem.matvec,
}


def operation(
    name: str,
    n: int,
    *,
    order: int = 1,
    scheme: str = "antisymmetric",
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    f: Callable[[Any, Any], Any] | None = None,
    form: str = "accurate",
    width: int | None = None,
    minimum: float | None = None,
    normalize: bool = True,
    bound: float | None = None,
    score_bound: float | None = None,
) -> Operation:
    """A numerical linear algebra operation as an ordinary softmax transformer.

    Parameters
    ----------
    name : one of ``nf.operations()``
    n : length of the vectors, size of the matrices
    order : 1, 2 or 3; 2, 4 or 6 heads, and an error of that many more orders in c
    scheme : "antisymmetric", heads +c and -c; or "paper", heads c and 0
    dtype : torch.float64 or torch.float32
    device : where the weights live
    f : for "pointwise", a function of two numbers composed of + - * / and constants
    form : for "multiply" and "divide", "accurate" (attention) or "ffn" (the paper's single FFN)
    width : hidden units of the "ffn" form (default 1024)
    minimum : for division, the smallest magnitude of a divisor, after scaling (default 2^-20; 2^-4 for "ffn")
    normalize : scale the operands by exact powers of two, so that any magnitude is in the domain
    bound, score_bound : with ``normalize=False``, the compact set: the largest entry, and the largest score

    Returns
    -------
    Operation

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> A, B = np.random.default_rng(0).normal(size=(2, 20, 20))
    >>> multiply = nf.operation("matmul", n=20)
    >>> error = np.abs(multiply(A, B) - A @ B).max()
    >>> bool(error <= multiply.error_bound(A, B).max() < 1e-7)
    True
    """
    build = look_up("operation", name, BUILDERS)
    if (f is None) == (name == "pointwise"):
        raise OptionError(f"f goes with 'pointwise' and only with it; the operation is {name!r} and f is {f!r}")
    if not isinstance(form, str):
        raise unknown_name("form", form, FORMS)
    options = Options(
        name=name,
        n=plain(n),
        order=plain(order),
        scheme=scheme,
        dtype=str(dtype).removeprefix("torch."),
        form=form,
        width=plain(width),
        minimum=plain(minimum) if minimum is not None else 2.0**-4 if form == "ffn" else 2.0**-20,
        normalize=normalize,
        bound=plain(bound),
        score_bound=plain(score_bound),
        expression=None if f is None else steps_of(f),
    )
    check(options)
    construction = build(options)
    model = NLAFormer(pre=construction.layers).to(options.torch_dtype).to(usable_device(device))
    return Operation(options, construction, model)


def operations() -> tuple[str, ...]:
    """The names of the operations.

    >>> import nlaformer as nf
    >>> "matvec" in nf.operations()
    True
    """
    return tuple(BUILDERS)


def from_config(config: dict[str, Any], model: NLAFormer) -> Operation:
    """An operation from its saved options and weights."""
    try:
        options = Options(**config)
    except TypeError as error:
        raise FileError(f"the config of the saved operation is not one: {error}") from error
    build = look_up("operation", options.name, BUILDERS)
    check(options)
    construction = build(options)
    if not _same(NLAFormer(pre=construction.layers).to(options.torch_dtype), model):
        raise FileError(
            f"the saved weights are not those of operation {options.name!r}, n={options.n}, as it is described"
        )
    return Operation(options, construction, model)


def _same(expected: NLAFormer, given: NLAFormer) -> bool:
    """Whether a model has the structure and weights it should: a bound is proven for those and no others.

    Weights may differ by a few roundings, as the exponential function of another machine makes them.
    """
    wanted, found = expected.state_dict(), given.state_dict()
    if io.structure(expected) != io.structure(given) or wanted.keys() != found.keys():
        return False
    for name, w in wanted.items():
        other = found[name].to(w.device)
        if other.dtype != w.dtype or other.shape != w.shape:
            return False
        tolerance = 8 * torch.finfo(w.dtype).eps if w.is_floating_point() else 0.0
        if not torch.allclose(other, w, rtol=tolerance, atol=0.0):
            return False
    return True
