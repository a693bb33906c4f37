"""nlaformer: write, learn and use numerical linear algebra as transformers.

The public names are loaded on first use, so that ``import nlaformer`` and ``nlaformer --help`` stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.3.0"

# Where each public name lives. The imports below say the same to editors and type checkers; a test compares the two.
_HOMES = {
    "nlaformer.express.operation": ("Operation", "operation", "operations"),
    "nlaformer.express.construction": ("Cost",),
    "nlaformer.transformer": ("NLAFormer",),
    "nlaformer.loading": ("load",),
    "nlaformer.program.language": (
        "Program", "diag", "dot", "exp", "identity_like", "log", "maximum", "minimum", "norm", "outer", "positive",
        "relu", "sign", "sqrt", "zeros_like",
    ),
    "nlaformer.program.learned": ("Learned",),
    "nlaformer.compiler.compiling": ("compile",),
    "nlaformer.compiler.library": ("algorithm", "algorithms"),
    "nlaformer.program.run": ("RunStatus",),
    "nlaformer.compiler.algorithm": ("Algorithm",),
    "nlaformer.learn.compare": ("Comparison",),
    "nlaformer.learn.config": ("Config",),
    "nlaformer.learn.recipes": ("recipe", "recipes"),
    "nlaformer.learn.model": ("Solver",),
    "nlaformer.learn.programs": ("TrainedProgram",),
    "nlaformer.learn.trainer": ("train",),
    "nlaformer.microscope.battery": ("Microscopy", "microscope"),
    "nlaformer.microscope.evaluation": ("evaluate",),
    "nlaformer.microscope.extraction": ("Extraction", "extract"),
    "nlaformer.microscope.patching": ("patch",),
    "nlaformer.microscope.probes": ("Probing", "probe"),
    "nlaformer.microscope.recording": ("Trace", "trace"),
    "nlaformer.solvers.solve": ("cg", "gmres", "minres", "pcg", "solve"),
    "nlaformer.solvers.eigenpair": ("EigenResult", "eigenpair"),
    "nlaformer.solvers.solve_nonlinear": ("NonlinearResult", "solve_nonlinear"),
    "nlaformer.solvers.result": ("SolveResult", "Status"),
    "nlaformer": ("errors", "problems"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from nlaformer import errors as errors
    from nlaformer import problems as problems
    from nlaformer.compiler.algorithm import Algorithm as Algorithm
    from nlaformer.compiler.compiling import compile as compile
    from nlaformer.compiler.library import algorithm as algorithm
    from nlaformer.compiler.library import algorithms as algorithms
    from nlaformer.express.construction import Cost as Cost
    from nlaformer.express.operation import Operation as Operation
    from nlaformer.express.operation import operation as operation
    from nlaformer.express.operation import operations as operations
    from nlaformer.learn.compare import Comparison as Comparison
    from nlaformer.learn.config import Config as Config
    from nlaformer.learn.model import Solver as Solver
    from nlaformer.learn.programs import TrainedProgram as TrainedProgram
    from nlaformer.learn.recipes import recipe as recipe
    from nlaformer.learn.recipes import recipes as recipes
    from nlaformer.learn.trainer import train as train
    from nlaformer.loading import load as load
    from nlaformer.microscope.battery import Microscopy as Microscopy
    from nlaformer.microscope.battery import microscope as microscope
    from nlaformer.microscope.evaluation import evaluate as evaluate
    from nlaformer.microscope.extraction import Extraction as Extraction
    from nlaformer.microscope.extraction import extract as extract
    from nlaformer.microscope.patching import patch as patch
    from nlaformer.microscope.probes import Probing as Probing
    from nlaformer.microscope.probes import probe as probe
    from nlaformer.microscope.recording import Trace as Trace
    from nlaformer.microscope.recording import trace as trace
    from nlaformer.program.language import Program as Program
    from nlaformer.program.language import diag as diag
    from nlaformer.program.language import dot as dot
    from nlaformer.program.language import exp as exp
    from nlaformer.program.language import identity_like as identity_like
    from nlaformer.program.language import log as log
    from nlaformer.program.language import maximum as maximum
    from nlaformer.program.language import minimum as minimum
    from nlaformer.program.language import norm as norm
    from nlaformer.program.language import outer as outer
    from nlaformer.program.language import positive as positive
    from nlaformer.program.language import relu as relu
    from nlaformer.program.language import sign as sign
    from nlaformer.program.language import sqrt as sqrt
    from nlaformer.program.language import zeros_like as zeros_like
    from nlaformer.program.learned import Learned as Learned
    from nlaformer.program.run import RunStatus as RunStatus
    from nlaformer.solvers.eigenpair import EigenResult as EigenResult
    from nlaformer.solvers.eigenpair import eigenpair as eigenpair
    from nlaformer.solvers.result import SolveResult as SolveResult
    from nlaformer.solvers.result import Status as Status
    from nlaformer.solvers.solve import cg as cg
    from nlaformer.solvers.solve import gmres as gmres
    from nlaformer.solvers.solve import minres as minres
    from nlaformer.solvers.solve import pcg as pcg
    from nlaformer.solvers.solve import solve as solve
    from nlaformer.solvers.solve_nonlinear import NonlinearResult as NonlinearResult
    from nlaformer.solvers.solve_nonlinear import solve_nonlinear as solve_nonlinear
    from nlaformer.transformer import NLAFormer as NLAFormer
else:
    __all__ = ["__version__", *sorted(_HOME)]

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'nlaformer' has no attribute {name!r}")
        if _HOME[name] == "nlaformer":
            return importlib.import_module(f"nlaformer.{name}")
        globals()[name] = value = getattr(importlib.import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return ["__version__", *sorted(_HOME)]
