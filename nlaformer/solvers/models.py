"""What a user may give as a model, told apart by what it can do: the solvers know no classes of other rooms."""

from __future__ import annotations

import inspect
import json
import os
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nlaformer.errors import NLAFormerError, UnfamiliarWarning
from nlaformer.pretrained import locate

if TYPE_CHECKING:
    from torch import Tensor

    from nlaformer.program.data import ProgramGraph

_ROLES = {"directions": "propose", "preconditioner": "preconditioner"}
RESIDUAL, GRADIENT = "b - A x", "A^T (b - A x)"


def loaded(model: Any) -> Any:
    """The model of a path or name; anything else as it is."""
    if not isinstance(model, str | os.PathLike):
        return model
    from nlaformer.loading import load

    return load(model)


def refusal(model: Any, A: Any) -> str:
    """Why a model cannot be expected to help with A, as far as its size tells without its weights; or nothing."""
    size = _size(model)
    if size is None:
        return ""
    if hasattr(A, "matvec"):
        return NO_ENTRIES
    try:
        shape = np.shape(A)
    except ValueError:  # of rows of different lengths; whoever reads A says so
        return ""
    return made_for_fewer(shape[-1], size) if shape and shape[-1] > size else ""


NO_ENTRIES = "the entries of a LinearOperator cannot be shown to it"


def made_for_fewer(n: int, size: int) -> str:
    """What is said of a model that was made for fewer unknowns."""
    return f"the systems have {n} unknowns, it was made for {size}"


def warn_refused(reason: str, above: int) -> None:
    """Say that a model is not used; the user's line is so many calls above."""
    warnings.warn(f"the model is not used: {reason}", UnfamiliarWarning, stacklevel=above + 1)


def _size(model: Any) -> int | None:
    """The number of unknowns that a model was made for, as its config says; None of what has none."""
    size: Any = None
    if isinstance(model, str | os.PathLike):
        try:
            document = json.loads((Path(locate(model)) / "config.json").read_bytes())
            if document["kind"] != "operation":
                config = document["config"]
                size = config.get("config", config)["n"]  # that of a program is inside
        except (OSError, ValueError, KeyError, TypeError, AttributeError, NLAFormerError):  # loading it says why
            return None
    elif (role_of(model) or is_solver(model) or runs(model)) and not getattr(model, "stacked", 0):
        size = getattr(model.config, "n", None)
    else:
        return None
    return size if isinstance(size, int) else None


def program_of(model: Any, n: int | None = None) -> ProgramGraph | None:
    """The program of a trained program, for n unknowns or those it was trained with; None of anything else."""
    if isinstance(model, type) or not hasattr(model, "networks") or not hasattr(model, "graph"):
        return None
    made: ProgramGraph = model.graph(model.config.n if n is None else n)
    return made


def role_of(model: Any) -> str:
    """What a trained program gives a solver: "directions", a "preconditioner", or nothing of the kind."""
    if isinstance(model, type):
        return ""
    if hasattr(model, "role"):
        return str(model.role)
    return next((role for role, method in _ROLES.items() if hasattr(model, method)), "")


def is_solver(model: Any) -> bool:
    """Whether it is a purely trained model, which answers with iterates."""
    return not isinstance(model, type) and hasattr(model, "iterates") and not hasattr(model, "run")


def runs(model: Any) -> bool:
    """Whether it is a compiled algorithm or a trained program."""
    return not isinstance(model, type) and hasattr(model, "run") and hasattr(model, "config")


def no_function(value: Any, *arguments: str) -> str:
    """What something is, in words, where it is no function of so many arguments; or nothing."""
    if isinstance(value, type):
        return f"the class {value.__name__}, not an object of it"
    if is_solver(value) or runs(value):
        return f"a model of the type {type(value).__name__}, which solves systems"
    if hasattr(value, "error_bound"):
        return "an operation"
    if hasattr(value, "pre") and hasattr(value, "loop"):
        return "an NLAFormer without its read-out"
    if not callable(value):
        return f"a {type(value).__name__}"
    try:
        inspect.signature(getattr(value, "forward", value)).bind(*arguments)
    except TypeError as error:
        return f"a function that cannot be called with {' and '.join(arguments)} ({error})"
    except ValueError:  # a built-in function that does not tell its arguments
        pass
    return ""


def raised(error: Exception) -> str:
    """What a model raised, in one line."""
    return f"it raised {traceback.format_exception_only(error)[-1].splitlines()[0]}"


def residual_of(program: ProgramGraph | None, inputs: Mapping[str, Tensor], x: Tensor) -> Tensor | None:
    """The residual that a program is judged by, at an answer x; None if it has none, or not of these inputs."""
    if program is None or program.residual is None:
        return None
    from nlaformer.program.data import ANSWER

    try:
        return program.residual_value({**inputs, ANSWER: x})["residual"]
    except (KeyError, RuntimeError):
        return None


def linear_residual(program: ProgramGraph | None) -> str:
    """``RESIDUAL`` or ``GRADIENT``, if that is the residual of a program up to its sign; or nothing."""
    if program is None or not {"A", "b"} <= program.inputs.keys():
        return ""
    import torch

    n, generator = program.n, torch.Generator().manual_seed(0)
    A, b, x = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((n, n), (n,), (n,)))
    found, r = residual_of(program, {"A": A, "b": b, "x0": x}, x), b - A @ x
    for name, own in ((RESIDUAL, r), (GRADIENT, A.mT @ r)):
        if found is not None and any(torch.allclose(found, sign * own) for sign in (1.0, -1.0)):
            return name
    return ""
