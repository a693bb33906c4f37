"""The training runs as data: each a name, a config and a rank, the most valuable first.

The runs of the comparisons follow the paper's setting: n = 20, T = 20, d = 256, batch 64, 100,000 steps. The paper
leaves open the peak learning rate (3e-3 here, better than 1e-3, see benchmarks/README.md) and the heads (8). Beside the
paper's loss (power 1) there are our recipes' (power 3/4 for imitation, 1/2 for acceleration). Runs of one
rank and shape train together as one program, a stack. To add runs, add their configs to a group of ``exploratory``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nlaformer.errors import unknown_name
from nlaformer.learn.config import Config
from nlaformer.learn.recipes import recipe
from nlaformer.learn.stacks import shape_of

STEPS = 100_000
SIGMAS = (1.0, 1.2, 1.4)
ETAS = (0.05, 0.01, 0.005, 0.001, 0.0005, 0.0001)
LAMBDAS = (13.0, 10.0, 7.0, 4.0, 1.0, 0.5)
ALL_LAMBDAS = (*LAMBDAS, 30.0, 100.0)  # the paper stops at 13
DIMENSIONS = (64, 128, 256)
WINDOWS = (10, 15, 20)
SEEDS = (0, 1, 2)
TEACHERS = ("cg", "pcg")
BUNDLED = {
    "cg-imitation": "bundled-cg-imitation-150k",
    "cg-joint": "bundled-cg-joint",
    "cg-accelerated": "bundled-cg-accelerated-polished-lr0.0002",
    "pcg-accelerated": "bundled-pcg-accelerated-polished-lr0.0002",
}
"""The bundled models, each with the run that its weights come from."""
PRINTED = {"joint": (46.8370, 0.1920), "result": (45.9350, 0.5058), "step + solution": (46.1199, 0.4355)}
"""The discrepancy in the paper's Tables 2 and 3, before and after training."""
WEIGHTS = "weights"  # in the folder of the runs, the weights that are kept
STACK = 16  # at eight a model takes 4% longer (benchmarks/README.md)

# The looped transformer of Yang et al., and an ordinary deep one, in place of the paper's three blocks.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "nlaformer": {},
    "looped": {"inject": True, "pre_layers": 0, "post_layers": 0},
    "deep": {"shared": False},
}


@dataclass(frozen=True)
class Planned:
    """A run to make: the lower its rank, the sooner."""

    name: str
    config: Config
    rank: int
    keep: bool = False
    """Its weights are kept, not only its numbers."""
    after: str | None = None
    """The run whose weights it starts from."""
    group: str | None = None
    """Its group in protocol.md, of a confirmatory run."""

    def config_in(self, folder: Path) -> Config:
        """The config of this run when made in a folder, where the weights it starts from are found."""
        return self.config if self.after is None else self.config.replace(start=str(folder / WEIGHTS / self.after))


