"""nf.load: an operation, a compiled algorithm or a trained model, from its folder or by its bundled name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nlaformer import io, pretrained
from nlaformer.errors import unknown_name

if TYPE_CHECKING:
    from nlaformer.compiler.algorithm import Algorithm
    from nlaformer.express.operation import Operation
    from nlaformer.learn.model import Solver

__all__ = ["load"]

_KINDS = ("operation", "algorithm", "solver")


def load(path: str | os.PathLike[str]) -> Operation | Algorithm | Solver:
    """Load what ``save`` wrote: an operation, a compiled algorithm or a trained model; or a bundled model by its name.

    A path that exists comes first, so a folder of yours may have the name of a bundled model.

    Examples
    --------
    >>> import tempfile, nlaformer as nf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = nf.operation("inner_product", n=2).save(folder)
    ...     round(nf.load(folder)([1.0, 2.0], [3.0, 4.0]), 6)
    11.0
    """
    path = pretrained.locate(path)
    kind, config, model, extra = io.read(path)
    with io.describing(path, kind):
        if kind == "operation":
            from nlaformer.express import operation

            return operation.from_config(config, model, **extra)
        if kind == "algorithm":
            from nlaformer.compiler import algorithm

            return algorithm.from_config(config, model, **extra)
        if kind == "solver":
            from nlaformer.learn import model as learned

            return learned.from_config(config, model, **extra)
    raise unknown_name("kind of artefact", kind, _KINDS)
