"""The base of every family of problems: its options, its random numbers, its two ways to draw, and how it is judged.

A family is a small frozen object. Its method ``matrices`` makes matrices from random numbers, which come from

- ``sample(count, seed)``, for evaluation. A seed gives the same systems everywhere: the numbers come from NumPy's
  PCG64 on the CPU in float64, one stream per name, one row per system, so that the first systems of a larger sample
  are those of a smaller one. Only rounding differs between machines.
- ``stream(count, generator)``, for training. Everything is computed on the generator's device in the wanted dtype;
  the generator's state is the position in the data.

The solution is drawn first, x ~ N(0, I), and b = A x. A family of other problems overrides ``systems``, where A and b
are what a method is given and x is the answer. With an ``error`` and ``rivals`` of its own it is a *task*: what
training lowers, and what a learned method is compared with. By default these are the squared relative error and the
classical methods for linear systems whose matrices are like those that it draws (``classical.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from nlaformer.arrays import check_memory, full_precision, is_finite, is_whole, numbers, plain, usable_device
from nlaformer.errors import DTypeError, OptionError, ShapeError, shown, unknown_name
from nlaformer.problems.vectors import product

_LARGEST_BATCH = 32_000  # cuSOLVER's batched eigh fails at 65,536 matrices
_LOOKED_AT = 16  # systems that tell the default rivals
_SOLVED = 1e-6  # a relative residual that is rounding
_BELOW = 1e-6  # 0, as far as the rounding of an error in float32 may take it
_ORDINARY = 1e50  # of a larger iterate an error may be the difference of two infinities
_LARGEST_CHUNK = 2**24  # entries of A at a time, which bounds the memory of the intermediate steps


# A classical method: from A, b and the number of iterations to the iterates, (count, iterations + 1, n); or a program.
Rival = Callable[[Tensor, Tensor, int], Tensor] | Any


class Systems(NamedTuple):
    """Problems with their answers: of a linear system, A x = b."""

    A: Tensor  # (count, n, n)
    b: Tensor  # (count, n)
    x: Tensor  # (count, n)


class Draws(Protocol):
    """A source of random numbers; every ``name`` is an independent stream."""

    def uniform(self, name: str, *shape: int) -> Tensor: ...

    def normal(self, name: str, *shape: int) -> Tensor: ...


class _SeededDraws:
    """Numbers that a seed determines on every machine: float64, CPU, one NumPy stream per name."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, np.random.Generator] = {}

    def _stream(self, name: str) -> np.random.Generator:
        if name not in self._streams:
            self._streams[name] = np.random.default_rng([self._seed, *name.encode()])
        return self._streams[name]

    def uniform(self, name: str, *shape: int) -> Tensor:
        return torch.from_numpy(self._stream(name).random(shape))

    def normal(self, name: str, *shape: int) -> Tensor:
        return torch.from_numpy(self._stream(name).standard_normal(shape))


@dataclasses.dataclass(frozen=True)
class _DeviceDraws:
    """Numbers from a torch generator, made on its device in the given dtype."""

    generator: torch.Generator
    dtype: torch.dtype

    def uniform(self, name: str, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.generator.device, dtype=self.dtype)

    def normal(self, name: str, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.generator.device, dtype=self.dtype)


