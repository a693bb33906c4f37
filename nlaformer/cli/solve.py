"""The command ``solve``: a linear system from files, solved, certified, and compared with ``--plot``."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.cli.options import Json
from nlaformer.console import print_json, say

if TYPE_CHECKING:
    from nlaformer.solvers.result import SolveResult

_FILES = "a .mtx, .npy or .npz file"
_MEASURED = ("iterations", "matvecs", "residual_norm", "residual_bound", "tolerance", "residuals")
_LARGEST = 8  # times the model's size: larger systems are not compared method by method


def solve(
    A: Annotated[Path, typer.Argument(metavar="A", help=f"The matrix, {_FILES}; .npy may hold a batch, (m, n, n).")],
    b: Annotated[Path | None, typer.Argument(help=f"The right-hand side, {_FILES}.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A trained model or a saved algorithm: the name of a bundled one, or its folder."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto, cg, pcg, gmres, minres, cgls, lsmr; with a model guided, warm-start, refine, flexible."
        ),
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
    options: dict[str, Any] = {"rtol": rtol, "atol": atol, "maxiter": maxiter}
    options["M"] = None if M is None else M if _is_model(M) else files.preconditioner_option(M)
    result = nf.solve(matrix, right, model=model, method=method, check="ignore", **options)
    interrupted = bool((np.asarray(result.status) == nf.Status.INTERRUPTED).any())
    given = str(b) if b is not None else f"random, standard normal, seed {seed}"
    written: dict[str, str] = {}
    try:
        if out is not None:
            files.write_array(out, result.x)
            written["out"] = str(out)
        if plot is not None and not interrupted:
            classical, others = _compare(matrix, right, None if model is None else nf.load(model), options)
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
        raise typer.Exit(130 if interrupted else 1)


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
    kinds = {"conjugate gradients": "cg", "GMRES": "gmres", "CGLS": "cgls", "LSMR": "lsmr"}
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
