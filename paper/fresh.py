"""The bundled models on fresh systems, which no run has seen: some thousand at each of the paper's three sigmas.

The errors are heavy-tailed. In some thousand systems there is one that a model solves a hundred times worse than the
others, and it moves the mean; medians and quantiles hardly change. So the fresh systems are many, and their worst is
kept. The file holds the config of every model and the fingerprint of its weights, by which it can be told whether it
was measured with those bundled now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nlaformer import pretrained
from nlaformer.io import fingerprint
from nlaformer.learn.evaluate import squared_deviations, squared_relative_errors
from nlaformer.learn.model import Solver, load_solver
from nlaformer.learn.recipes import Config
from nlaformer.learn.teachers import trajectory
from nlaformer.problems import SPD, Systems
from paper import plan
from paper.results import Results, restored

FILE = "bundled-fresh.json"
ARTEFACT_NAME = "table-bundled"
SEED = 20_261_115  # nobody has trained or evaluated with it
COUNT, SMALL_COUNT = 4096, 8  # systems at each sigma
PIECE = 64  # systems solved at once: what a layer holds of them stays near the processor
N, T = 20, 20  # the paper's, and of every bundled model


@dataclass(frozen=True)
class Fresh:
    """What was measured on the fresh systems, of the models, of "cg" and of "pcg"."""

    document: dict[str, Any]

    @property
    def count(self) -> int:
        """The number of systems at each sigma."""
        return self.document["count"]

    @property
    def configs(self) -> dict[str, Config]:
        """The models that were measured, by name."""
        return {name: Config.from_json(entry["config"]) for name, entry in self.document["models"].items()}

    def at(self, method: str, sigma: float) -> dict[str, list[float]]:
        """Curves over the iterates: mean, standard_error (of the mean), median, upper (90% quantile), largest.

        Of models also deviation, the mean of ||x^_t - x_t||^2 / ||x||^2, x_t being the iterates of their teacher.
        """
        entry = (self.document["methods"] | self.document["models"])[method]
        return restored(entry["sigma"][str(sigma)])


def read(results: Results) -> Fresh | None:
    """What was measured; None where nothing was, or no model was bundled."""
    document = results.file(FILE)
    return Fresh(document) if document is not None and document["models"] else None


def measure(results: Results, small: bool) -> None:
    """Solve the fresh systems with every bundled model, with CG and with PCG."""
    count = SMALL_COUNT if small else COUNT
    # By their folders: a folder here of the same name would come before the bundled model.
    solvers: dict[str, Solver] = {name: load_solver(pretrained.HOME / name) for name in pretrained.names()}
    methods: dict[str, Any] = {name: {"sigma": {}} for name in plan.TEACHERS}
    models: dict[str, Any] = {
        name: {"config": solver.config.to_json(), "weights": fingerprint(pretrained.HOME / name), "sigma": {}}
        for name, solver in solvers.items()
    }
    for sigma in plan.SIGMAS:
        rows = _solve(solvers, SPD(n=N, sigma=(sigma,)).sample(count, SEED))
        for name, entry in (methods | models).items():
            entry["sigma"][str(sigma)] = rows[name]
        print(f"  {count:,} systems of sigma {sigma:g} solved", flush=True)
    about = {"command": f"nlaformer reproduce {ARTEFACT_NAME}", "count": count, "seed": SEED, "sigma": plan.SIGMAS}
    results.write(FILE, about | {"methods": methods, "models": models})


def _solve(solvers: Mapping[str, Solver], systems: Systems) -> dict[str, dict[str, list[float]]]:
    """The curves of every method on systems of one sigma; piece by piece, only the errors are kept."""
    errors: dict[str, list[Tensor]] = {name: [] for name in (*plan.TEACHERS, *solvers)}
    deviations: dict[str, list[Tensor]] = {name: [] for name in solvers}
    for A, b, x in zip(*(tensor.split(PIECE) for tensor in systems), strict=True):
        taught = {teacher: trajectory(teacher, A, b, T).x for teacher in plan.TEACHERS}
        learned = {name: solver.iterates(A, b) for name, solver in solvers.items()}
        for name, iterates in (taught | learned).items():
            errors[name].append(squared_relative_errors(iterates, x))
        for name, iterates in learned.items():
            deviations[name].append(squared_deviations(iterates, taught[solvers[name].config.teacher], x))
    rows = {name: _curves(torch.cat(pieces)) for name, pieces in errors.items()}
    for name, pieces in deviations.items():
        rows[name]["deviation"] = torch.cat(pieces).mean(0).tolist()
    return rows


def _curves(errors: Tensor) -> dict[str, list[float]]:
    """Over the systems, at every iterate."""
    curves = {
        "mean": errors.mean(0),
        "standard_error": errors.std(0, correction=0) / len(errors) ** 0.5,
        "median": errors.quantile(0.5, 0),
        "upper": errors.quantile(0.9, 0),
        "largest": errors.amax(0),
    }
    return {kind: curve.tolist() for kind, curve in curves.items()}
