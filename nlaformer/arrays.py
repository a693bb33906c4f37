"""Arrays and numbers of any kind: checked, converted to tensors, and results given back in the same kind.

torch takes longer to load than most systems take to solve, so it is loaded by the functions that need it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

import numpy as np

from nlaformer.errors import DomainError, DTypeError, OptionError, ShapeError, shown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    DTYPES: dict[str, torch.dtype]

# The type of a result is the type of what was given: a tensor, a NumPy array or a list.
ArrayT = TypeVar("ArrayT", bound=Any)
FloatArray: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
IntArray: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
ObjectArray: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.object_]]


def __getattr__(name: str) -> Any:
    if name != "DTYPES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import torch

    globals()[name] = {"float64": torch.float64, "float32": torch.float32}
    return globals()[name]


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is a tensor of torch; where torch was never loaded, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def kind_of(value: Any) -> str:
    """What a result should be: torch, numpy or list."""
    if is_tensor(value):
        return "torch"
    return "numpy" if isinstance(value, (np.ndarray, np.generic)) else "list"


def common_kind(values: Iterable[Any]) -> str:
    """What the result of several arrays should be: torch before numpy before list."""
    kinds = {kind_of(value) for value in values}
    return next(kind for kind in ("torch", "numpy", "list") if kind in kinds or kind == "list")


def plain(value: Any) -> Any:
    """NumPy's and torch's numbers as Python's own, which JSON takes; anything else as it is."""
    known = isinstance(value, (np.generic, np.ndarray)) or is_tensor(value)
    return value.item() if known and value.ndim == 0 else value


def numbers(value: Any) -> tuple[Any, ...]:
    """The entries of a list, a tuple or an array with one axis, each as ``plain`` has it; anything else alone."""
    if (isinstance(value, np.ndarray) or is_tensor(value)) and value.ndim == 1:
        return tuple(value.tolist())
    return tuple(plain(entry) for entry in (value if isinstance(value, list | tuple) else (value,)))


def is_finite(value: Any) -> bool:
    """Whether a plain value is a real number that a float can hold, which True and False are not."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # 10**400, say
        return False


def is_whole(value: Any) -> bool:
    """Whether a plain value is a whole number, which True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(name: str, value: Any, least: int) -> int:
    """A whole number of any library's kind as Python's own, or an OptionError.

    >>> whole("n", np.int64(20), 1)
    20
    """
    number = plain(value)
    if not is_whole(number) or number < least:
        raise OptionError(f"{name} is {shown(value)}; expected a whole number, {least} or more")
    return int(number)


def flag(name: str, value: Any) -> bool:
    """True or False of any library's kind as Python's own, or an OptionError.

    >>> flag("quick", np.True_)
    True
    """
    found = value if isinstance(value, bool) else plain(value)
    if not isinstance(found, bool):
        raise OptionError(f"{name} is {shown(value)}; expected True or False")
    return found


