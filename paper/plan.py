"""The training runs of the study: each a name and a config, in the order of their value.

The runs of the comparisons follow the paper's setting: n = 20, T = 20, d = 256, batch 64, 100,000 steps. What it leaves
open is ours: peak learning rate 3e-3 (better than 1e-3, see benchmarks/README.md), 8 heads, and beside the paper's loss
(power 1) our recipes' (power 3/4 for imitation, 1/2 for acceleration). A name says what a run is::

    joint-eta0.0005-power1-sigma1.2-seed0
    cg-accelerated-K15-power0.5-sigma1.4-seed0
    result-power1-sigma1.2-seed0-20k              # the same run, 20,000 steps only

Runs of one shape and precision train as one program, a stack.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nlaformer.errors import unknown_name
from nlaformer.learn.recipes import Config, recipe, shape_of

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
"""The bundled models, each with the run it comes from: the last of those that begin where another ended."""
HOME, WEIGHTS = "runs/study", "weights"  # where runs are made, and in it the weights that are kept
STACK = 16  # at eight a model takes 4% longer (benchmarks/README.md)

# The looped transformer of Yang et al., and an ordinary deep one, in place of the paper's three blocks.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "nlaformer": {},
    "looped": {"inject": True, "pre_layers": 0, "post_layers": 0},
    "deep": {"shared": False},
}


@dataclass(frozen=True)
class Planned:
    """A run to be made: the lower its rank, the sooner."""

    name: str
    config: Config
    rank: int
    keep: bool = False
    """Its weights are wanted, not only its numbers."""

    def of_length(self, steps: int | None) -> Planned:
        """The same run with fewer steps, a number its name then ends in; as it is where it has no more than that.

        One that begins with the weights of a run thus shortened is another run too, however short it was before.
        """
        if steps is None:
            return self
        before = None if self.begins_with is None else planned(self.begins_with).of_length(steps).name
        if steps >= self.config.steps and before == self.begins_with:
            return self
        fewer = min(steps, self.config.steps)
        config = self.config.replace(steps=fewer, warmup=min(self.config.warmup, fewer))
        if before is not None:
            config = config.replace(start=weights_of(before))
        return dataclasses.replace(self, name=f"{self.name}-{thousands(steps)}", config=config)

    def in_precision(self, precision: str | None) -> Planned:
        """The same run in another arithmetic, which is no part of its name: its results tell."""
        return self if precision is None else dataclasses.replace(self, config=self.config.replace(precision=precision))

    @property
    def begins_with(self) -> str | None:
        return begun_with(self.config)

    def within(self, folder: Path) -> Planned:
        """The same run made in a folder of the user's: the weights it begins with are there too."""
        if self.begins_with is None:
            return self
        start = str(folder / WEIGHTS / self.begins_with)
        return dataclasses.replace(self, config=self.config.replace(start=start))


def imitation(**changes: Any) -> Config:
    """Result supervision, the paper's loss."""
    return our_imitation(power=1.0, **changes)


def our_imitation(**changes: Any) -> Config:
    """Result supervision, our recipe."""
    return _full_length("cg-imitation", **changes)


def joint(**changes: Any) -> Config:
    """Joint supervision, the paper's loss."""
    return _full_length("cg-joint", **changes)


def accelerated(teacher: str = "cg", **changes: Any) -> Config:
    """Step and solution supervision, our recipe."""
    return _full_length(f"{teacher}-accelerated", **changes)


def _full_length(name: str, **changes: Any) -> Config:
    """A recipe as the study takes it; the first runs ended at 2% of their learning rate, so all that compare do."""
    return recipe(name, **({"steps": STEPS, "final_lr": 0.02} | changes))


def name_of(config: Config, architecture: str = "nlaformer") -> str:
    """The name of a run: what it learns from, then whatever tells it from the other runs of its kind.

    >>> name_of(accelerated("pcg", d=64, sigma=(1.4,)))
    'pcg-accelerated-d64-power0.5-sigma1.4-seed0'
    """
    kind = {"step+solution": f"{config.teacher}-accelerated"}.get(config.supervision, config.supervision)
    parts = {
        architecture: architecture != "nlaformer",
        f"eta{config.eta:g}": config.supervision == "joint",
        f"lambda{config.lambda_:g}": config.supervision == "step+solution" and config.lambda_ != 10,
        f"d{config.d}": config.d != 256,
        f"K{config.window}": config.window not in (None, 20),
        f"power{config.power:g}": True,
        f"lr{config.lr:g}": config.lr != 3e-3,
        f"sigma{'+'.join(f'{sigma:g}' for sigma in config.sigma)}": True,
        f"seed{config.seed}": True,
    }
    return "-".join([kind, *(part for part, told in parts.items() if told)])


