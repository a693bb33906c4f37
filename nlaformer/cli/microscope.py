"""The command ``microscope``: which algorithm a model is like; the figures of every test, and a page of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlaformer.cli.options import Json
from nlaformer.console import Sheet, print_json, print_sheets
from nlaformer.errors import OptionError

if TYPE_CHECKING:
    from nlaformer.microscope.battery import Microscopy
    from nlaformer.microscope.extraction import Extraction
    from nlaformer.problems import Family


def microscope(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A bundled model, the folder of a run, or the name of an algorithm.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer systems, for a first look.")] = False,
    n: Annotated[int | None, typer.Option("--n", help="Size of the systems of an algorithm; default 8.", min=2)] = None,
    iterations: Annotated[
        int | None, typer.Option(help="T; default: that of the training, n for an algorithm.", min=3)
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(help="Systems of the paper's family with this sigma; default: those of the training."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the systems.", min=0)] = None,
    extract: Annotated[
        bool, typer.Option("--extract", help="Instead, fit short programs to its first six iterates.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write a page with the figures to this .html file.")] = None,
    as_json: Json = False,
) -> None:
    """Which algorithm a model is like, by its iterates alone.

    Every test stands beside the classical methods, the best fixed polynomial and an untrained network. Exit code 0: an
    algorithm is named; 1: none.
    """
    import nlaformer as nf
    from nlaformer.learn.progress import stages
    from nlaformer.microscope.battery import SEED
    from nlaformer.provenance import provenance
    from nlaformer.report.microscope import page
    from nlaformer.solvers.files import check_output

    if extract:
        _refuse(quick=quick, iterations=iterations, out=out)
    if out is not None:
        check_output(out, (".html",))
    subject, size = _subject(model, n)
    family = None if sigma is None else nf.problems.SPD(n=size, sigma=(sigma,))
    if extract:
        _show_extraction(model, subject, family, seed, as_json)
        return
    start = SEED if seed is None else seed
    with stages() as say:
        found = nf.microscope(
            subject, family, iterations=iterations, seed=start, quick=quick, say=lambda test: say(f"{model}: {test}")
        )
    document = {"given": model, **found.to_json(), "provenance": provenance()}
    if out is not None:
        out.write_text(page(document), encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        print_sheets(sheets(found))
        print(f"{out} shows every test." if out else "--out page.html draws every test; --json prints every number.")
    if found.named is None:
        raise typer.Exit(1)


def _refuse(**options: object) -> None:
    """Options of the battery that an extraction has no use for."""
    for name, value in options.items():
        if value:
            raise OptionError(f"--{name} belongs to the battery; --extract runs instead of it and has no use for it")


def _show_extraction(given: str, subject: object, family: Family | None, seed: int | None, as_json: bool) -> None:
    import nlaformer as nf
    from nlaformer.learn.progress import stages
    from nlaformer.microscope.extraction import SEED
    from nlaformer.provenance import provenance

    with stages() as say:
        start = SEED if seed is None else seed
        found = nf.extract(subject, family, seed=start, say=lambda name: say(f"{given}: {name}"))
    if as_json:
        print_json({"given": given, **found.to_json(), "provenance": provenance()})
        return
    print_sheets(_extraction(found))
    print(f"The best, with the constants above in place of its own:\n\n{found.fits[0].source}")


def _extraction(found: Extraction) -> list[Sheet]:
    """The tables of fitted programs."""
    headings = ("program", *(f"t = {t}" for t in range(1, len(found.solution_r2) + 1)))
    best = found.fits[0].name

    def line(name: str, values: Iterable[float], form: str) -> tuple[str, ...]:
        return (name, *(f"{value:{form}}" for value in values))

    r2 = [line(fit.name, fit.r2, ".4f") for fit in found.fits]
    r2 += [line(f"{best}, compiled", found.compiled_r2, ".4f"), line("the solution", found.solution_r2, ".4f")]
    everything = [(fit.name, fit) for fit in found.fits]
    everything += [(f"{fit.name}, untrained network", fit) for fit in found.before_training]
    shares = tuple(line(name, fit.error_share, ".3g") for name, fit in everything)
    steps = tuple(line(name, fit.step_r2, ".3f") for name, fit in everything)
    known = tuple(
        (fit.name, str(fit.lines), ", ".join(f"{name} {value:.4g}" for name, value in fit.constants.items()))
        for fit in found.fits
    )
    about = f"{found.model}, n = {found.n}, {found.count} systems of {found.family}, which nothing was fitted on."
    return [
        Sheet("R^2 of the iterates of fitted programs", headings, tuple(r2), about),
        Sheet("Share of the model's own error that they explain", headings, shares),
        Sheet("R^2 of the model's steps, each program started at the model's x_(t-1)", headings, steps),
        Sheet("The programs", ("program", "lines", "constants"), known, words=True),
    ]


def _subject(name: str, n: int | None) -> tuple[object, int]:
    """The model of a path or bundled name, or else the compiled algorithm of that name; and its size."""
    import nlaformer as nf
    from nlaformer import pretrained

    if not Path(name).exists() and name not in pretrained.names() and name in nf.algorithms():
        size = 8 if n is None else n
        return nf.algorithm(name, n=size, verify=False), size
    if n is not None:
        raise OptionError(f"--n goes with the name of an algorithm; {name} has a size of its own")
    model = nf.load(name)
    if isinstance(model, nf.Operation) or isinstance(model.config.n, str):
        what = "an operation and has no iterates" if isinstance(model, nf.Operation) else "weights for every n"
        raise OptionError(f"{name} is {what}; the microscope takes models and algorithms for one n")
    return model, model.config.n


def sheets(found: Microscopy) -> list[Sheet]:
    """Which algorithm explains it best, up to which t; and what each test has measured, in a line."""
    from nlaformer.microscope.battery import SHOWN
    from nlaformer.report.findings import FINDINGS, drawable, finding

    data = found.to_json()
    ts = [t for t in SHOWN if t <= found.T]
    rows = tuple(
        (
            *(e.candidate, str(e.until), str(e.ended), f"{e.score:.2f}"),
            *(f"{e.ratio[t - 1]:.2g}" if t <= e.ended else "-" for t in ts),
        )
        for e in found.explanations
    )
    about = f"{found.model}, n = {found.n}, T = {found.T}, {found.effort.count} systems of {found.family}."
    headings = ("candidate", "up to t", "compared", "score", *(f"t = {t}" for t in ts))
    lines = tuple((test, finding(test, data)) for test in FINDINGS if test != "explanations" and drawable(test, data))
    return [
        Sheet(f"{finding('explanations', data)}: ratio of the rule, by candidate", headings, rows, about),
        Sheet("Every test in a line", ("test", "finding"), lines, words=True),
    ]