def to_array(name: str, value: Any) -> np.ndarray:
    """Numbers in any rectangular array as one of NumPy's in the byte order of this machine, or a DTypeError."""
    if hasattr(value, "toarray"):
        raise DTypeError(f"{name} is sparse; expected a dense array: {name}.toarray()")
    if np.ma.isMaskedArray(value) and np.ma.getmaskarray(value).any():
        raise DTypeError(f"{name} has masked entries; fill them first")
    try:
        array = np.asarray(value)
    except Exception as error:  # whatever an object's own conversion raises
        raise DTypeError(f"{name} cannot be read as an array of numbers: {error}") from error
    if array.dtype.kind not in "biufc":
        raise DTypeError(f"{name} holds {array.dtype} values; expected numbers in a rectangular array")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def to_tensor(name: str, value: Any) -> Tensor:
    """Numbers in any rectangular array as a dense tensor, or a DTypeError."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_quantized:
            raise DTypeError(f"{name} is quantized ({value.dtype}); expected numbers: {name}.dequantize()")
        if value.layout != torch.strided or value.is_nested or value.device.type == "meta":
            kind = "nested" if value.is_nested else str(value.layout)
            raise DTypeError(f"{name} is a {kind} tensor on {value.device}; expected an ordinary dense one")
        return value.resolve_conj().resolve_neg()
    array = to_array(name, value)
    try:
        # torch takes neither negative strides nor, without a warning, memory it may not write to.
        return torch.from_numpy(array if array.flags.c_contiguous and array.flags.writeable else array.copy())
    except TypeError as error:
        raise DTypeError(f"{name} holds {array.dtype} values; convert them to float64 or float32") from error


def operands(
    owner: str,
    given: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Named arrays as finite tensors of one batch shape; ``shapes`` are those of a single system.

    Whole numbers and lists take the dtype, arrays must have it: a silent conversion would lose digits.
    """
    tensors = {name: _operand(owner, name, value, shapes[name], dtype) for name, value in given.items()}
    try:
        # NumPy's: torch's loads SymPy on its first call.
        batch = np.broadcast_shapes(*(t.shape[: t.dim() - len(shapes[name])] for name, t in tensors.items()))
    except ValueError:
        each = " and ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ShapeError(f"{owner}: the batch dimensions of {each} do not broadcast") from None
    return {name: tensor.to(device).expand((*batch, *shapes[name])) for name, tensor in tensors.items()}


def _operand(owner: str, name: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    import torch

    tensor = to_tensor(name, value)
    own = str(dtype).removeprefix("torch.")
    if tensor.is_complex():
        raise DTypeError(f"{owner}: {name} is complex; expected real numbers. Pass real and imaginary parts")
    if not tensor.is_floating_point():
        exact = tensor
        tensor = tensor.to(dtype)
        if exact.dtype != torch.bool and bool((tensor.to(exact.dtype) != exact).any()):
            raise DTypeError(f"{owner}: an integer in {name} is too large for {own}")
    elif kind_of(value) == "list":
        exact = tensor
        tensor = tensor.to(dtype)  # a list has no dtype of its own
        if bool(((tensor == 0) != (exact == 0)).any() or (tensor.isinf() != exact.isinf()).any()):
            raise DTypeError(f"{owner}: a number in {name} is too large or too small for {own}; scale {name}")
    if tensor.dtype != dtype:
        theirs = str(tensor.dtype).removeprefix("torch.")
        other = f", or build it with dtype=torch.{theirs}" if theirs in ("float32", "float64") else ""
        raise DTypeError(f"{owner}: {name} is {theirs}, the computation is in {own}; convert {name} to {own}{other}")
    if tensor.dim() < len(shape) or tensor.shape[tensor.dim() - len(shape) :] != shape:
        wanted = ", ".join(["...", *map(str, shape)])
        raise ShapeError(f"{owner}: {name} has shape {tuple(tensor.shape)}; expected ({wanted})")
    if not all_finite(tensor):
        raise DomainError(f"{owner}: {name} holds NaN or infinity; every entry must be finite")
    return tensor


def give(tensor: Tensor, kind: str) -> Any:
    """The tensor in the kind of array the caller uses."""
    if kind == "torch":
        return tensor
    known = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor  # which NumPy does not have
    array = known.cpu().numpy()
    return array if kind == "numpy" else array.tolist()


def all_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite; aminmax propagates NaN and infinity and is ten times as fast as isfinite."""
    import torch

    if not tensor.is_floating_point():  # aminmax knows neither complex numbers nor all kinds of whole ones
        return not tensor.is_complex() or bool(torch.isfinite(tensor).all())
    return not tensor.numel() or all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))


def usable_device(device: torch.device | str, kinds: Sequence[str] = ()) -> torch.device:
    """A device that torch can compute on here, of one of some kinds if any are named; or an OptionError."""
    import torch

    try:
        kind = device.partition(":")[0] if isinstance(device, str) else torch.device(device).type
        if kinds and kind not in kinds:  # before torch names twenty others
            raise TypeError(f"expected {' or '.join(kinds)}")
        found = torch.device(device)
        float(torch.zeros(1, device=found))  # the device "meta" makes tensors, but none that hold numbers
    except Exception as error:  # whatever a device's own software raises
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise OptionError(f"device {shown(device)} cannot be used here: {reason}") from error
    return found


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute in the precision of the numbers and where they are, whatever torch was set to, which is put back.

    Bounds and certificates assume IEEE arithmetic in the dtype of the operands. Three settings break that: autocast
    (products in bfloat16), products of float32 matrices in tf32 or bfloat16, and subnormal numbers flushed to zero.
    The last is a register of each thread, of which only this thread's can be set: so there is only one thread. A
    default device other than the CPU would put intermediate tensors beside the operands.

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> with torch.autocast("cpu"), full_precision():
    ...     (one @ one).dtype
    torch.float32
    """
    import torch

    cast = [kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)]
    flushed, threads = flushes_subnormals(), torch.get_num_threads()
    try:
        for kind in cast:
            torch.set_autocast_enabled(kind, False)
        if flushed:
            torch.set_num_threads(1)
            torch.set_flush_denormal(False)
            if flushes_subnormals():
                raise DomainError("this processor takes numbers below the normal range to be 0; compute on another one")
        away = torch.get_default_device().type != "cpu"
        with _full_products(), torch.device("cpu") if away else nullcontext():
            yield
    finally:
        if flushed:
            torch.set_flush_denormal(True)
            torch.set_num_threads(threads)
        for kind in cast:
            torch.set_autocast_enabled(kind, True)


