"""nf.load: an operation, a compiled algorithm or a trained model, from its folder or by its bundled name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from nlaformer import io, pretrained
from nlaformer.arrays import full_precision
from nlaformer.compiler import algorithm
from nlaformer.compiler.anysize import algorithm as anysize
from nlaformer.errors import FileError, look_up
from nlaformer.express import operation
from nlaformer.learn import model as solver
from nlaformer.learn import programs
from nlaformer.learn.recipes import recipes

_Artefact: TypeAlias = (
    operation.Operation | algorithm.Algorithm | anysize.AnySizeAlgorithm | solver.Solver | programs.TrainedProgram
)
_KINDS: dict[str, Callable[..., _Artefact]] = {
    "operation": operation.from_config,
    "algorithm": algorithm.from_config,
    "algorithm for any n": anysize.from_config,
    "solver": solver.from_config,
    "program": programs.from_config,
}


@full_precision()
def load(path: str | os.PathLike[str]) -> _Artefact:
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
    refuse_recipe(path)
    path = pretrained.locate(path)
    kind, config, model, extra = io.read(path)
    from_config = look_up("kind of artefact", kind, _KINDS)
    with io.describing(path, kind):
        return from_config(config, model, **extra)


def refuse_recipe(name: str | os.PathLike[str]) -> None:
    """Refuse the name of a recipe that no bundled model has: its weights are to be trained."""
    if isinstance(name, str) and name in recipes() and name not in bundled() and not os.path.exists(name):
        usual = Path("runs") / name
        train = "" if usual.exists() else f"train one, nlaformer train {name}, which makes {usual}, and "
        raise FileError(f"{name!r} is a recipe, and no model of it is bundled; {train}give the folder {usual}")


def bundled() -> tuple[str, ...]:
    """The names of the bundled models, which ``load`` takes."""
    return pretrained.names()
