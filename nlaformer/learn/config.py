"""The configuration of a training run: one frozen ``Config``.

The paper leaves open the heads and layers of the trained blocks, the mask, normalization, positions, input
injection, T, the learning-rate curve and whether the window K truncates the gradient. Each is a field here; the
default is our choice.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

from nlaformer import problems
from nlaformer.arrays import is_whole
from nlaformer.errors import OptionError, shown, unknown_name
from nlaformer.learn import checks, sources, teachers
from nlaformer.learn.methods import METHODS
from nlaformer.learn.settings import checked, parsed, parsed_option, spelt
from nlaformer.learn.sources import NO_OPTIONS, Options
from nlaformer.program.language import Program


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that determines a training run: equal configs give equal weights on one machine.

    Parameters
    ----------
    recipe : str
        The recipe this config was made from.
    program : str | None
        The method whose learned parts are trained; a Program of your own is module:Name, none: a solver that imitates.
    program_options : Options
        Options of the program by name; on the command line each on its own, as in program.order=2.
    family : str
        The family of linear systems; the paper's is spd, a class of your own is module:Name.
    family_options : Options
        Options of the family by name; on the command line each on its own, as in family.ridge=0.5.
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
        Layers of the pre block; 0: none (iterate 0 is then the read-in itself). In a program: of each part, once.
    loop_layers : int
        Layers of the loop block. In a program: of each part in step.
    post_layers : int
        Layers of the post block; 0: none (iterate T is then one more loop).
    shared : bool
        Whether every pass of the loop uses the same weights; false: an ordinary deep transformer.
    inject : bool
        Add the prompt to the input of every block (Yang et al.).
    causal : bool
        Let a token attend only to itself and earlier ones.
    norm : {"rms", "none"}
        RMS normalization before each part of a layer; "none" is the paper's literal layer.
    read_norm : bool
        In a program with norm rms: normalize the rows that what a part says is read from; false: they are read as they
        are, as in models from before this setting.
    output_scale : float
        Factor on the initial W_O and W_2; the literal layer (norm none) trains with 0.02, clip 0.1, lr to 2e-4.
    supervision : {"result", "joint", "step+solution", "solution"}
        The loss; see nlaformer.learn.supervision.
    teacher : str
        The method whose iterates are the targets; cg, pcg, any algorithm, or a Program of your own as module:Name.
    teacher_options : Options
        Options of the teacher by name; on the command line each on its own, as in teacher.step_size=0.1.
    probe : tuple[str, ...] | None
        The states of the teacher that the second probe reads; none: r and d, or all but x where there are no r and d.
    eta : float
        Weight of (r_t, d_t) under joint supervision.
    lambda_ : float
        Weight of the solution beside the steps; written ``lambda`` on the command line.
    window : int | None
        K: the loss is the mean over the last K iterates; none: over all T + 1.
    truncate : bool
        Compute the iterates before the window without gradient (Yang et al.); needs ``inject``.
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
        Final learning rate, as a fraction of lr; a cosine leads there after the warm-up.
    beta1 : float
        Adam's decay of the mean.
    beta2 : float
        Adam's decay of the mean square.
    clip : float
        Largest norm of a model's gradient; the (r, d) probe is clipped separately.
    start : str | None
        The model whose weights the run starts from, a folder or a bundled name; none: random weights.
    seed : int
        Seed of the initial weights and of the training systems.
    chunk : int
        Steps whose systems are drawn at once; another value gives other systems.
    threads : int | None
        Threads of a CPU run; none: torch's choice. With one, the weights do not depend on the number of cores.
    precision : {"float32", "bf16x3", "tf32", "bf16"}
        Arithmetic on CUDA, from the most digits to the fewest; weights are kept in float32. bf16x3 computes a product
        in float32 as three in bf16, and the weights' gradients in tf32. A CPU computes in float32.

    Examples
    --------
    >>> config = Config(supervision="joint", steps=2000)
    >>> config.n, config.T, config.supervision, config.replace(eta=1e-3).eta
    (20, 20, 'joint', 0.001)
    >>> Config.from_json(config.to_json()) == config
    True
    >>> config  # what differs from the defaults
    Config(supervision='joint', steps=2000)
    """

    recipe: str = "custom"
    program: str | None = None
    program_options: Options = NO_OPTIONS

    # The problem
    family: str = "spd"
    family_options: Options = NO_OPTIONS
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
    read_norm: bool = True
    output_scale: float = 0.2

    # Supervision
    supervision: Literal["result", "joint", "step+solution", "solution"] = "result"
    teacher: str = "cg"
    teacher_options: Options = NO_OPTIONS
    probe: tuple[str, ...] | None = None
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

    def __repr__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = (f"{name}={value!r}" for name, value in given.items() if value != getattr(Config, name))
        return f"Config({', '.join(changed)})"

    @property
    def ffn_width(self) -> int:
        return 4 * self.d if self.ffn is None else self.ffn

    @property
    def loops(self) -> int:
        """Passes of the loop block for T iterations: the post block, if there is one, is the last iteration."""
        return self.T - (self.post_layers > 0)

    @property
    def imitates(self) -> bool:
        """Whether a teacher's iterates are targets: of a solver always, if only of its probe."""
        return self.program is None or self.supervision != "solution"

    @property
    def first(self) -> int:
        """T_0 = max(T - K + 1, 0), the first iterate of the window."""
        return 0 if self.window is None else max(self.T - self.window + 1, 0)

    @property
    def _first_is_0(self) -> bool:
        """Whether the window holds all iterates; False for values that ``validate`` will refuse."""
        return self.window is None or (is_whole(self.window) and is_whole(self.T) and self.first == 0)

    def replace(self, /, **changes: Any) -> Config:
        """A copy with some fields changed. Values are checked; a setting without effect is refused.

        ``program``, ``family`` and ``teacher`` also take a class, or an object of one, whose options are recorded.

        >>> from nlaformer import problems
        >>> config = Config().replace(family=problems.RBFKernel(n=8, ridge=0.5))
        >>> config.family, config.n, config.family_options["ridge"]
        ('rbf', 8, 0.5)
        """
        values = {name: checked(name, value, _type_of(name)) for name, value in _by_name(changes, self.family).items()}
        changed = dataclasses.replace(self, **values)
        unused = changed.without_effect()
        given = {"lambda_" if name == "lambda" else name for name in changes}
        if refused := [f"{spelt(name)}: {unused[name]}" for name in values if name in unused and name in given]:
            raise OptionError("a setting without effect:\n" + "\n".join(f"- {line}" for line in refused))
        return changed._settled()

    def _settled(self) -> Config:
        """A copy whose fields without effect are as by default, so that configs of equal runs are equal."""
        return dataclasses.replace(self, **{name: getattr(Config, name) for name in self.without_effect()})

    def without_effect(self) -> dict[str, str]:
        """The fields that change nothing in this config, and why."""
        ours = self.family in problems.families() or ":" in self.family
        reasons = {
            "sigma": (
                ours and self.family != "spd",
                f"it is of the family spd; write family.sigma=..., if {self.family} has it",
            ),
            "eta": (self.supervision != "joint", "it weighs (r, d) in the joint loss only"),
            "lambda_": (self.supervision != "step+solution", "it weighs the solution in the loss step+solution only"),
            "floor": (not self.power < 1, "it goes with a power below 1"),
            "program_options": (self.program is None, "there is no program"),
            "read_norm": (self.program is None or self.norm == "none", "it is of a program whose norm is rms"),
            "truncate": (self._first_is_0, "it cuts the gradient before the window; set a window of at most T too"),
        }
        if self.program is not None:
            solver = "it is of the solver that imitates; a program has none of it"
            names = ("post_layers", "shared", "inject", "truncate", "probe", "eta")
            reasons |= dict.fromkeys(names, (True, solver))
            nobody = (not self.imitates, "supervision=solution has no teacher")
            reasons |= dict.fromkeys(("teacher", "teacher_options"), nobody)
        return {name: reason for name, (unused, reason) in reasons.items() if unused}

    def set(self, settings: Iterable[str]) -> Config:
        """A copy with ``key=value`` settings applied, as on the command line.

        >>> Config().set(["lr=3e-4", "sigma=1.0,1.4", "supervision=step+solution", "lambda=7"]).sigma
        (1.0, 1.4)
        >>> Config().set(["family=rbf", "family.ridge=0.5"]).make_family().ridge
        0.5
        """
        changes: dict[str, Any] = {}
        options: dict[str, dict[str, str]] = {}
        for setting in settings:
            key, separator, text = (part.strip() for part in setting.partition("="))
            if not separator:
                raise OptionError(f"--set takes key=value, given {setting!r}")
            owner, dotted, option = key.partition(".")
            if dotted and owner in _SOURCES:
                options.setdefault(owner, {})[option] = text
            else:
                name = "lambda_" if key == "lambda" else key
                changes[name] = parsed(text, _type_of(name))
        for owner, texts in options.items():
            kept = {} if owner in changes else getattr(self, f"{owner}_options")
            defaults = sources.defaults(owner, changes.get(owner, getattr(self, owner)), _SOURCES[owner]())
            values = {option: parsed_option(text, defaults.get(option)) for option, text in texts.items()}
            changes[f"{owner}_options"] = {**kept, **values}
        return self.adapted(**changes)

    def adapted(self, /, **changes: Any) -> Config:
        """``replace``; but a warm-up longer than the steps becomes a tenth of them, unless it is given too."""
        changed = self.replace(**changes)
        if "warmup" in changes or not 0 < changed.steps < changed.warmup:
            return changed
        return changed.replace(warmup=changed.steps // 10)

    def to_json(self) -> dict[str, object]:
        """The fields that have an effect, as JSON takes them."""
        unused, document = self.without_effect(), {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in unused and value != NO_OPTIONS:
                document[field.name] = (
                    list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Options) else value
                )
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any], weights: Iterable[str] | None = None) -> Config:
        """What ``to_json`` gave; of an older version, which wrote all fields, too.

        ``weights`` are the names of what was saved with it: a file from before ``read_norm`` has a gain there, or not.
        """
        if not isinstance(document, Mapping) or not document or not all(isinstance(name, str) for name in document):
            raise OptionError(f"a config is the mapping that to_json gives, not {shown(document)}")
        known = {name: checked(name, value, _type_of(name)) for name, value in document.items()}
        if weights is not None:
            known.setdefault("read_norm", any(name.endswith(".gain") for name in weights))
        config = cls(**known)
        # An older version recorded them among the options too, where they had no effect.
        options = {name: value for name, value in config.family_options.items() if name not in config._given}
        return dataclasses.replace(config, family_options=Options(options))._settled()

    def differences(self, other: Config) -> dict[str, tuple[object, object]]:
        """The fields in which two configs differ, with both values."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def _given(self) -> dict[str, Any]:
        """The settings that a family gets beside its options."""
        return {"n": self.n, **({"sigma": self.sigma} if self.family == "spd" else {})}

    def make_family(self) -> problems.Family:
        """The family of systems to train on."""
        family = sources.make("family", self.family, self.family_options, problems.FAMILIES, **self._given)
        drawn = all(callable(getattr(family, method, None)) for method in ("sample", "stream"))
        if not (drawn if self.program is None else isinstance(family, problems.Family)):
            raise OptionError(
                f"family={self.family} has no methods sample and stream, or no error; make it a subclass of "
                "nf.problems.Family"
            )
        if getattr(family, "n", self.n) != self.n:
            raise OptionError(
                f"n={self.n}, but the systems of family={self.family} have n={family.n}; set n={family.n}"
            )
        return family  # type: ignore[no-any-return]

    def make_program(self) -> Program:
        """The method whose learned parts are trained."""
        program = sources.make("program", str(self.program), self.program_options, METHODS)
        if not isinstance(program, Program):
            raise OptionError(f"program={self.program} is not an nf.Program; make it a subclass of that")
        return program

    def make_teacher(self) -> teachers.Teacher:
        """The method whose iterates are the targets."""
        return teachers.teacher(self.teacher, self.teacher_options, self.probe, self.n)

    def complaints(self, sources: bool = True) -> list[str]:
        """Everything that makes this config impossible, one sentence each (``learn/checks.py``)."""
        return checks.complaints(self, sources)

    def validate(self, sources: bool = True) -> Config:
        """Return this config, or raise an OptionError that lists every complaint."""
        if found := self.complaints(sources):
            raise OptionError(f"this config ({self.recipe}) cannot be trained:\n" + "\n".join(f"- {p}" for p in found))
        return self


# What may be a user's own class, and the names of ours.
_SOURCES: dict[str, Callable[[], Mapping[str, type]]] = {
    "program": lambda: METHODS,
    "family": lambda: problems.FAMILIES,
    "teacher": teachers.known,
}


def _by_name(changes: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Changes as fields: objects and classes by their names and options; options of ours that are fields as such."""
    found = {"lambda_" if name == "lambda" else name: value for name, value in changes.items()}
    for kind, known in _SOURCES.items():
        if kind in found:
            given = found[kind]
            found[kind], options = (None, {}) if given is None else sources.named(kind, given, known())
            if kind == "family" and not isinstance(given, str | type):
                options.pop("n", None)
                if found.setdefault("n", given.n) != given.n:
                    raise OptionError(f"n={shown(found['n'])}, but the systems of the given family have n={given.n}")
            found[f"{kind}_options"] = {**options, **found.get(f"{kind}_options", {})}
    if found.get("family", family) == "spd" and "sigma" in found.get("family_options", {}):
        found["family_options"] = dict(found["family_options"])
        found["sigma"] = found["family_options"].pop("sigma")
    return found


@cache
def _types() -> dict[str, Any]:
    return typing.get_type_hints(Config)


def _type_of(name: str) -> Any:
    if name not in _types():
        raise unknown_name("setting", name, map(spelt, _types()))
    return _types()[name]
