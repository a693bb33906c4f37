"""The compiler: validate, five stages in order, verify.

trace     run the program on symbols: a graph of operations for start, step and finish (program/)
lower     the graph in core primitives, units and signs -> instructions on rows of the prompt, by a rule each (lower/)
schedule  instructions that are needed -> layers of each block, and what its last one writes and clears (machine/)
emit      layers -> weights (machine/)
verify    the weights beside the program's own lines
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, overload

import numpy as np
import torch

from nlaformer.arrays import DTYPES, check_memory, full_precision, plain, threads_for, whole
from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.anysize.algorithm import AnySizeAlgorithm, compile_for_any
from nlaformer.compiler.config import LARGEST_BOUND, AlgorithmConfig
from nlaformer.compiler.filled import FilledProgram, Trained, refuse_unknown
from nlaformer.compiler.machine.rows import Target
from nlaformer.compiler.progress import stages
from nlaformer.compiler.verify import RANDOM, YOURS, compared_with_run, with_verification
from nlaformer.compiler.weights import weights_of
from nlaformer.errors import CompileError, OptionError, ShapeError, shown
from nlaformer.express.linearize import check_scheme
from nlaformer.program.language import Program
from nlaformer.program.trace import inputs_of, refuse_open_parts, trace


@overload
def compile(
    program: Program | Trained,
    n: int | None = None,
    *,
    order: int = 3,
    dtype: torch.dtype | str = torch.float64,
    bound: float = 1024.0,
    verify: bool | Mapping[str, Any] = True,
) -> Algorithm: ...


@overload
def compile(
    program: Program, n: Literal["any"], *, dtype: torch.dtype | str = torch.float64, slots: int | None = None
) -> AnySizeAlgorithm: ...


@full_precision()
def compile(
    program: Program | Trained,
    n: int | Literal["any"] | None = None,
    *,
    order: int = 3,
    dtype: torch.dtype | str = torch.float64,
    bound: float = 1024.0,
    verify: bool | Mapping[str, Any] = True,
    slots: int | None = None,
) -> Algorithm | AnySizeAlgorithm:
    """The weights of a looped transformer that runs a program on systems of size n.

    Parameters
    ----------
    program : a Program, or a trained program (``nf.load``), whose network becomes a part of the transformer
    n : the size of the systems; a trained program has its own. "any": one set of weights for every n, whose heads reach
        the entries of a sparse A by their addresses (docs/any-size.md)
    order : accuracy of inner products, 1, 2 or 3 (2, 4 or 6 heads each)
    dtype : torch.float64 or torch.float32, or their names
    bound : the largest Frobenius norm of A (and norm of b) where the program's constants keep them from being scaled
    verify : compare 12 steps with the program itself on random and hard systems and keep the deviations with the
        artefact; a value beyond 1e-6 (float32: 1e-2) times what the program amplifies is a CompileError, or a warning
        where it says little about other systems (docs/verification.md). For a program that is meant for other systems,
        give some of these: the inputs by name, ``verify=dict(A=A, b=b)``, one system or a batch
    slots : for n="any", the entries that a row of a matrix may have, 16 by default

    Examples
    --------
    >>> import numpy as np, nlaformer as nf
    >>> class Jacobi(nf.Program):
    ...     def start(self, x0):
    ...         return dict(x=x0)
    ...
    ...     def step(self, A, b, x):
    ...         return dict(x=x + (b - A @ x) / nf.diag(A))
    >>> jacobi = nf.compile(Jacobi(), n=2)
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> jacobi.run(A, b, iterations=40).x[-1].round(6)
    array([0.090909, 0.636364])
    """
    if isinstance(n, str) and n == "any":
        if (order, bound, verify) != (3, 1024.0, True):
            raise OptionError("order, bound and verify are settings of weights for one n; omit them with n='any'")
        if not isinstance(program, Program):
            raise OptionError(f"with n='any', compile takes an nf.Program; {shown(program)} was given")
        return compile_for_any(program, slots, dtype)
    if slots is not None:
        raise OptionError(f"slots is {shown(slots)}; weights for one n have none. Omit it, or compile with n='any'")
    named = isinstance(verify, Mapping) and verify and all(isinstance(name, str) for name in verify)
    if not named and not isinstance(plain(verify), bool):
        raise OptionError(f"verify is {shown(verify)}; expected True, False, or systems by name, dict(A=A, b=b)")
    filled = None if isinstance(program, Program) else _filled(program)
    target = _target(n if filled is None else _size(filled, n), order, dtype, bound)
    own = cast(Program, program) if filled is None else None
    if own is not None and named and (unknown := verify.keys() - inputs_of(own).keys()):  # type: ignore[union-attr]
        raise ShapeError(f"{own.name} takes {', '.join(inputs_of(own))}; verify has {', '.join(sorted(unknown))} too")
    name = cast(Program, own).name if filled is None else filled.graph.name
    # Threads for the attention weights of the layers that encode A, verified on three systems.
    with threads_for(6 * target.n**3), stages(name) as say:
        say("its lines are traced")
        graph = filled.graph if filled is not None else trace(cast(Program, own), target.n)
        say("its weights are made")
        try:
            if filled is None:
                refuse_open_parts(graph)
            made = weights_of(graph, target, {} if filled is None else filled.networks)
        except RecursionError:
            raise CompileError(
                f"{graph.name}: a value of one block is made by hundreds of operations, each on the last. "
                "Let the loop that does so be the iterations of a run: where each pass works on another row, a state e "
                "that starts as np.eye(n)[0] and becomes np.roll(e, 1) picks the row e @ A and the entry e @ b. "
                "For two nested loops, a second such state f becomes f + (np.roll(f, 1) - f) * e[-1]: it moves on once "
                "e has been everywhere"
            ) from None
        except ArithmeticError as error:
            raise CompileError(
                f"{graph.name}: the bounds of its values leave the range of the numbers ({error}); keep "
                "constants near 1 and chains of products short"
            ) from error
        if filled is not None:
            refuse_unknown(filled, made.facts)
        config = AlgorithmConfig(
            graph.name,
            str(target.dtype).removeprefix("torch."),
            target.order,
            target.bound,
            graph,
            scaled=sorted(made.facts.scaled),
            units={name: [[f.numerator, f.denominator] for f in pair] for name, pair in made.facts.units.items()},
            state=made.state,
            answer=made.answer,
            registers=[list(register) for register in made.layout.registers],
            schedule=made.schedule,
            scales=made.scales,
        )
        algorithm = Algorithm(config, made.model, own)
        if not verify:
            return algorithm
        say("its weights are verified")
        given = algorithm.taken(**verify) if isinstance(verify, Mapping) else None
        if given is not None and not len(next(iter(given.values()))):
            raise ShapeError(f"{algorithm.name}: verify has no system; give one, or verify=True")
        if filled is not None:
            return compared_with_run(algorithm, filled.run, given)
        return with_verification(algorithm, given, family=RANDOM if given is None else YOURS)


def _filled(program: Any) -> FilledProgram:
    """A trained program with its networks."""
    if hasattr(program, "filled") and not isinstance(program, type):
        return cast(Trained, program).filled()
    is_class = isinstance(program, type) and issubclass(program, Program)
    hint = f"; make an object of the class: {program.__name__}()" if is_class else ""
    raise OptionError(f"compile takes an nf.Program or a trained program; {program!r} was given{hint}")


def _size(filled: FilledProgram, n: Any) -> int:
    """The n of a trained program, which is that of its network."""
    if n is not None and whole("n", n, 1) != filled.graph.n:
        raise OptionError(f"n is {n}; the network of this {filled.graph.name} was made for n={filled.graph.n}. Omit n")
    return filled.graph.n


def _target(n: Any, order: Any, dtype: Any, bound: Any) -> Target:
    order, bound, dtype = plain(order), plain(bound), torch_dtype(dtype)
    n = check_options(n, order, dtype)
    if isinstance(bound, bool) or not (isinstance(bound, (int, float)) and 0 < bound <= LARGEST_BOUND):
        raise OptionError(f"bound is {bound!r}; expected a number between 0 and {LARGEST_BOUND:.0f}")
    # A prompt has more rows than tokens, and the program may make matrices of constants while it is traced.
    what = f"n is {n:,}: the prompt of a single system"
    check_memory(what, 8 * (n + 1) ** 2, torch.device("cpu"), ". Choose a smaller n")
    return Target(n, dtype, order, float(bound))


def torch_dtype(dtype: Any) -> Any:
    """The dtype of a name, NumPy's or torch's; anything else as it is."""
    name = dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")
    return DTYPES.get(name, dtype) if isinstance(dtype, (str, np.dtype)) else dtype


def check_options(n: Any, order: Any, dtype: Any, scheme: str = "antisymmetric") -> int:
    """Refuse options that make no sense; the size as Python's own number."""
    check_scheme(order, scheme)
    if dtype not in DTYPES.values():
        raise OptionError(f"dtype is {dtype!r}; expected torch.float64 or torch.float32")
    return whole("n", n, 1)