@cache
def runs() -> dict[str, Planned]:
    """Every run of the study by name, in the order of their ranks."""
    bundled = [
        Planned(f"bundled-{name}", _full_length(name, sigma=SIGMAS, precision="tf32"), 1, keep=True) for name in BUNDLED
    ]
    bundled += [Planned(name, config, 2, keep=True) for name, config in onward().items()]
    bundled += [Planned(name, config, 3, keep=True) for name, config in ahead().items()]
    bundled += [
        Planned(name, config, 12 if config.precision == "tf32" else 9, keep=True) for name, config in polished().items()
    ]  # the control comes last
    found: dict[str, Planned] = {run.name: run for run in bundled}
    for rank, configs in (
        (4, [imitation(), joint(), *over_sigma()]),
        (5, over_eta() + over_lambda()),
        (6, over_dimension()),
        (8, over_window()),
        (11, like_the_paper() + [*kinds().values()] + [config for seed in SEEDS for config in from_seed(seed)]),
    ):
        for config in configs:  # a run that two studies share keeps its first, better rank
            name = name_of(config)
            found.setdefault(name, Planned(name, config.replace(precision="bf16"), rank))
    for architecture, changes in ARCHITECTURES.items():
        for config in architecture_bases():
            changed = config.replace(**changes, precision="bf16")
            name = name_of(changed, architecture)
            found.setdefault(name, Planned(name, changed, 10 if architecture == "deep" else 7))  # deep is slow
    return dict(sorted(found.items(), key=lambda entry: entry[1].rank))


def onward() -> dict[str, Config]:
    """The first bundled models trained on, down to a fifteenth of the learning rate they had ended with.

    The first imitation was furthest from CG at x_1 and x_2, where one that was taught r and d as well is closer: hence
    one that begins with that one's weights. Powers nearer to 1 than the recipe's weigh the early iterates more.
    """
    common: dict[str, Any] = {"steps": 150_000, "sigma": SIGMAS, "precision": "tf32", "lr": 2e-3, "final_lr": 0.002}
    found = {f"bundled-{name}-150k": recipe(name, start=weights_of(f"bundled-{name}"), **common)
             for name in BUNDLED if name != "cg-joint"}  # fmt: skip
    imitating = found["bundled-cg-imitation-150k"]
    return found | {
        "bundled-cg-imitation-150k": imitating.replace(power=0.85),
        "bundled-cg-imitation-after-joint": imitating.replace(power=0.8, start=weights_of("bundled-cg-joint")),
    }


def ahead() -> dict[str, Config]:
    """The accelerated models let go of their teacher, by a short training with a greater weight of the solution.

    The sum of the two errors is least at (x_t + lambda x) / (1 + lambda), ahead of the teacher by (1 + lambda)^2 in the
    squared error. At lambda = 10 ours had come that far and a little further (study/lead.py). As long a training with
    the old lambda is the control: it tells the weight's effect from that of more steps.
    """
    short: dict[str, Any] = {"steps": 1800, "warmup": 50, "batch": 32, "lr": 3e-4, "final_lr": 0.002, "threads": 1}
    return {
        f"bundled-{teacher}-accelerated-lambda{lambda_:g}": recipe(
            f"{teacher}-accelerated", lambda_=lambda_, sigma=SIGMAS, precision="float32",
            start=weights_of(f"bundled-{teacher}-accelerated-150k"), **short
        )
        for teacher in TEACHERS for lambda_ in (100.0, 10.0)
    }  # fmt: skip


def polished() -> dict[str, Config]:
    """The accelerated models trained on with more digits than tf32's, whose rounding is as large as their last errors.

    With a power near 0 an iterate counts by its relative gain, so that the last ones, a thousandth of the first, count.
    The same in tf32 is the control: it tells the digits' effect from that of the power and the steps.
    """
    long: dict[str, Any] = {"steps": 60_000, "warmup": 200, "final_lr": 0.005, "power": 0.1, "floor": 1e-9}
    found = {
        f"bundled-{teacher}-accelerated-polished-lr{lr:g}": recipe(
            f"{teacher}-accelerated", lambda_=100.0, sigma=SIGMAS, precision="bf16x3", lr=lr,
            start=weights_of(f"bundled-{teacher}-accelerated-lambda100"), **long
        )
        for teacher in TEACHERS for lr in (2e-4, 8e-4)
    }  # fmt: skip
    control = found["bundled-cg-accelerated-polished-lr0.0002"].replace(precision="tf32")
    return found | {"bundled-cg-accelerated-polished-tf32": control}


def begun_with(config: Config) -> str | None:
    """The run whose weights a run begins with."""
    return None if config.start is None else Path(config.start).name


