"""What the page holds: which operations, algorithms and models, in which sizes.

Weights are for one n, so the page has a few sizes of each. Those of trained models are rounded, which a page of this
size asks for; ``rounded_solver`` gives the model with the very weights that the page holds.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import nlaformer
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.compiling import compile
from nlaformer.compiler.library import algorithm, record
from nlaformer.errors import CompileError
from nlaformer.explorer import artefacts, findings
from nlaformer.explorer.lines import lines, source
from nlaformer.explorer.store import Store, rounded
from nlaformer.express.operation import operation
from nlaformer.express.theorem import RECORDS
from nlaformer.learn.methods import GuidedCG
from nlaformer.learn.model import Solver
from nlaformer.learn.models import load_solver
from nlaformer.learn.programs import TrainedProgram
from nlaformer.loading import load
from nlaformer.program.core import core
from nlaformer.program.language import Program

OPERATIONS = tuple(name for name, entry in RECORDS.items() if entry.f is None)
OPERATION_SIZES = (3, 6)
TITLES = {
    "cg": "Conjugate gradients",
    "pcg": "Preconditioned conjugate gradients (Jacobi)",
    "conjugate_residual": "Conjugate residuals",
    "steepest_descent": "Steepest descent",
    "richardson": "Richardson",
    "jacobi": "Jacobi",
    "chebyshev": "Chebyshev",
    "minres": "MINRES",
    "power": "Power method",
    "newton_schulz": "Newton–Schulz inverse",
}
# Where the n that is shown is none of the sizes, the page takes the last one up to 8, or else the first.
ALGORITHMS: dict[str, tuple[int, ...]] = dict.fromkeys(TITLES, (4, 8)) | {"cg": (2, 3, 4, 5, 6, 8, 20)}
# Significant bits of the weights; float32 has 24, float16 has 11.
SOLVERS = {"cg-accelerated": 11, "cg-imitation": 9}
GUIDED = "guided-cg"
COMPILED_STORE, FIGURES = "compiled", "figures"


def catalogue() -> tuple[dict[str, Any], dict[str, str]]:
    """Everything the engine needs: the data, and the text of every store by name."""
    stores = {COMPILED_STORE: Store(), GUIDED: Store(), FIGURES: Store(), **{name: Store() for name in SOLVERS}}
    told = findings.claims()
    drawings = findings.figures(told).items()
    data = {
        "operations": dict(_operations(stores[COMPILED_STORE])),
        "algorithms": dict(_algorithms(stores[COMPILED_STORE])) | {GUIDED: _guided(stores[GUIDED])},
        "solvers": {name: _solver(name, bits, stores[name]) for name, bits in SOLVERS.items()},
        "findings": findings.microscope(SOLVERS),
        "claims": told,
        "figures": {name: stores[FIGURES].put(np.frombuffer(drawing, np.uint8), "u1") for name, drawing in drawings},
        "version": nlaformer.__version__,
    }
    return data, {name: store.text() for name, store in stores.items()}


def _operations(store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in OPERATIONS:
        entry = RECORDS[name]
        sizes = {n: artefacts.operation(operation(name, n=n), store) for n in OPERATION_SIZES}
        yield name, {"store": COMPILED_STORE, "about": entry.result, "sizes": sizes}


def _algorithms(store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, sizes in ALGORITHMS.items():
        entry = record(name)
        packed = {}
        for n in sizes:
            compiled = algorithm(name, n=n, verify=False)
            packed[n] = artefacts.algorithm(compiled, store, lines(entry.program(), compiled))
        yield (
            name,
            {
                "store": COMPILED_STORE,
                "title": TITLES[name],
                "about": entry.purpose,
                "source": source(entry.program),
                "program": _of_any_size(entry.program()),
                "sizes": packed,
            },
        )


def _of_any_size(program: Program) -> Any:
    """A program as data, in core primitives, with {"at": [a, b]} for what is a + b n for systems of size n."""
    small, larger, check = (_data(program, n) for n in (4, 5, 8))
    found = _common(small, larger, 4)
    if _at(found, 8) != check:
        raise CompileError(f"the data of {program.name} is not the same for all sizes")
    return found


def _data(program: Program, n: int) -> dict[str, Any]:
    data = replace(core(program.graph(n))[0], residual=None, scale=None).data()
    kept = {name: data[name] for name in ("inputs", "start", "step", "answer")}
    return kept | {"nodes": [[op, args, _numbers(op, extra), shape] for op, args, extra, shape, _ in data["nodes"]]}


def _numbers(op: str, extra: Any) -> Any:
    """The numbers of a constant: one, if they are all the same, or that on a diagonal."""
    if op != "constant":
        return extra
    array = np.asarray(extra)
    if (array == array.flat[0]).all():
        return float(array.flat[0])
    return {"diagonal": float(array.flat[0])} if np.array_equal(array, array.flat[0] * np.eye(len(array))) else extra


def _common(u: Any, v: Any, n: int) -> Any:
    """What two data have in common, of which one is for n and one for n + 1."""
    if isinstance(u, dict) and isinstance(v, dict) and u.keys() == v.keys():
        return {name: _common(u[name], v[name], n) for name in u}
    if isinstance(u, list) and isinstance(v, list) and len(u) == len(v):
        return [_common(*pair, n) for pair in zip(u, v, strict=True)]
    if u == v:
        return u
    return {"at": [u - n * (v - u), v - u]}


def _at(data: Any, n: int) -> Any:
    if isinstance(data, list):
        return [_at(part, n) for part in data]
    if isinstance(data, dict):
        return data["at"][0] + data["at"][1] * n if "at" in data else {name: _at(data[name], n) for name in data}
    return data


def guided() -> Algorithm:
    """The bundled guided-cg as one transformer: its weights are float32 and the page holds them as they are."""
    return compile(_trained(), verify=False)


def _trained() -> TrainedProgram:
    model = load(GUIDED)
    assert isinstance(model, TrainedProgram)
    return model


def _guided(store: Store) -> dict[str, Any]:
    compiled = guided()
    # Its file holds the program as data, which knows no lines; the class that was trained has them.
    beside = lines(GuidedCG(), compiled, _trained().filled().networks)
    return {
        "store": GUIDED,
        "title": "Guided conjugate gradients (a trained network inside)",
        "about": (inspect.getdoc(GuidedCG) or "").partition("\n")[0],
        "source": source(GuidedCG),
        "sizes": {compiled.n: artefacts.algorithm(compiled, store, beside)},
    }


def rounded_solver(name: str) -> Solver:
    """A bundled model with its weights rounded as the page holds them, computing in float32.

    >>> model = rounded_solver("cg-imitation")
    >>> model.config.n
    20
    """
    model = copy.deepcopy(load_solver(name))
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(rounded(weights, SOLVERS[name]))
    return model


def _solver(name: str, bits: int, store: Store) -> dict[str, Any]:
    model = rounded_solver(name)
    config = model.config
    aims = {
        "result": "to repeat the iterates of CG",
        "step+solution": f"to bring iterates near CG’s and, {config.lambda_:g} times as strongly, near the solution",
    }
    about = {"sigma": list(config.sigma), "bits": bits, "heads": config.heads, "aim": aims[config.supervision]}
    return {"store": name, **about, **artefacts.solver(model, store)}
