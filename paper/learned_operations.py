"""Learned operations, after the paper's title: does training find what the theorem of section 2 constructs?

The theorem gives weights for one layer of two heads. Here layers of the same shape are trained on the same prompt from
random weights, and measured beside the construction on the same fresh inputs: operands uniform in [-1, 1], divisors at
least ``SMALLEST_DIVISOR`` in magnitude. Only the result counts, not what a layer leaves in the other rows.

All seeds and learning rates of an operation train as one stack, and a learning rate is chosen for each operation and
variant by its median error on inputs of its own. Errors are relative: the norm of the errors of all test inputs over
the norm of all results, so 1 is what the answer zero scores.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from nlaformer.console import Sheet
from nlaformer.express import accuracy
from nlaformer.express.operation import Operation, operation, operations
from nlaformer.express.theorem import RECORDS
from nlaformer.learn.model import stack as as_stack
from nlaformer.learn.optimizer import adam, bias_corrections
from nlaformer.report.figure import CURVES, INK, MARKERS, panels, tidy
from nlaformer.transformer import FFN, Heads, Layer, NLAFormer
from nlaformer.weights import Dense
from paper.results import Results

FILE = "learned-operations"
SMALLEST_DIVISOR = 0.2
_CHUNK = 50  # steps whose inputs are drawn at once
_TRAINING, _VALIDATION, _TEST = 1, 2, 3  # streams of inputs


@dataclass(frozen=True)
class Variant:
    """A shape of the learned layer, and the part of the budget it trains for."""

    name: str
    heads: int = 2
    ffn: int = 128
    norm: bool = False
    part: float = 1.0


Row = dict[str, Any]
VARIANTS = (
    Variant("eq. (1), two heads"),
    Variant("eq. (1), a quarter of the steps", part=0.25),
    Variant("with RMS normalization", norm=True),
    Variant("four heads, FFN 256", heads=4, ffn=256),
)
FORMS: dict[str, dict[str, Any]] = {  # the constructions beside them
    "paper's pair": {"scheme": "paper"},
    "order 1": {"order": 1},
    "order 3": {"order": 3},
}


@dataclass(frozen=True)
class Budget:
    """How long and on what the layers train."""

    n: int = 5
    steps: int = 4000
    batch: int = 64
    seeds: tuple[int, ...] = (0, 1, 2)
    lrs: tuple[float, ...] = (1e-2, 3e-2)
    warmup: int = 100
    tested: int = 1024


FULL, SMALL = Budget(), Budget(n=2, steps=16, batch=16, warmup=4, tested=64)


# --- learning ---


def learn(name: str, variant: Variant, budget: Budget) -> Row:
    """Train a stack of layers, one for each learning rate and seed, and test those of the best learning rate."""
    op = _build(name, budget.n, dtype=torch.float32)
    members = [(lr, seed) for lr in budget.lrs for seed in budget.seeds]
    stack = as_stack([_initial(op.layout.rows, variant, seed) for _, seed in members])
    _train(stack, op, torch.tensor([lr for lr, _ in members]), max(1, round(variant.part * budget.steps)), budget)
    shape = len(budget.lrs), len(budget.seeds)
    validation, test = (_errors(stack, op, budget, stream).reshape(shape) for stream in (_VALIDATION, _TEST))
    best = int(validation.nan_to_num(torch.inf).median(1).values.argmin())
    largest = max(float(p.detach().unflatten(0, shape)[best].abs().max()) for p in stack.parameters())
    errors = test[best].tolist()
    return {"operation": name, "variant": variant.name, "lr": budget.lrs[best], "errors": errors,
            "largest_weight": largest}  # fmt: skip


def _train(stack: NLAFormer, op: Operation, lr: Tensor, steps: int, budget: Budget) -> None:
    """Adam with a warm-up and a cosine, on the squared relative error of the result; fresh inputs at every step."""
    parameters = list(stack.parameters())
    mean, square = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    betas = (0.9, 0.99)
    rng = np.random.default_rng([_TRAINING, budget.n])
    for step in range(steps):
        if step % _CHUNK == 0:
            prompts, wanted = _examples(op, (len(lr), min(_CHUNK, steps) * budget.batch), rng)
            size = wanted.square().mean()
        batch = slice(step % _CHUNK * budget.batch, (step % _CHUNK + 1) * budget.batch)
        gap = _entries(op.read(stack(prompts[:, batch]))) - wanted[:, batch]  # (E, batch, entries)
        gradients = torch.autograd.grad((gap.square().mean((1, 2)) / size).sum(), parameters)
        t = step + 1
        rate = lr * min(1.0, t / budget.warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for p, gradient, m, v in zip(parameters, gradients, mean, square, strict=True):
            own = rate.reshape(-1, *[1] * (p.dim() - 1))
            adam(p, gradient, m, v, own, betas, bias_corrections(betas, t))


@torch.no_grad()
def _errors(stack: NLAFormer, op: Operation, budget: Budget, stream: int) -> Tensor:
    """The relative error of every member, (E,)."""
    prompts, wanted = _examples(op, (1, budget.tested), np.random.default_rng([stream, budget.n]))
    members = next(stack.parameters()).shape[0]
    gap = _entries(op.read(stack(prompts.expand(members, *prompts.shape[1:])))) - wanted
    return gap.square().sum((1, 2)).sqrt() / wanted.norm()  # type: ignore[no-any-return]


def _initial(rows: int, variant: Variant, seed: int) -> NLAFormer:
    """A layer of eq. (1) with random weights: heads as wide as the prompt is high, small outputs."""
    generator = torch.Generator().manual_seed(seed)

    def normal(out: int, into: int, scale: float = 1.0) -> Dense:
        return Dense(scale * torch.randn(out, into, generator=generator) / math.sqrt(into))

    wide = variant.heads * rows
    W_Q, W_K, W_U = normal(wide, rows, 1 / math.sqrt(rows)), normal(wide, rows), normal(wide, rows)
    heads = Heads(W_Q, W_K, W_U, normal(rows, wide, 0.2), variant.heads)
    ffn = FFN(normal(variant.ffn, rows), torch.zeros(variant.ffn), normal(rows, variant.ffn, 0.2), torch.zeros(rows))
    return NLAFormer(pre=[Layer(heads, ffn, (torch.ones(rows), torch.ones(rows)) if variant.norm else None)])


# --- inputs, results, constructions ---


def construct(name: str, budget: Budget) -> Row:
    """The errors of the constructions, in float64, on the test inputs of the learned layers; shape, largest weight."""
    built = {form: _build(name, budget.n, dtype=torch.float64, **options) for form, options in FORMS.items()}
    rng = np.random.default_rng([_TEST, budget.n])
    operands = [operand.astype(np.float64) for operand in _draw(name, budget.n, (1, budget.tested), rng)]
    exact = _entries(accuracy.reference(name, *operands))
    errors = {
        form: float(np.sqrt(np.square(_entries(op(*operands)) - exact).sum() / np.square(exact).sum()))
        for form, op in built.items()
    }
    cost, model = built["order 1"].cost, built["order 1"].model
    largest = max(float(w.abs().max()) for w in model.state_dict().values() if w.is_floating_point() and w.numel())
    return {"operation": name, "errors": errors, "layers": cost.layers, "heads": cost.heads, "ffn": cost.ffn_width,
            "largest_weight": largest}  # fmt: skip


def _build(name: str, n: int, dtype: torch.dtype, **options: Any) -> Operation:
    """The operation with the paper's literal prompt: entries up to 1, no scaling."""
    f = RECORDS[name].f
    least = SMALLEST_DIVISOR if name == "divide" else None
    return operation(name, n=n, dtype=dtype, f=f, normalize=False, bound=1.0, minimum=least, **options)


