"""The command ``solve``: a linear system from files, solved, certified, and compared with ``--plot``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.cli.options import Json
from nlaformer.console import print_json, say

if TYPE_CHECKING:
    from rich.console import Console

    from nlaformer.solvers.result import SolveResult

_FILES = "a .mtx, .npy or .npz file"
_MEASURED = ("iterations", "matvecs", "residual_norm", "residual_bound", "tolerance", "residuals")
_LARGEST = 8  # times the model's size: larger systems are not compared method by method
_PATIENCE = 2.0  # seconds before the first message
_SECONDS = 5.0  # between plain lines
_SECONDS_OF_LINE = 0.5  # between changes of the line on a terminal


def solve(
    A: Annotated[Path, typer.Argument(metavar="A", help=f"The matrix, {_FILES}; .npy may hold a batch, (m, n, n).")],
    b: Annotated[Path | None, typer.Argument(help=f"The right-hand side, {_FILES}.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A trained model or a saved algorithm: the name of a bundled one, or its folder."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="auto, cg, pcg, gmres, minres, cgls; with a model guided, warm-start, refine, flexible.")
    ] = "auto",
    rtol: Annotated[float, typer.Option(help="Converged: |b - A x| <= max(rtol |b|, atol).")] = 1e-5,
    atol: Annotated[float, typer.Option(help="See --rtol.")] = 0.0,
    maxiter: Annotated[int | None, typer.Option(help="Largest number of iterations; default: 10 n.")] = None,
    M: Annotated[
        str | None,
        typer.Option("--M", help="Preconditioner, an approximate inverse of A: jacobi, a learned one, or a file."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random right-hand side, if there is no b.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Write x to this .npy or .mtx file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw residual against iterations, all methods, to this .svg or .png file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Solve A x = b, or a least-squares problem, certified.

    The residual of the returned x is proven. Without b, the right-hand side is the array b beside A in an .npz file, or
    random. Exit code 0: every system converged; 1: one did not; 2: invalid input; 130: interrupted.
    """
    import numpy as np

    import nlaformer as nf
    from nlaformer.report.figure import residual_figure, save
    from nlaformer.solvers import files

    for path, kinds in ((out, files.WRITABLE), (plot, (".svg", ".png"))):
        if path is not None:
            files.check_output(path, kinds, (A, b))
    if b is None and files.holds("b", A):
        b = A
    matrix, right = files.read_system(A, b, seed)
    learned = None if model is None else _loaded(model)
    options: dict[str, Any] = {"rtol": rtol, "atol": atol, "maxiter": maxiter}
    options["M"] = None if M is None else M if _is_model(M) else files.preconditioner_option(M)
    with SolveProgress(matrix, right, rtol, atol) as progress:
        result = nf.solve(matrix, right, model=learned, method=method, callback=progress, check="ignore", **options)
    given = str(b) if b is not None else f"random, standard normal, seed {seed}"
    written: dict[str, str] = {}
    try:
        if out is not None:
            files.write_array(out, result.x)
            written["out"] = str(out)
        if plot is not None:
            classical, others = _compare(matrix, right, learned, options)
            title = f"{A.name}, n = {matrix.shape[-1]}"
            figure = residual_figure(classical, others, np.asarray(result.tolerance), title)
            written["plot"] = str(save(figure, plot))
    finally:  # the answer is printed even if a file cannot be written
        if as_json:
            print_json({"A": str(A), "b": given, "n": matrix.shape[-1], **document(result), **written})
        else:
            print(f"{A}: {_size(matrix, right)}; b: {given}")
            say(str(result), indent=10)
            for name, file in written.items():
                print(f"{'x' if name == 'out' else name:<10}{file}")
    if not result.converged:
        raise typer.Exit(1)


def _loaded(name: str) -> Any:
    """The model of a folder or a bundled name; an operation is none."""
    import nlaformer as nf
    from nlaformer.errors import OptionError

    found = nf.load(name)
    if isinstance(found, nf.Operation):
        raise OptionError(f"{name} is not a model but a compiled operation; train one first")
    return found


def _is_model(M: str) -> bool:
    """Whether the option M names a model."""
    from nlaformer import pretrained

    return Path(M).is_dir() or M in pretrained.names()


