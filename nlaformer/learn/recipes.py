"""What a training run is made of: one frozen ``Config``, and the named recipes that fill it in.

The paper leaves open the heads and layers of the trained blocks, the mask, normalization, positions, input
injection, T, the learning-rate curve and whether the window K truncates the gradient. Each is a field here, with
our choice as its default and the paper's words beside it where it has any.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal

from nlaformer.arrays import numbers, plain
from nlaformer.errors import NLAFormerError, OptionError, look_up, shown, unknown_name

Supervision = Literal["result", "joint", "step+solution", "solution"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A training run, complete: two runs with equal configs give equal weights on one machine.

    Parameters
    ----------
    recipe : str
        The name this config started from.
    family : str
        The family of linear systems; "spd" is the paper's.
    n : int
        Unknowns of each system.
    sigma : tuple[float, ...]
        Spread of the log-normal diagonal of the family "spd"; several values are mixed in equal parts.
    T : int
        Iterates: pre block = iterate 0, T - 1 loops, post block = iterate T.
    d : int
        Rows of the token matrix (the embedding size).
    heads : int
        Attention heads of every layer.
    ffn : int | None
        Width of the feed-forward part; none: 4 d.
    pre_layers : int
        Layers of the pre block; 0: none (iterate 0 is then the read-in itself).
    loop_layers : int
        Layers of the loop block.
    post_layers : int
        Layers of the post block; 0: none (iterate T is then one more loop).
    shared : bool
        Every pass of the loop uses the same weights; false: an ordinary deep transformer.
    inject : bool
        The prompt is added to the input of every block, after Yang et al.
    causal : bool
        A token attends to itself and earlier ones only.
    norm : {"rms", "none"}
        RMS normalization before each part of a layer; "none" is the paper's literal layer.
    output_scale : float
        Factor on the initial W_O and W_2; the literal layer (norm none) trains with 0.02, clip 0.1, lr to 2e-4.
    supervision : {"result", "joint", "step+solution", "solution"}
        Which loss: see nlaformer.learn.supervision.
    teacher : {"cg", "pcg"}
        Whose iterates x_t, r_t, d_t are the targets.
    eta : float
        Weight of (r_t, d_t) under joint supervision.
    lambda_ : float
        Weight of the solution beside the steps; written ``lambda`` on the command line.
    window : int | None
        K: the loss takes the last K iterates; none: all T + 1.
    truncate : bool
        Iterates before the window run without gradient (Yang et al.); needs ``inject``.
    power : float
        p: each iterate's error l_t enters as (l_t^p - 1)/p; 1 is the paper's loss, 0 the logarithm (scale-
        free): the gradient of an iterate then counts like l_t^(p - 1/2), so 1/2 weighs early and late iterates
        alike.
    floor : float
        Added to l_t where p < 1; to l_0 at least 1 (see nlaformer.learn.supervision).
    steps : int
        Training steps (the paper says epochs).
    batch : int
        Fresh systems per step.
    lr : float
        Peak learning rate of Adam.
    warmup : int
        Steps of linear warm-up.
    final_lr : float
        Where the cosine after the warm-up ends, as a fraction of lr.
    beta1 : float
        Adam's decay of the mean.
    beta2 : float
        Adam's decay of the mean square.
    clip : float
        Largest norm of a model's gradient; the (r, d) probe has its own.
    start : str | None
        The model whose weights the run begins with, a folder or a bundled name; none: random weights.
    seed : int
        Seed of the initial weights and of the training systems.
    chunk : int
        Steps whose systems are drawn at once (part of the data stream's definition).
    threads : int | None
        Threads of a CPU run; none: torch's choice. With one, the bits do not depend on the number of cores.
    precision : {"float32", "bf16x3", "tf32", "bf16"}
        Arithmetic on CUDA, from the most digits to the fewest, master weights float32 always; bf16x3 makes a product
        of float32 from three of bf16, and the weights' gradients in tf32. A CPU computes in float32.

    Examples
    --------
    >>> config = recipe("cg-joint", steps=2000)
    >>> config.n, config.T, config.supervision, config.replace(eta=1e-3).eta
    (20, 20, 'joint', 0.001)
    >>> Config.from_json(config.to_json()) == config
    True
    """

    recipe: str = "custom"

    # The problem
    family: str = "spd"
    n: int = 20
    sigma: tuple[float, ...] = (1.2,)

    # The model
    T: int = 20
    d: int = 256
    heads: int = 8
    ffn: int | None = None
    pre_layers: int = 1
    loop_layers: int = 1
    post_layers: int = 1
    shared: bool = True
    inject: bool = False
    causal: bool = False
    norm: Literal["rms", "none"] = "rms"
    output_scale: float = 0.2

    # Supervision
    supervision: Supervision = "result"
    teacher: Literal["cg", "pcg"] = "cg"
    eta: float = 5e-4
    lambda_: float = 10.0
    window: int | None = None
    truncate: bool = False
    power: float = 1.0
    floor: float = 1e-6

    # Optimization
    steps: int = 20_000
    batch: int = 64
    lr: float = 1e-3
    warmup: int = 1000
    final_lr: float = 0.02
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 1.0
    start: str | None = None
    seed: int = 0
    chunk: int = 64
    threads: int | None = None
    precision: Literal["float32", "bf16x3", "tf32", "bf16"] = "tf32"

    @property
    def ffn_width(self) -> int:
        return 4 * self.d if self.ffn is None else self.ffn

    @property
    def loops(self) -> int:
        """Passes of the loop block for T iterations: the post block, if there is one, is the last iteration."""
        return self.T - (self.post_layers > 0)

    @property
    def first(self) -> int:
        """T_0 = max(T - K + 1, 0), the first iterate of the window."""
        return 0 if self.window is None else max(self.T - self.window + 1, 0)

    def replace(self, /, **changes: Any) -> Config:
        """A copy with some fields changed; values are checked against the field's type."""
        if "lambda" in changes:
            changes["lambda_"] = changes.pop("lambda")
        for name, value in changes.items():
            changes[name] = _checked(name, value)
        return dataclasses.replace(self, **changes)

    def set(self, settings: Iterable[str]) -> Config:
        """A copy with ``key=value`` settings applied, the form the command line takes.

        >>> Config().set(["lr=3e-4", "sigma=1.0,1.4", "lambda=7"]).sigma
        (1.0, 1.4)
        """
        return self.adapted(**dict(parse(setting) for setting in settings))

    def adapted(self, /, **changes: Any) -> Config:
        """``replace``; but a warm-up longer than the steps becomes a tenth of them, unless it is given too."""
        changed = self.replace(**changes)
        if "warmup" in changes or not 0 < changed.steps < changed.warmup:
            return changed
        return changed.replace(warmup=changed.steps // 10)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return {**dataclasses.asdict(self), "sigma": list(self.sigma)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Config:
        """What ``to_json`` gave."""
        if not isinstance(document, Mapping) or not document or not all(isinstance(name, str) for name in document):
            raise OptionError(f"a config is the mapping that to_json gives, not {shown(document)}")
        return cls().replace(**document)

    def differences(self, other: Config) -> dict[str, tuple[Any, Any]]:
        """The fields in which two configs differ, with both values."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def problems(self) -> list[str]:
        """Everything that makes this config impossible, one sentence each."""
        found = [f"{name}={getattr(self, name)} must be at least {least}" for name, least in _LEAST.items()
                 if getattr(self, name) is not None and not getattr(self, name) >= least]  # fmt: skip
        found += [f"{name}={getattr(self, name)} must be positive" for name in _POSITIVE if not getattr(self, name) > 0]
        found += [f"{field.name}={value} must be finite" for field in fields(self)
                  if isinstance(value := getattr(self, field.name), float) and math.isinf(value)]  # fmt: skip
        if self.seed >= 2**63:
            found.append(f"seed={self.seed} must be below 2^63")
        if self.heads > 0 and self.d % self.heads:
            found.append(f"d={self.d} is not divisible by heads={self.heads}")
        if self.window is not None and self.window > self.T + 1:
            found.append(f"window={self.window} exceeds the T+1={self.T + 1} iterates")
        if not self.sigma or any(not 0 < value < math.inf for value in self.sigma):
            found.append(f"sigma={self.sigma} must be one or more positive numbers")
        found += [f"{name}={getattr(self, name)} must lie in [0, 1)" for name in ("beta1", "beta2")
                  if not 0 <= getattr(self, name) < 1]  # fmt: skip
        found += [f"{name}={getattr(self, name)} must lie in [0, 1]" for name in ("power", "final_lr")
                  if not 0 <= getattr(self, name) <= 1]  # fmt: skip
        if self.warmup > self.steps:
            found.append(f"warmup={self.warmup} exceeds steps={self.steps}; set warmup too, to at most that")
        if self.truncate and not self.inject:
            found.append("truncate=True needs inject=True: without it the read-in would get no gradient")
        if not self.shared and self.loops < 1:
            found.append(f"shared=False needs at least one loop, T={self.T} leaves {self.loops}")
        return found + self._family_problems()

    def _family_problems(self) -> list[str]:
        from nlaformer.learn.data import family_of

        try:
            family_of(self.replace(n=max(self.n, 1), sigma=tuple(s for s in self.sigma if 0 < s < math.inf) or (1.0,)))
        except NLAFormerError as error:
            return [str(error)]
        return []

    def validate(self) -> Config:
        """Itself, or an OptionError that lists every problem."""
        if found := self.problems():
            raise OptionError(f"this config ({self.recipe}) cannot be trained:\n" + "\n".join(f"- {p}" for p in found))
        return self


_LEAST = {
    "n": 2,
    "T": 1,
    "d": 1,
    "heads": 1,
    "ffn": 1,
    "pre_layers": 0,
    "loop_layers": 1,
    "post_layers": 0,
    "window": 1,
    "steps": 1,
    "batch": 1,
    "warmup": 0,
    "seed": 0,
    "chunk": 1,
    "threads": 1,
    "eta": 0,
    "lambda_": 0,
}
_POSITIVE = ("output_scale", "floor", "lr", "clip")

# Fields that may differ within a stack: they become tensors over the members, or act on a member's data alone.
PER_MEMBER = frozenset({
    "recipe", "family", "sigma", "output_scale", "supervision", "teacher", "eta", "lambda_", "window", "power",
    "floor", "lr", "warmup", "final_lr", "clip", "start", "seed",
})  # fmt: skip


def shape_of(config: Config) -> dict[str, Any]:
    """The fields a stack must share: those that give the program its shape."""
    shared = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in PER_MEMBER}
    return shared | ({"window": config.window} if config.truncate else {})


def check_stack(configs: Sequence[Config]) -> None:
    """Refuse configs that cannot train as one program, naming every field that differs."""
    if not configs:
        raise OptionError("a stack needs at least one config")
    shapes = [shape_of(config) for config in configs]
    names = sorted({name for shape in shapes for name in shape})
    mixed = {name: list(dict.fromkeys(shape.get(name) for shape in shapes)) for name in names}
    if differing := [f"{name}: {', '.join(map(str, values))}" for name, values in mixed.items() if len(values) > 1]:
        raise OptionError(
            "configs train as one program only if these fields agree:\n"
            + "\n".join(f"- {line}" for line in differing)
            + "\ntrain them one after another, or make them equal"
        )


def parse(setting: str) -> tuple[str, Any]:
    """A ``key=value`` setting as a field name and a value of its type."""
    key, separator, text = setting.partition("=")
    key = key.strip()
    if not separator:
        raise OptionError(f"--set takes key=value, given {setting!r}")
    name = "lambda_" if key == "lambda" else key
    if name not in _types():
        raise unknown_name("setting", key, ["lambda" if known == "lambda_" else known for known in _types()])
    return name, _from_text(name, text.strip(), _types()[name])


_NUMBERS: dict[Any, type] = {int: Integral, float: Real}


@cache
def _types() -> dict[str, Any]:
    return typing.get_type_hints(Config)


def _from_text(name: str, text: str, kind: Any) -> Any:
    options = typing.get_args(kind)
    try:
        if isinstance(kind, types.UnionType):  # int | None
            return None if text.lower() in ("none", "") else _from_text(name, text, options[0])
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            return tuple(float(part) for part in text.replace("+", ",").split(",") if part.strip())
        if kind is int and float(text) == int(float(text)):
            return int(float(text))  # 2e4 is an honest way to write 20000
        return kind(text) if kind in (float, str) else _checked(name, text)
    except (ValueError, KeyError, OverflowError):
        raise OptionError(f"{name}={text!r} is not {_describe(kind)}") from None


def _checked(name: str, value: Any) -> Any:
    """The value in the field's own type, or an OptionError."""
    if name not in _types():
        raise unknown_name("setting", name, _types())
    kind = _types()[name]
    try:
        return _converted(value, kind)
    except (TypeError, OverflowError) as error:
        size = " of 64 bits" if isinstance(error, OverflowError) else ""
        raise OptionError(f"{name}={shown(value)} is not {_describe(kind)}{size}") from None


def _converted(value: Any, kind: Any) -> Any:
    """The value as a field of that type holds it, numbers of any library as Python's own; or a TypeError."""
    if typing.get_origin(kind) is tuple:
        return tuple(_converted(entry, float) for entry in numbers(value))
    if isinstance(kind, types.UnionType):
        return None if value is None else _converted(value, typing.get_args(kind)[0])
    value = plain(value)
    if kind in _NUMBERS and isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool):
        number = kind(value)
        if kind is int and abs(number) >= 2**64:
            raise OverflowError
        return number
    if kind in (bool, str) and isinstance(value, kind):
        return value
    if isinstance(value, str) and value in typing.get_args(kind):  # of a Literal
        return value
    raise TypeError