def _draw(name: str, n: int, count: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """Operands uniform in [-1, 1], float32."""
    shapes = [operand.shape[1:] for operand in accuracy.draw(name, n, seeds=(0,))]
    operands = [rng.uniform(-1, 1, (*count, *shape)).astype(np.float32) for shape in shapes]
    if name == "divide":
        size = SMALLEST_DIVISOR + (1 - SMALLEST_DIVISOR) * np.abs(operands[1])
        operands[1] = np.copysign(np.minimum(size, np.float32(1)), operands[1])
    return operands


def _examples(op: Operation, count: tuple[int, int], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Prompts (E, count, rows, tokens) and the entries of their results (E, count, entries)."""
    operands = _draw(op.name, op.n, count, rng)
    wanted = _entries(accuracy.reference(op.name, *operands)).astype(np.float32)
    return op.prompt(*(torch.from_numpy(operand) for operand in operands)), torch.from_numpy(wanted)


def _entries(result: Any) -> Any:
    """The entries of results, tensors or arrays, one or two of them: (E, count, entries)."""
    parts = result if isinstance(result, tuple) else (result,)
    join = torch.cat if isinstance(parts[0], Tensor) else np.concatenate
    return join([part.reshape(*part.shape[:2], -1) for part in parts], -1)


# --- the artefact ---


def measure(small: bool) -> dict[str, Any]:
    """Half an hour on one core; small: seconds, and errors that mean nothing."""
    return study(SMALL if small else FULL)


def study(budget: Budget) -> dict[str, Any]:
    """Learn every operation in every variant, and measure the constructions beside them."""
    learned = [learn(name, variant, budget) for name in operations() for variant in VARIANTS]
    return {"budget": asdict(budget), "learned": learned, "constructed": [construct(n, budget) for n in operations()]}


def _errors_by_variant(found: dict[str, Any], operation: str) -> list[list[float]]:
    """The errors of the seeds of an operation, in the order of ``VARIANTS``."""
    known = {(row["operation"], row["variant"]): row["errors"] for row in found["learned"]}
    return [known[operation, variant.name] for variant in VARIANTS]


def tables(results: Results) -> list[Sheet]:
    """Errors of learned layers, median and range over the seeds, and of the constructions."""
    found = results.document(FILE)
    budget, lines = Budget(**found["budget"]), []
    for row in found["constructed"]:
        learned = _errors_by_variant(found, row["operation"])
        first, *others = (f"{median(errors):.1e}" for errors in learned)
        spread = f"{max(learned[0]) / min(learned[0]):.1f}"
        lines.append((row["operation"], first, spread, *others, *(f"{row['errors'][form]:.0e}" for form in FORMS)))
    headings = ("eq. (1)\n2 heads", "max /\nmin", "quarter\nsteps", "RMS\nnorm", "4 heads\nFFN 256")
    return [
        Sheet(
            f"Relative errors of learned and constructed layers, n = {budget.n}",
            ("operation", *headings, "paper's\npair", "order\n1", "order\n3"),
            tuple(lines),
            f"Learned, left: medians of {len(budget.seeds)} seeds, of the first their largest error over the smallest, "
            f"after {budget.steps} steps of {budget.batch} fresh inputs, float32, the better of {len(budget.lrs)} "
            f"learning rates. Constructed, right: float64. Both on the same {budget.tested} inputs in [-1, 1].",
        )
    ]


def figure(results: Results) -> Figure:
    """Every operation on a line: learned errors with their range over the seeds, and the constructions'."""
    found = results.document(FILE)
    figure, (axes,) = panels(1, width=8.2, height=5.4)
    names = [row["operation"] for row in found["constructed"]]
    best = min(min(errors) for name in names for errors in _errors_by_variant(found, name))
    worst = max(row["errors"]["order 1"] for row in found["constructed"])
    title = (
        f"Constructed layers err by at most {worst:.0e}, learned ones by {best:.0e} or more, n = {found['budget']['n']}"
    )
    tidy(axes, title, "relative error on fresh inputs (1e-17: none)")
    by_variant = zip(*(_errors_by_variant(found, name) for name in names), strict=True)
    for k, (variant, rows) in enumerate(zip(VARIANTS, by_variant, strict=True)):
        places = [line + 0.15 * (k - 1.5) for line in range(len(names))]
        axes.hlines(places, list(map(min, rows)), list(map(max, rows)), color=CURVES[k], linewidth=1)
        label = f"learned: {variant.name}"
        axes.plot(list(map(median, rows)), places, MARKERS[k], color=CURVES[k], markersize=4.5, label=label)
    for form, marker in zip(FORMS, ("x", "+", "|"), strict=True):
        errors = [max(row["errors"][form], 1e-17) for row in found["constructed"]]
        axes.plot(errors, range(len(names)), marker, color=INK, markersize=7, label=f"constructed: {form}")
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
