"""The confirmatory runs of protocol.md: which they are, and how each is trained, measured and filed.

    python -m paper.confirmatory a --only result,joint-eta0.0005 --out runs/a

trains the runs of group a whose names begin so, those of one shape as one program, and files each as
``paper/results/runs/NAME.json``. A run that is filed is not trained again; an interrupted one is resumed. Groups d and
h wait for teachers and families of one's own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nlaformer as nf
from nlaformer.learn import teachers
from nlaformer.learn.checkpoint import read_manifest, read_metrics
from nlaformer.learn.evaluate import measure, own_label, squared_relative_errors
from nlaformer.learn.model import Solver
from nlaformer.learn.recipes import Config, shape_of
from nlaformer.problems import SPD
from nlaformer.provenance import provenance

RUNS = Path(__file__).parent / "results" / "runs"
EVALUATION_SEED, COUNT = 8_100_000, 4096  # the protocol's test systems
_VALIDATIONS = 40  # in the course of a run


def groups() -> dict[str, dict[str, Config]]:
    """The runs of every group that can be trained, by name."""
    five, three, two, one = range(100, 105), range(100, 103), range(100, 102), range(100, 101)
    ahead = [
        (f"{teacher}-accelerated-lambda10-sigma{sigma:g}", _config(f"{teacher}-accelerated", sigma=(sigma,)))
        for teacher, sigma in (("cg", 1.0), ("cg", 1.4), ("pcg", 1.0), ("pcg", 1.2), ("pcg", 1.4))
    ]
    literal = {"norm": "none", "output_scale": 0.02, "clip": 0.1, "lr": 2e-4}
    return {
        "a": _seeded(five, [("result", _config("cg-imitation"))])
        | _seeded(five, [(f"joint-eta{eta:g}", _config("cg-joint", eta=eta)) for eta in (5e-4, 0.05, 1e-4)]),
        "b": _seeded(
            five,
            [
                (f"cg-accelerated-lambda{x:g}", _config("cg-accelerated", lambda_=x))
                for x in (10.0, 1.0, 7.0, 13.0, 30.0)
            ],
        ),
        "c": _seeded(three, ahead),
        "e": _seeded(
            three,
            [(f"cg-accelerated-K{window}", _config("cg-accelerated", window=window)) for window in (10, 15)]
            + [(f"cg-accelerated-d{d}", _config("cg-accelerated", d=d, heads=d // 32)) for d in (64, 128)],
        ),
        "f": _seeded(three, [("result-literal", _config("cg-imitation", **literal))])
        | _seeded(two, [(f"result-heads{heads}", _config("cg-imitation", heads=heads)) for heads in (2, 4)]),
        "g": _seeded(
            one,
            [
                ("joint-eta0.0005-700k", _config("cg-joint", steps=700_000)),
                ("cg-accelerated-lambda10-700k", _config("cg-accelerated", steps=700_000)),
            ],
        ),
        "i": _seeded(one, [("cg-accelerated-lambda10-sqrt", _config("cg-accelerated", sigma=(1.2**0.5,)))]),
        "p": _seeded(three, [("result-tf32", _config("cg-imitation", precision="tf32"))]),
    }


def _config(recipe: str, **changes: Any) -> Config:
    """A recipe with the protocol's loss, length, schedule and arithmetic."""
    common = {"power": 1.0, "steps": 100_000, "lr": 3e-3, "final_lr": 0.02, "precision": "bf16"}
    return nf.recipe(recipe, **(common | changes))


def _seeded(seeds: range, kinds: Sequence[tuple[str, Config]]) -> dict[str, Config]:
    return {f"{kind}-seed{seed}": config.replace(seed=seed) for kind, config in kinds for seed in seeds}


def measured(solver: Solver, count: int = COUNT) -> dict[str, Any]:
    """Everything the protocol asks of a run on the test systems of its sigma; per-system quantities as their means."""
    config = solver.config
    systems = SPD(n=config.n, sigma=config.sigma).sample(count, EVALUATION_SEED)
    A, b, x = systems
    row = measure(solver, own_label(config), systems).to_json()
    errors = {
        "model": squared_relative_errors(solver.iterates(A, b).double().cpu(), x),  # (count, T+1)
        "cg": squared_relative_errors(teachers.cg(A, b, config.T).x, x),
    }
    last = errors["model"][:, -1]
    quarters = torch.linalg.cond(A).argsort().tensor_split(4)  # from the best conditioned systems to the worst
    return row | {
        "failures": float((~(last < 1)).double().mean()),
        "crossing": {name: [crossings(e[q]).mean().item() for q in quarters] for name, e in errors.items()},
    }