def _describe(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "a list of numbers such as 1.0,1.2"
    if isinstance(kind, types.UnionType):
        return f"{_describe(typing.get_args(kind)[0])}, or none"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}[kind]


def quickstart() -> Config:
    """Two minutes on a laptop: iterates that beat CG's first ones on systems of eight unknowns."""
    return Config(n=8, T=8, d=64, heads=4, supervision="step+solution", lr=4e-3, steps=1500, warmup=100, threads=1)


def cg_imitation() -> Config:
    """The paper's first setting, result supervision: the iterates of CG, nothing else (the paper's loss: power=1)."""
    return Config(supervision="result", lr=3e-3, final_lr=0.002, power=0.75)


def cg_joint() -> Config:
    """The paper's first setting, joint supervision: CG's x, r and d, with the paper's loss."""
    return Config(supervision="joint", eta=5e-4, lr=3e-3)


def cg_accelerated() -> Config:
    """The paper's second setting: step + 10 solution, converging faster than CG (the paper's loss: power=1)."""
    return Config(supervision="step+solution", lambda_=10.0, window=20, lr=3e-3, final_lr=0.002, power=0.5, floor=1e-8)


def pcg_accelerated() -> Config:
    """The paper's second setting with Jacobi-preconditioned CG as the teacher (the paper's loss: power=1)."""
    return cg_accelerated().replace(teacher="pcg")


_RECIPES: dict[str, Callable[[], Config]] = {
    "quickstart": quickstart,
    "cg-imitation": cg_imitation,
    "cg-joint": cg_joint,
    "cg-accelerated": cg_accelerated,
    "pcg-accelerated": pcg_accelerated,
}


def recipe(name: str, **changes: Any) -> Config:
    """A named training configuration, with fields changed at will.

    Examples
    --------
    >>> import nlaformer as nf
    >>> nf.recipe("cg-accelerated", sigma=(1.0, 1.2, 1.4)).sigma
    (1.0, 1.2, 1.4)
    >>> nf.recipe("cg-accelerated", steps=50).warmup
    5
    """
    return look_up("recipe", name, _RECIPES)().adapted(recipe=name, **changes)


def recipes() -> dict[str, str]:
    """The names of the recipes, each with what it does.

    Examples
    --------
    >>> import nlaformer as nf
    >>> sorted(nf.recipes())
    ['cg-accelerated', 'cg-imitation', 'cg-joint', 'pcg-accelerated', 'quickstart']
    """
    return {name: (make.__doc__ or "").strip() for name, make in _RECIPES.items()}