class Family:
    """Base of the families; a subclass is a frozen dataclass with a method ``matrices`` or ``systems``.

    A field may be an ``option``, which is converted and checked, or an ordinary one. ``n``, the size of the systems, is
    one of them.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Diagonal(Family):
    ...     n: int = 4
    ...     spread: float = 1.0
    ...
    ...     def matrices(self, draw, count):
    ...         return torch.diag_embed(torch.exp(self.spread * draw.normal("diagonal", count, self.n)))
    >>> Diagonal(n=3).sample(2, seed=0).A.shape
    torch.Size([2, 3, 3])
    """

    name: ClassVar[str]
    definite: ClassVar[bool] = True  # whether these are systems A x = b with a symmetric positive definite A
    measure: ClassVar[str] = "squared relative error"  # what ``error`` measures, in words
    n: int

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __post_init__(self) -> None:
        for field in _options(type(self)):
            object.__setattr__(self, field.name, _converted(field, getattr(self, field.name)))
        refuse(self.name, self.complaints(self.options))

    @property
    def options(self) -> dict[str, Any]:
        """The options by name: ``problems.family(f.name, **f.options) == f``."""
        return {field.name: getattr(self, field.name) for field in _options(type(self))}

    @classmethod
    def complaints(cls, options: Mapping[str, Any]) -> list[str]:
        """The errors in these options, one sentence each."""
        fields = {field.name: field for field in _options(cls)}
        found = []
        for name, value in options.items():
            if name not in fields:
                found.append(str(unknown_name("option", name, fields)))
            elif not fields[name].metadata.get("valid", lambda value: True)(_converted(fields[name], value)):
                found.append(f"{name} must be {fields[name].metadata['expected']}, not {shown(value)}")
        return found

    def matrices(self, draw: Draws, count: int) -> Tensor:
        """The matrices A, (count, n, n), from random numbers."""
        raise NotImplementedError("a family of systems needs a method matrices")

    def systems(self, draw: Draws, count: int) -> Systems:
        """The problems with their answers, from random numbers; by default linear systems with ``matrices``."""
        A = _real_tensor(f"{self.name}.matrices", self.matrices(draw, count), (count, self.n, self.n))
        x = draw.normal("x", count, self.n)
        # Not a matrix product: in float32 that might be computed in tf32, and b would not be A x.
        return Systems(A, (A * x[:, None, :]).sum(-1), x)

    def error(self, x: Tensor, systems: Systems) -> Tensor:
        """The errors (..., T+1) of iterates x (..., T+1, n), from 0 on: what training lowers and evaluation shows.

        It must be differentiable where it is not 0. By default ||x_t - x||^2 / ||x||^2.
        """
        return (x - systems.x.unsqueeze(-2)).square().sum(-1) / systems.x.square().sum(-1, keepdim=True)

    def rivals(self) -> Mapping[str, Rival]:
        """The classical methods to compare with, by name, the one to beat first.

        Each is a function of A, b and the number of iterations that gives the iterates, (count, iterations + 1, n), or
        an ``nf.Program``. By default those for its matrices: conjugate gradients where they are symmetric positive
        definite, GMRES and BiCGSTAB for other square ones, CGLS and LSQR for rectangular ones, padded with zeros.
        """
        from nlaformer.problems.classical import classical

        A, b, x = self.sample(_LOOKED_AT, seed=0)
        r = b - product(A, x)
        size, left = A.norm(dim=(-2, -1)), r.norm(dim=-1)
        if bool((left <= _SOLVED * size * x.norm(dim=-1)).all()):
            return classical(A)
        if bool((product(A.mT, r).norm(dim=-1) <= _SOLVED * size * left).all()):
            return classical(A, consistent=False)
        raise OptionError(
            f"the answers of {self.name} solve neither A x = b nor min |b - A x|, so no method for linear systems is "
            "its rival; give it a method rivals that returns those to compare with, by name"
        )

    def checked_error(self, x: Tensor, systems: Systems) -> Tensor:
        """What ``error`` gives, checked: one number for each iterate, with a gradient if x has one."""
        found = _real_tensor(f"{self.name}.error", self.error(x, systems), tuple(x.shape[:-1]))
        if x.requires_grad and torch.is_grad_enabled() and not found.requires_grad:
            raise OptionError(f"{self.name}.error gave a tensor without a gradient; training needs one, so keep x's")
        if not torch.is_grad_enabled():  # in training every look at a value would wait for the device
            _refuse_strange(f"{self.name}.error", found, x)
        return found

    def rival_iterates(self, A: Tensor, b: Tensor, iterations: int) -> dict[str, Tensor]:
        """The iterates of every rival, (count, iterations + 1, n), checked. A rival may write into what it is given."""
        rivals = self.rivals()
        if not isinstance(rivals, Mapping) or not rivals:
            raise OptionError(f"{self.name}.rivals gave {shown(rivals)}; expected methods by name, one at least")
        found = {}
        for name, rival in rivals.items():
            what, given = f"the rival {name} of {self.name}", (A.clone(), b.clone())
            if isinstance(rival, type) or not (hasattr(rival, "run") or callable(rival)):
                raise OptionError(f"{what} is {shown(rival)}; expected a function (A, b, iterations) or an nf.Program")
            run = rival.run(*given, iterations=iterations).x if hasattr(rival, "run") else rival(*given, iterations)
            found[name] = _real_tensor(what, run, (len(b), iterations + 1, b.shape[-1])).to(A)
        return found

    def others(self) -> Mapping[str, Family]:
        """Families by name that a model of this one is tried on besides; by default seven of linear systems."""
        from nlaformer.problems import unlike

        return unlike(self.n)

    @full_precision()
    def sample(
        self, count: int, seed: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Systems:
        """Draw the first ``count`` systems of a seed, the same on every machine; for evaluation.

        They are computed on the CPU in float64, then rounded to ``dtype`` and moved to ``device`` if these are given.
        """
        count, seed, dtype = as_whole(count), as_whole(seed), torch.float64 if dtype is None else dtype
        _check_draw("sample", count, dtype, ("seed", seed, _WHOLE_0, _whole(seed, 0)))
        self._check_memory("sample", count, torch.float64, torch.device("cpu"))
        draw, place = _SeededDraws(seed), usable_device("cpu" if device is None else device)
        return _join([self._drawn(draw, size, place, dtype) for size in self._chunks(count)])

    def stream(self, count: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Systems:
        """Draw the next ``count`` systems of a generator, on its device; for training.

        Deterministic for one device and version of torch; the numbers are not those of ``sample``.
        """
        count = as_whole(count)
        expected = "a generator such as torch.Generator().manual_seed(0)"
        _check_draw("stream", count, dtype, ("generator", generator, expected, isinstance(generator, torch.Generator)))
        self._check_memory("stream", count, dtype, generator.device)
        draw = _DeviceDraws(generator, dtype)
        return _join([self._drawn(draw, size, generator.device, dtype) for size in self._chunks(count)])

    def _drawn(self, draw: Draws, count: int, device: torch.device, dtype: torch.dtype) -> Systems:
        """What ``systems`` gives, checked."""
        found, sizes = self.systems(draw, count), (count, self.n)
        if not isinstance(found, tuple) or len(found) != 3:
            raise OptionError(f"{self.name}.systems gave {shown(found)}; expected Systems(A, b, x)")
        shapes = {"A": (*sizes, self.n), "b": sizes, "x": sizes}
        parts = (
            _real_tensor(f"{name} of {self.name}.systems", part, shape)
            for part, (name, shape) in zip(found, shapes.items(), strict=True)
        )
        return Systems(*(part.to(device=device, dtype=dtype) for part in parts))

    def _check_memory(self, method: str, count: int, dtype: torch.dtype, device: torch.device) -> None:
        if not _whole(getattr(self, "n", None), 1):
            raise OptionError(f"{self.name} has no size n from 1 on; expected a field such as n: int = 20")
        needed = dtype.itemsize * count * self.n**2
        check_memory(f"{method}: {shown(count)} systems of n = {shown(self.n)}", needed, device)

    def _chunks(self, count: int) -> list[int]:
        largest = max(1, min(_LARGEST_BATCH, _LARGEST_CHUNK // self.n**2))
        return [min(largest, count - start) for start in range(0, count, largest)] or [0]


def symmetric(A: Tensor) -> Tensor:
    """Make A equal to A^T to the last bit, which a product like S S^T need not be."""
    return (A + A.mT) / 2


def refuse(what: str, complaints: list[str]) -> None:
    """Raise an OptionError that lists all complaints, if there are any."""
    if len(complaints) == 1:
        raise OptionError(f"{what}: {complaints[0]}")
    if complaints:
        raise OptionError(f"{what}: {len(complaints)} problems\n" + "\n".join(f"- {line}" for line in complaints))


_WHOLE_0 = "a whole number from 0 on"


def option(default: Any, expected: str, valid: Callable[[Any], bool], convert: Callable[[Any], Any]) -> Any:
    """A field whose value is converted, then checked; ``expected`` completes "must be ..."."""
    return dataclasses.field(default=default, metadata={"expected": expected, "valid": valid, "convert": convert})


def whole(default: int, least: int) -> Any:
    """An option that is an integer."""
    return option(default, f"a whole number from {least} on", lambda value: _whole(value, least), as_whole)


def real(default: float, positive: bool = False) -> Any:
    """An option that is a finite number from 0 on, or above 0."""
    expected = f"a finite number {'above 0' if positive else 'from 0 on'}"
    return option(default, expected, lambda v: is_finite(v) and (v > 0 if positive else v >= 0), as_real)


def sigmas(default: float) -> Any:
    """An option that is one or more finite numbers from 0 on, each the sigma of some of the systems."""
    expected = "one or more finite numbers from 0 on"
    return option((default,), expected, lambda v: is_reals(v, lambda s: s >= 0), as_reals)


def as_whole(value: Any) -> Any:
    """A whole number of any library's kind as Python's own; anything else as it is."""
    number = plain(value)
    return int(number) if isinstance(number, Integral) and not isinstance(number, bool) else value


def as_real(value: Any) -> Any:
    """A finite number of any library's kind as a float; anything else as it is."""
    number = plain(value)
    return float(number) if is_finite(number) else value


def as_reals(value: Any) -> Any:
    """A number or a list of numbers as a tuple of floats; anything else as it is."""
    values = numbers(value)
    return tuple(float(v) for v in values) if all(is_finite(v) for v in values) else value


def is_reals(value: Any, valid: Callable[[float], bool] = lambda v: True) -> bool:
    """Whether ``as_reals`` made a tuple of one or more valid numbers."""
    return isinstance(value, tuple) and bool(value) and all(is_finite(v) and valid(v) for v in value)


def _converted(field: dataclasses.Field[Any], value: Any) -> Any:
    return field.metadata.get("convert", lambda value: value)(value)


def _options(family: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(family) if field.init]


def _whole(value: Any, least: int) -> bool:
    return is_whole(value) and value >= least


def _check_draw(method: str, count: Any, dtype: Any, source: tuple[str, Any, str, bool]) -> None:
    """Refuse a bad count, source of random numbers or dtype: each a name, its value, what is expected, if it is so."""
    floats = any(dtype is known for known in (torch.float32, torch.float64))
    given = (
        ("count", count, _WHOLE_0, _whole(count, 0)),
        source,
        ("dtype", dtype, "torch.float32 or torch.float64", floats),
    )
    refuse(
        method, [f"{name} must be {wanted}, not {shown(value)}" for name, value, wanted, valid in given if not valid]
    )


def _real_tensor(what: str, found: Any, shape: tuple[int, ...]) -> Tensor:
    """A tensor of real numbers in a shape, as a method of a user's should give it."""
    if not isinstance(found, Tensor) or not found.is_floating_point():
        given = f"a tensor of {found.dtype}" if isinstance(found, Tensor) else f"{type(found).__name__} {shown(found)}"
        raise DTypeError(f"{what} gave {given}; expected a torch tensor of real numbers, shape {shape}")
    if tuple(found.shape) != shape:
        raise ShapeError(f"{what} gave a tensor of shape {tuple(found.shape)}; expected {shape}")
    return found


def _refuse_strange(what: str, error: Tensor, x: Tensor) -> None:
    """Refuse errors that are no errors: below 0 by more than rounding, or NaN where the iterate is an ordinary one."""
    if not error.numel():
        return
    low = error < -_BELOW * error.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=_BELOW)
    lost = error.isnan() & (x.abs().amax(-1) < _ORDINARY)  # false for NaN
    if bool((low | lost).any()):
        given = f"{float(error[low].min()):.3g}" if bool(low.any()) else "NaN for a finite iterate"
        raise OptionError(f"{what} gave {given}; expected numbers from 0 on, 0 for the answer itself")


def _join(parts: list[Systems]) -> Systems:
    return parts[0] if len(parts) == 1 else Systems(*(torch.cat(part) for part in zip(*parts, strict=True)))