def crossings(errors: Tensor, threshold: float = 1e-3) -> Tensor:
    """Tau of every system: where log e_t, interpolated in t, first falls to a threshold; T where it never does.

    >>> crossings(torch.tensor([[1.0, 1e-2, 1e-4], [1.0, 1.0, 1.0]])).tolist()
    [1.5, 2.0]
    """
    T = errors.shape[-1] - 1
    logs = torch.where(errors.isfinite(), errors, 1.0).clamp(min=1e-300).log()
    reached = logs <= torch.tensor(threshold, dtype=logs.dtype).log()
    t = reached.int().argmax(-1).clamp(min=1)
    before, after = (logs.gather(-1, k.unsqueeze(-1)).squeeze(-1) for k in (t - 1, t))
    part = (torch.tensor(threshold, dtype=logs.dtype).log() - before) / (after - before)
    found = torch.where(reached[..., 0], 0.0, t - 1 + part)
    return torch.where(reached.any(-1), found, float(T))


def train_and_file(wanted: dict[str, Config], group: str, out: Path, commit: str | None, files: Path = RUNS) -> None:
    """Train the runs that are not filed yet, one stack for each shape, and file them."""
    due = {name: config for name, config in wanted.items() if not (files / f"{name}.json").exists()}
    shapes: dict[str, dict[str, Config]] = {}
    for name, config in due.items():
        shapes.setdefault(repr(shape_of(config)), {})[name] = config
    for stack in shapes.values():
        configs = list(stack.values())
        every = max(configs[0].steps // _VALIDATIONS, 1)
        folder = out / f"{group}-{next(iter(stack))}"
        runs = nf.train(configs, out=folder, checkpoint_every=max(configs[0].steps // 5, 1), validate_every=every)
        for name, run in zip(stack, runs, strict=True):
            file_run(name, group, run.folder, run.solver, list(stack), commit, files)


def file_run(
    name: str, group: str, folder: Path, solver: Solver, stack: list[str], commit: str | None, files: Path
) -> None:
    """Measure a finished or diverged run and keep its numbers, to six digits."""
    manifest, lines = read_manifest(folder), [line for line in read_metrics(folder) if "validation" in line]
    document = {
        "provenance": provenance(commit),
        "name": name,
        "group": group,
        "config": solver.config.to_json(),
        "state": manifest["state"],
        "steps": manifest["steps"],
        "seconds": manifest["seconds_in_all"],
        "stack": stack,
        "trained": {key: manifest[key] for key in ("device", "engine", "arithmetic", "commit", "written")},
        "history": {
            "step": [line["step"] for line in lines],
            "discrepancy": [line["validation"]["discrepancy"] for line in lines],
            "final_error": [line["validation"]["squared_relative_error"][-1] for line in lines],
        },
        "own": own_label(solver.config),
        "evaluations": {own_label(solver.config): measured(solver)},
    }
    files.mkdir(parents=True, exist_ok=True)
    (files / f"{name}.json").write_text(json.dumps(_rounded(document)) + "\n", encoding="utf-8")
    print(
        f"{name}: {manifest['state']}, last error {document['evaluations'][document['own']]['model'][-1]:.3g}",
        flush=True,
    )


def _rounded(value: Any) -> Any:
    """Plain data to six significant digits; what is not finite becomes text, which JSON has no number for."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else str(value)
    return value


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train and file confirmatory runs; see paper/protocol.md.")
    parser.add_argument("group", choices=sorted(groups()))
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas; default: the whole group")
    parser.add_argument("--out", type=Path, default=Path("runs/confirmatory"), help="folder of the runs")
    parser.add_argument("--files", type=Path, default=RUNS, help="folder of the results")
    parser.add_argument("--commit", help="commit of the code, where the files have no history with them")
    given = parser.parse_args()
    wanted = {
        name: config for name, config in groups()[given.group].items() if name.startswith(tuple(given.only.split(",")))
    }
    train_and_file(wanted, given.group, given.out, given.commit, given.files)


if __name__ == "__main__":
    main()