def lineage(name: str) -> list[Planned]:
    """A run and those before it, each with the weights of the one before; the first began with random ones."""
    run = planned(name)
    return [*(lineage(run.begins_with) if run.begins_with else ()), run]


def weights_of(run: str) -> str:
    """Where the weights of a run are found by the runs that begin with them."""
    return f"{HOME}/{WEIGHTS}/{run}"


def kinds() -> dict[str, Config]:
    """One run of every kind, with the paper's loss (power 1) and with ours."""
    found = {"result, power 1": imitation(), "result, our recipe": our_imitation(), "joint, power 1": joint()}
    for teacher in TEACHERS:
        found[f"faster than {teacher.upper()}, our recipe"] = accelerated(teacher)
        found[f"faster than {teacher.upper()}, power 1"] = paper_accelerated(teacher)
    return found


def from_seed(seed: int) -> list[Config]:
    """What is trained from every seed: the kinds that the paper's claims and the bundled models rest on."""
    ours = [accelerated(teacher, seed=seed) for teacher in TEACHERS]
    return [imitation(seed=seed), joint(seed=seed), paper_accelerated("cg", seed), *ours]


def seeds_of(config: Config) -> tuple[str, ...]:
    """The names of a run and of those that differ from it in their seed, if there are any."""
    return names(config.replace(seed=seed) for seed in (SEEDS if config in from_seed(config.seed) else (config.seed,)))


def paper_accelerated(teacher: str, seed: int = 0, **changes: Any) -> Config:
    """Step and solution supervision, the paper's loss."""
    return accelerated(teacher, seed=seed, power=1.0, **changes)


def over_sigma() -> list[Config]:
    """Our acceleration at every sigma."""
    return [accelerated(teacher, sigma=(sigma,)) for teacher in TEACHERS for sigma in SIGMAS]


def over_eta() -> list[Config]:
    return [joint(eta=eta) for eta in ETAS]


def over_lambda() -> list[Config]:
    return [paper_accelerated("cg", lambda_=lambda_) for lambda_ in ALL_LAMBDAS]


def like_the_paper() -> list[Config]:
    """A constant learning rate of 1e-3 after the warm-up: as close to the paper's text as it goes."""
    plain: dict[str, Any] = {"lr": 1e-3, "final_lr": 1.0}
    return [imitation(**plain), joint(**plain), paper_accelerated("cg", **plain)]


def over_window() -> list[Config]:
    """Our acceleration at every window and sigma."""
    return [config.replace(window=window) for window in WINDOWS for config in over_sigma()]


def over_dimension() -> list[Config]:
    """Our acceleration at every embedding size and sigma; heads stay 32 wide."""
    return [config.replace(d=d, heads=d // 32) for d in DIMENSIONS for config in over_sigma()]


def architecture_bases() -> list[Config]:
    """What every architecture learns: CG's iterates, and to be faster."""
    return [imitation(), accelerated("cg")]


def names(configs: Iterable[Config], architecture: str = "nlaformer") -> tuple[str, ...]:
    """The names of runs, for an artefact to refer to."""
    return tuple(name_of(config, architecture) for config in configs)


def planned(name: str) -> Planned:
    """A run by its name."""
    if name not in runs():
        raise unknown_name("run", name, runs())
    return runs()[name]


def small(run: Planned) -> Planned:
    """The same run at a size a CPU trains in a second: five times smaller, a two-thousandth of the steps."""
    config = run.config
    window = None if config.window is None else max(round(config.window * 4 / config.T), 1)
    steps = max(config.steps // 2000, 2)
    changed = config.replace(
        n=4, T=4, d=config.d // 16, heads=2, window=window, batch=8, steps=steps, warmup=min(5, steps // 2), chunk=10,
        threads=1, start=None,
    )  # fmt: skip
    return dataclasses.replace(run, config=changed)


def stacks(wanted: Iterable[Planned]) -> list[list[Planned]]:
    """Runs packed into stacks in the order of their ranks: those of one rank and one shape together."""
    packed: list[tuple[str, list[Planned]]] = []
    for run in sorted(wanted, key=lambda run: run.rank):
        shape = repr((run.rank, shape_of(run.config)))
        room = next((stack for known, stack in packed if known == shape and len(stack) < STACK), None)
        if room is None:
            packed.append((shape, [run]))
        else:
            room.append(run)
    return [stack for _, stack in packed]


def thousands(steps: int) -> str:
    """A number of steps in words.

    >>> thousands(150_000), thousands(1800)
    ('150k', '1800')
    """
    return f"{steps // 1000}k" if steps % 1000 == 0 else str(steps)