@contextmanager
def _full_products() -> Iterator[None]:
    """Products of float32 matrices in float32."""
    import torch

    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # set for one kind of device and not for another
        before = "highest"
    if before != "highest":
        torch.set_float32_matmul_precision("highest")
    backends: Any = torch.backends  # whose types lack mkldnn's
    settings = [(of, of.fp32_precision) for of in (backends.cuda.matmul, backends.mkldnn.matmul)]
    reduced = [(of, precision) for of, precision in settings if precision in ("tf32", "bf16")]
    for of, _ in reduced:
        of.fp32_precision = "ieee"
    try:
        yield
    finally:
        for of, precision in reduced:
            of.fp32_precision = precision
        if before != "highest":
            torch.set_float32_matmul_precision(before)


_AUTOCAST = ("cpu", "cuda", "xpu", "mps")
_SMALLEST_NORMAL = sys.float_info.min


def flushes_subnormals() -> bool:
    """Whether this thread's arithmetic has no numbers between 0 and the smallest normal one."""
    return _SMALLEST_NORMAL / 2 == 0.0


_ENTRIES_FOR_ALL_THREADS = 2**22


@contextmanager
def threads_for(entries: float = math.inf, wanted: int | None = None) -> Iterator[None]:
    """Let torch use the threads that suit a computation, and restore its own number afterwards.

    One thread where the largest tensor has fewer than 2^22 entries, torch's own number otherwise; ``wanted``
    overrides both. On a busy machine a second thread makes small tensors 3 to 20 times slower. Nested use never
    raises the number that an outer block chose, unless ``wanted`` says so.

    >>> import torch
    >>> with threads_for(entries=100):
    ...     torch.get_num_threads()
    1
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(wanted or (1 if entries < _ENTRIES_FOR_ALL_THREADS else before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def memory(device: torch.device) -> float:
    """Bytes of memory a device has; infinity where the system does not say."""
    if device.type == "cuda":
        import torch

        return float(torch.cuda.mem_get_info(device)[1])
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return math.inf


def check_memory(what: str, needed: int, device: torch.device, remedy: str = "") -> None:
    """Refuse what would take more bytes than a device has; ``remedy`` is a sentence to end with."""
    available = memory(device)
    if needed > available:
        amount = f"{needed / 1e9:,.0f} GB" if needed < 10**18 else "over a billion GB"
        raise OptionError(f"{what} would take {amount} of memory; there are {available / 1e9:,.0f} GB{remedy}")