def document(result: SolveResult) -> dict[str, Any]:
    """A result as plain data: per system a number or a list."""
    import numpy as np

    contribution = result.model and {name: _plain(value) for name, value in asdict(result.model).items()}
    return {
        "converged": result.converged,
        "status": np.vectorize(lambda status: status.name)(result.status).tolist(),
        "message": str(result).partition("\n")[0].removeprefix("status").strip(),
        "info": _plain(result.info),
        "method": result.method,
        **{name: _plain(getattr(result, name)) for name in _MEASURED},
        "model": contribution,
        "setup_seconds": result.setup_seconds,
        "model_seconds": result.model_seconds,
        "classical_seconds": result.classical_seconds,
    }


def _plain(value: Any) -> Any:
    """Numbers of any shape as nested lists of Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def _compare(A: Any, b: Any, model: Any, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The residual norms of the classical method, without and with M (by default Jacobi), and of those with a model.

    For systems much larger than the model, which it solves block by block, only "auto" is compared.
    """
    import nlaformer as nf
    from nlaformer.solvers.guided import POLICIES
    from nlaformer.solvers.models import role_of

    M, always = options.pop("M"), options | {"check": "ignore"}
    preconditioned = nf.solve(A, b, M="jacobi" if M is None else M, **always)
    kinds = {"conjugate gradients": "cg", "GMRES": "gmres", "CGLS": "cgls"}
    found = [method for words, method in kinds.items() if words in preconditioned.method]
    plain = nf.solve(A, b, method=found[0] if len(found) == 1 else "auto", **always)
    names = ("CG", "PCG") if plain.method == "conjugate gradients" else (plain.method, f"{plain.method} with M")
    classical = dict(zip(names, (plain.residuals, preconditioned.residuals), strict=True))
    small = model is not None and A.shape[-1] <= _LARGEST * model.config.n
    known = ("guided",) if role_of(model) else tuple(POLICIES)
    methods = () if model is None else known if small else ("auto",)
    learned = {method: nf.solve(A, b, model=model, method=method, M=M, **always).residuals for method in methods}
    return classical, learned


def _size(A: Any, b: Any) -> str:
    n, batch = A.shape[-1], math.prod(A.shape[:-2])
    systems = f", {batch:,} matrices" if A.ndim > 2 else ""
    columns = f", {b.shape[-1]:,} right-hand sides" if b.ndim == A.ndim else ""
    entries = f", {A.nnz:,} entries" if hasattr(A, "nnz") else ""
    return f"{n:,} unknowns{entries}{systems}{columns}"


class SolveProgress(ExitStack):
    """The callback of a solve: shows the progress of a long one on standard error.

    A residual is computed only when it is shown; it is that of the system that is furthest behind.
    """

    def __init__(self, A: Any, b: Any, rtol: float, atol: float, console: Console | None = None) -> None:
        import numpy as np
        from rich.console import Console

        super().__init__()
        self.console = console or Console(stderr=True)
        self._A, self._vectors = A, b.ndim < A.ndim
        self._b = b[..., None] if self._vectors else b
        with np.errstate(all="ignore"):  # squares of huge numbers overflow; then the residual shown is infinite or NaN
            size = np.linalg.norm(self._judged(self._b), axis=-2)
            self._unit = np.where(size > 0, size, 1.0)
            self._wanted = float(np.min(np.maximum(rtol * size, atol) / self._unit))
        self._iteration, self._due = 0, time.monotonic() + _PATIENCE
        self._say: Callable[[str], None] | None = None

    def __call__(self, x: Any) -> None:
        """Called after every iteration with its x."""
        self._iteration += 1
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (_SECONDS_OF_LINE if self.console.is_terminal else _SECONDS)
        if self._say is None:
            from nlaformer.learn.progress import stages

            self._say = self.enter_context(stages(self.console))
        residual = self._residual(x)
        self._say(f"iteration {self._iteration:,}, relative residual {residual:.1e} of {self._wanted:.1e} wanted")

    def _residual(self, x: Any) -> float:
        import numpy as np

        product = self._A @ (x[..., None] if self._vectors else x)
        with np.errstate(all="ignore"):
            return float(np.max(np.linalg.norm(self._judged(self._b - product), axis=-2) / self._unit))

    def _judged(self, r: Any) -> Any:
        """What the tolerance is for: r, or, of least squares, A^T r."""
        if self._A.shape[-1] == self._A.shape[-2]:
            return r
        return (self._A.T if hasattr(self._A, "nnz") else self._A.swapaxes(-1, -2)) @ r
