"""nlaformer: write, learn and use numerical linear algebra as transformers.

The public names are loaded on first use, so that ``import nlaformer`` and ``nlaformer --help`` stay quick.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "operation": "nlaformer.express.catalogue",
    "operations": "nlaformer.express.catalogue",
    "Operation": "nlaformer.express.operation",
    "Cost": "nlaformer.express.cost",
    "NLAFormer": "nlaformer.transformer",
    "load": "nlaformer.loading",
    "Program": "nlaformer.compiler.language",
    **dict.fromkeys(
        ("dot", "norm", "diag", "sqrt", "exp", "log", "zeros_like", "identity_like", "positive"),
        "nlaformer.compiler.language",
    ),
    "compile": "nlaformer.compiler.compiling",
    "algorithm": "nlaformer.compiler.library",
    "algorithms": "nlaformer.compiler.library",
    "RunStatus": "nlaformer.compiler.result",
    "recipe": "nlaformer.learn.recipes",
    "recipes": "nlaformer.learn.recipes",
    "train": "nlaformer.learn.trainer",
    **dict.fromkeys(("solve", "cg", "pcg"), "nlaformer.solvers.solve"),
    **dict.fromkeys(("SolveResult", "Status"), "nlaformer.solvers.result"),
}
_MODULES = ("errors", "problems")

__all__ = ["__version__", *sorted((*_HOME, *_MODULES))]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"nlaformer.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'nlaformer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