def name_of(config: Config) -> str:
    """The name of a run: what it learns from, then every setting that differs from the usual one.

    >>> name_of(our_accelerated("pcg", d=64, heads=2, sigma=(1.4,)))
    'pcg-accelerated-d64-power0.5-sigma1.4-seed0'
    """
    accelerating = config.supervision == "step+solution"
    parts = (
        (f"{config.teacher}-accelerated" if accelerating else config.supervision, True),
        ("looped", config.inject),
        ("deep", not config.shared),
        ("literal", config.norm == "none"),
        (config.family, config.family != "spd"),
        (f"eta{config.eta:g}", config.supervision == "joint"),
        (f"lambda{config.lambda_:g}", accelerating and config.lambda_ != 10),
        (f"d{config.d}", config.d != 256),
        (f"heads{config.heads}", config.heads != config.d // 32),
        (f"K{config.window}", config.window not in (None, 20)),
        (f"power{config.power:g}", True),
        (f"lr{config.lr:g}", config.lr != 3e-3),
        (thousands(config.steps), config.steps != STEPS),
        (config.precision, config.precision != "bf16"),
        (f"sigma{'+'.join(f'{sigma:g}' for sigma in config.sigma)}", True),
        (f"seed{config.seed}", True),
    )
    return "-".join(part for part, named in parts if named)


def thousands(steps: int) -> str:
    """A number of steps, short.

    >>> thousands(150_000), thousands(1800)
    ('150k', '1800')
    """
    return f"{steps // 1000}k" if steps % 1000 == 0 else str(steps)


# --- kinds of runs ---


def _usual(name: str, **changes: Any) -> Config:
    """A recipe with what all runs of the comparisons share; they end at 2% of their learning rate."""
    return recipe(name, **({"steps": STEPS, "final_lr": 0.02, "precision": "bf16"} | changes))


def imitation(**changes: Any) -> Config:
    """Result supervision, the paper's loss."""
    return our_imitation(power=1.0, **changes)


def our_imitation(**changes: Any) -> Config:
    """Result supervision, our recipe."""
    return _usual("cg-imitation", **changes)


def joint(**changes: Any) -> Config:
    """Joint supervision, the paper's loss."""
    return _usual("cg-joint", **changes)


def accelerated(teacher: str = "cg", **changes: Any) -> Config:
    """Step and solution supervision, the paper's loss."""
    return our_accelerated(teacher, power=1.0, **changes)


def our_accelerated(teacher: str, **changes: Any) -> Config:
    """Step and solution supervision, our recipe."""
    return _usual(f"{teacher}-accelerated", **changes)


def kinds() -> dict[str, Config]:
    """One run of every kind, with the paper's loss (power 1) and with ours."""
    found = {"result, power 1": imitation(), "result, our recipe": our_imitation(), "joint, power 1": joint()}
    for teacher in TEACHERS:
        found[f"faster than {teacher.upper()}, our recipe"] = our_accelerated(teacher)
        found[f"faster than {teacher.upper()}, power 1"] = accelerated(teacher)
    return found


def from_seed(seed: int) -> list[Config]:
    """The kinds that are trained from every seed."""
    ours = [our_accelerated(teacher, seed=seed) for teacher in TEACHERS]
    return [imitation(seed=seed), joint(seed=seed), accelerated("cg", seed=seed), *ours]


def seeds_of(config: Config) -> tuple[str, ...]:
    """The names of a run and of those that differ from it in the seed alone."""
    seeds = SEEDS if config in from_seed(config.seed) else (config.seed,)
    return tuple(name_of(config.replace(seed=seed)) for seed in seeds)


def over_sigma() -> list[Config]:
    """Our acceleration at every sigma."""
    return [our_accelerated(teacher, sigma=(sigma,)) for teacher in TEACHERS for sigma in SIGMAS]


def over_dimension() -> list[Config]:
    """The same at every embedding size; heads stay 32 wide."""
    return [config.replace(d=d, heads=d // 32) for d in DIMENSIONS for config in over_sigma()]


def over_window() -> list[Config]:
    """The same at every window."""
    return [config.replace(window=window) for window in WINDOWS for config in over_sigma()]


def over_architecture() -> dict[tuple[str, str], Config]:
    """Every architecture at two tasks."""
    tasks = {"imitating CG": imitation(), "faster than CG": our_accelerated("cg")}
    return {
        (task, architecture): config.replace(**changes)
        for architecture, changes in ARCHITECTURES.items()
        for task, config in tasks.items()
    }


def constant_rate() -> list[Config]:
    """A constant learning rate of 1e-3 after the warm-up: as close to the paper's text as it goes."""
    plain: dict[str, Any] = {"lr": 1e-3, "final_lr": 1.0}
    return [imitation(**plain), joint(**plain), accelerated("cg", **plain)]


# --- the runs behind the bundled models ---


def _bundled() -> list[Planned]:
    """One model for all three sigmas of each kind, and what was trained further from their weights.

    *150k*: to a lower learning rate. *after-joint*: from the jointly supervised model, which is closer to CG at x_1 and
    x_2. *lambda100*: briefly with a greater weight of the solution, which sets the lead (fig-lead); *lambda10* is its
    control. *polished*: in an arithmetic with more digits than tf32, whose rounding is as large as their last errors,
    and with a power near 0, which counts the relative gain of late iterates; *tf32* is its control.
    """
    longer: dict[str, Any] = {"steps": 150_000, "precision": "tf32", "lr": 2e-3, "final_lr": 0.002}
    short: dict[str, Any] = {"steps": 1800, "warmup": 50, "batch": 32, "lr": 3e-4, "final_lr": 0.002, "threads": 1,
                             "precision": "float32"}  # fmt: skip
    polished: dict[str, Any] = {"steps": 60_000, "warmup": 200, "final_lr": 0.005, "power": 0.1, "floor": 1e-9,
                                "lambda_": 100.0}  # fmt: skip

    def run(recipe_name: str, suffix: str, rank: int, after: str, **changes: Any) -> Planned:
        config = recipe(recipe_name, sigma=SIGMAS, **changes)
        return Planned(f"bundled-{recipe_name}-{suffix}", config, rank, keep=True, after=f"bundled-{after}")

    first = {name: _usual(name, sigma=SIGMAS, precision="tf32") for name in BUNDLED}
    fast = [f"{teacher}-accelerated" for teacher in TEACHERS]
    return [
        *(Planned(f"bundled-{name}", config, 1, keep=True) for name, config in first.items()),
        run("cg-imitation", "150k", 2, "cg-imitation", **longer, power=0.85),
        *(run(name, "150k", 2, name, **longer) for name in fast),
        run("cg-imitation", "after-joint", 2, "cg-joint", **longer, power=0.8),
        *(run(name, f"lambda{weight:g}", 3, f"{name}-150k", **short, lambda_=weight)
          for name in fast for weight in (100.0, 10.0)),
        *(run(name, f"polished-lr{lr:g}", 9, f"{name}-lambda100", **polished, lr=lr, precision="bf16x3")
          for name in fast for lr in (2e-4, 8e-4)),
        run(fast[0], "polished-tf32", 12, f"{fast[0]}-lambda100", **polished, lr=2e-4, precision="tf32"),
    ]  # fmt: skip


# --- the plan ---


@cache
def exploratory() -> dict[str, Planned]:
    """The runs that are not the protocol's by name, in the order of their ranks."""
    found = {run.name: run for run in _bundled()}
    groups: tuple[tuple[int, list[Config]], ...] = (
        (4, [imitation(), joint(), *over_sigma()]),
        (5, [joint(eta=eta) for eta in ETAS] + [accelerated("cg", lambda_=weight) for weight in ALL_LAMBDAS]),
        (6, over_dimension()),
        (7, [config for (_, architecture), config in over_architecture().items() if architecture == "looped"]),
        (8, over_window()),
        (10, [config for (_, architecture), config in over_architecture().items() if architecture == "deep"]),  # slow
        (11, constant_rate() + [*kinds().values()] + [config for seed in SEEDS for config in from_seed(seed)]),
    )
    for rank, configs in groups:
        for config in configs:  # a run of two groups keeps its first rank
            found.setdefault(name_of(config), Planned(name_of(config), config, rank))
    return dict(sorted(found.items(), key=lambda entry: entry[1].rank))


@cache
def confirmatory() -> dict[str, Planned]:
    """The runs of protocol.md by name, in its order.

    Steepest descent searches along r, so its (r, d) is (r, r): as many numbers as CG's, which makes one stack of both.
    """
    descent: dict[str, Any] = {"teacher": "steepest_descent", "probe": ("r", "r")}
    literal: dict[str, Any] = {"norm": "none", "output_scale": 0.02, "clip": 0.1, "lr": 2e-4}
    groups: tuple[tuple[str, int, dict[str, Config]], ...] = (  # group, seeds, kinds
        ("a", 5, {"result": imitation()} | {f"joint-eta{eta:g}": joint(eta=eta) for eta in (5e-4, 0.05, 1e-4)}),
        ("b", 5, {f"cg-accelerated-lambda{x:g}": accelerated(lambda_=x) for x in (10.0, 1.0, 7.0, 13.0, 30.0)}),
        ("c", 3, {f"{teacher}-accelerated-lambda10-sigma{sigma:g}": accelerated(teacher, sigma=(sigma,))
                  for teacher in TEACHERS for sigma in SIGMAS if (teacher, sigma) != ("cg", 1.2)}),
        ("e", 3, {f"cg-accelerated-K{window}": accelerated(window=window) for window in (10, 15)}
               | {f"cg-accelerated-d{d}": accelerated(d=d, heads=d // 32) for d in (64, 128)}),
        ("f", 3, {"result-literal": imitation(**literal)}),
        ("f", 2, {f"result-heads{heads}": imitation(heads=heads) for heads in (2, 4)}),
        ("p", 3, {"result-tf32": imitation(precision="tf32")}),
        ("g", 1, {"joint-eta0.0005-700k": joint(steps=700_000),
                  "cg-accelerated-lambda10-700k": accelerated(steps=700_000)}),
        ("d", 5, {"solution-only": accelerated(supervision="solution"),
                  "descent-accelerated-lambda10": accelerated().replace(**descent)}),
        ("h", 3, {"cg-accelerated-lambda10-rotated": accelerated(family="rotated")}),
        ("i", 1, {"cg-accelerated-lambda10-sqrt": accelerated(sigma=(1.2**0.5,))}),
    )  # fmt: skip
    found = [
        Planned(f"{kind}-seed{seed}", config.replace(seed=seed), rank=0, group=group)
        for group, seeds, kinds in groups
        for kind, config in kinds.items()
        for seed in range(100, 100 + seeds)
    ]
    return {run.name: run for run in found}


@cache
def confirmatory_kinds() -> dict[str, list[str]]:
    """The names of the runs of protocol.md by kind, one for each seed."""
    found: dict[str, list[str]] = {}
    for name in confirmatory():
        found.setdefault(name.rpartition("-seed")[0], []).append(name)
    return found


def planned(name: str) -> Planned:
    """A run by its name."""
    known = exploratory() | confirmatory()
    if name not in known:
        raise unknown_name("run", name, known)
    return known[name]


def config_of(name: str, tiny: bool = False) -> Config:
    """The config that a run must have, or that of the same run at the size of ``small``."""
    return (small(planned(name)) if tiny else planned(name)).config


def lineage(name: str) -> list[Planned]:
    """A run after those whose weights it started from, in order."""
    run = planned(name)
    return [*(lineage(run.after) if run.after else ()), run]


def small(run: Planned) -> Planned:
    """The same run at a size that a CPU trains in a second: five times smaller, a two-thousandth of the steps."""
    config = run.config
    window = None if config.window is None else max(round(config.window * 4 / config.T), 1)
    steps = max(config.steps // 2000, 2)
    changed = config.replace(
        n=4, T=4, d=config.d // 16, heads=2, window=window, batch=8, steps=steps, warmup=min(5, steps // 2), chunk=10,
        threads=1,
    )  # fmt: skip
    return dataclasses.replace(run, config=changed, after=None)


def stacks(wanted: Iterable[Planned], most: int = STACK) -> list[list[Planned]]:
    """Runs in stacks in the order of their ranks: those of one rank and shape together, at most so many."""
    groups: dict[str, list[Planned]] = {}
    for run in sorted(wanted, key=lambda run: run.rank):
        groups.setdefault(repr((run.rank, shape_of(run.config))), []).append(run)
    return [group[k : k + most] for group in groups.values() for k in range(0, len(group), most)]
