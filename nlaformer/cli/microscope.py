"""The command ``microscope``: which algorithm a model is like; the figures of every test, and a page of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlaformer.cli.options import Json
from nlaformer.console import Sheet, print_json, print_sheets
from nlaformer.errors import FileError, OptionError

if TYPE_CHECKING:
    from nlaformer.microscope.battery import Microscopy
    from nlaformer.microscope.extraction import Extraction
    from nlaformer.microscope.interchange import Exchange
    from nlaformer.microscope.measures import Spread
    from nlaformer.problems import Family


_FIRST = 3  # tables of a command that writes a page: which algorithm it is, and the errors


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
    exchange: Annotated[
        bool, typer.Option("--exchange", help="Instead, exchange parts of its state between two right-hand sides.")
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

    if extract and exchange:
        raise OptionError("--extract and --exchange were both given; choose one")
    if extract or exchange:
        _refuse("--extract" if extract else "--exchange", quick=quick, iterations=iterations, out=out)
    if out is not None and (out.suffix != ".html" or not out.parent.is_dir()):
        raise FileError(f"cannot write {out}; expected the name of an .html file in a folder that exists")
    subject, size = _subject(model, n)
    family = None if sigma is None else nf.problems.SPD(n=size, sigma=(sigma,))
    if extract or exchange:
        show = _show_extraction if extract else _show_interchange
        show(model, subject, family, seed, as_json)
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
        tables = sheets(found)
        print_sheets(tables if out is None else tables[:_FIRST])
        if out is not None:
            print(f"{out} shows every test. Without --out their tables are printed.")
    if found.named is None:
        raise typer.Exit(1)


def _refuse(chosen: str, **options: object) -> None:
    """Options of the battery that a run without it has no use for."""
    for name, value in options.items():
        if value:
            raise OptionError(f"--{name} belongs to the battery; {chosen} runs instead of it and has no use for it")


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


def _extraction(found: Extraction) -> list[Sheet]:
    """The tables of fitted programs."""
    headings = ("program", *_headings(list(range(1, len(found.solution_r2) + 1))))
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


def _show_interchange(given: str, subject: object, family: Family | None, seed: int | None, as_json: bool) -> None:
    from nlaformer.learn.model import Solver
    from nlaformer.learn.progress import stages
    from nlaformer.microscope.interchange import SEED, interchange
    from nlaformer.provenance import provenance

    if not isinstance(subject, Solver):
        raise OptionError(f"--exchange takes a trained solver; {given} is none, see nf.patch for its registers")
    with stages() as say:
        start = SEED if seed is None else seed
        found = interchange(subject, family, seed=start, say=lambda name: say(f"{given}: {name}"))
    if as_json:
        print_json({"given": given, **found.to_json(), "provenance": provenance()})
        return
    for each in found.exchanges:
        print_sheets(_exchange(each))


def _exchange(each: Exchange) -> list[Sheet]:
    """The tables of the exchanges after some loops."""
    variance = ", ".join(f"{value:.2f}" for value in each.variance)
    cosine = ", ".join(f"{name} {value:.2f} ({each.cosine_of_b[name]:.2f})" for name, value in each.cosine.items())
    note = (
        f"Variance of the principal directions: {variance}. Chosen: {each.chosen}; mean absolute cosine of its "
        f"component with CG's vectors, in brackets that of b: {cosine}."
    )
    headings = ("exchanged", *_headings([each.loop + k + 1 for k in range(len(each.shares["the whole state"]))]))
    shares, moved = (
        tuple((name, *(f"{value:.2f}" for value in values)) for name, values in table.items())
        for table in (each.shares, each.moved)
    )
    title = f"Exchanged after {each.loop} loops: how far the iterates "
    return [
        Sheet(f"{title}follow CG's for the other b", headings, shares),
        Sheet(f"{title}move at all, |y - x|^2 / |x|^2", headings, moved, note),
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
    if isinstance(model, nf.Operation):
        raise OptionError(f"{name} is an operation and has no iterates; the microscope takes models and algorithms")
    return model, model.config.n


def sheets(found: Microscopy) -> list[Sheet]:
    """The tables of every test."""
    from nlaformer.microscope.battery import SHOWN

    ts = [t for t in SHOWN if t <= found.T]
    to_the_end = sorted({*ts, found.T})
    defects = {label: {k: v.defect for k, v in table.items()} for label, table in found.symmetries.items()}
    afterwards = {label: {k: v.error for k, v in table.items()} for label, table in found.symmetries.items()}
    return [
        *_explanations(found, ts),
        _spreads("Squared relative error", found.errors, to_the_end),
        *_krylov(found, ts),
        *_operators(found, ts),
        *(_spreads(f"{label}: squared defect", table, to_the_end) for label, table in defects.items()),
        _failures("Transformed systems", afterwards),
        *(_spreads(f"{label}: squared relative error", table, ts) for label, table in found.termination.items()),
        _spreads("Additivity in b: squared defect", found.additivity, ts),
        _failures("Other systems", found.elsewhere),
        *(
            [_spreads("Squared relative error, longer than in training", found.beyond, range(4), found.T)]
            if found.beyond
            else []
        ),
    ]


def _explanations(found: Microscopy, ts: list[int]) -> list[Sheet]:
    named = "no algorithm" if found.named is None else f"{found.named}, up to t = {found.until}"
    rows = tuple(
        (e.candidate, str(e.until), str(e.ended), f"{e.score:.2f}", *(f"{e.ratio[t - 1]:.2g}" for t in ts))
        for e in found.explanations
    )
    relative = tuple((e.candidate, *(f"{e.relative_deviation[t - 1]:.2g}" for t in ts)) for e in found.explanations)
    about = f"{found.model}, n = {found.n}, T = {found.T}, {found.effort.count} systems of {found.family}."
    headings = ("candidate", "up to t", "compared", "score", *_headings(ts))
    return [
        Sheet(f"Explained by {named}: ratio of the rule, by candidate", headings, rows, about),
        Sheet("Mean squared deviation over the candidate's own error", ("candidate", *_headings(ts)), relative),
    ]


def _krylov(found: Microscopy, ts: list[int]) -> list[Sheet]:
    spaces = tuple(
        (name, *(f"{each.distance[t - 1][0]:.2g} / {_or_dash(each.products[t - 1], 'd')}" for t in ts))
        for name, each in found.krylov.items()
    )
    own = found.krylov["model"]
    multiples = tuple(
        (
            str(t),
            *(f"{a:.2g} ({s:.2g})" for a, s in zip(own.distance[t - 1], own.solution[t - 1], strict=True)),
            _or_dash(found.cg_iterations[t], ".1f"),
        )
        for t in ts
    )
    title = "Squared distance of the model's x_t from K_m (of the solution); iterations of CG with the same error"
    return [
        Sheet("Squared distance of x_t from K_t / effective products", ("", *_headings(ts)), spaces),
        Sheet(title, ("t", "K_t", "K_2t", "K_3t", "K_4t", "CG"), multiples),
    ]


def _operators(found: Microscopy, ts: list[int]) -> list[Sheet]:
    shares = tuple(
        (name, *(f"{abs(value):.2f}" for value in each.off_diagonal)) for name, each in found.operators.items()
    )
    filters = tuple(
        (f"{name}, t = {t}", *(f"{value:.3f}" for value in found.operators[name].filter[k]))
        for k, t in enumerate(ts)
        for name in ("model", "cg", "fixed polynomial")
    )
    title = "Spectral filter, six groups of eigenvalues from low to high"
    return [
        Sheet("Share of the error operator off the diagonal in A's eigenbasis", ("", *_headings(ts)), shares),
        Sheet(title, ("", *map(str, range(1, 7))), filters),
    ]


def _spreads(title: str, table: dict[str, Spread], places: Iterable[int], T: int | None = None) -> Sheet:
    """Means and medians at these places: iterates, or, with T, its multiples."""
    places = list(places)
    lines = tuple((name, *(f"{s.mean[k]:.1e} / {s.median[k]:.1e}" for k in places)) for name, s in table.items())
    iterates = places if T is None else [(k + 1) * T for k in places]
    return Sheet(f"{title}, mean / median", ("", *_headings(iterates)), lines)


def _failures(title: str, tables: dict[str, dict[str, Spread]]) -> Sheet:
    """Mean, median and share of failures at the last iterate, of the model and of three controls."""
    shown = ("model", "cg", "pcg", "untrained")
    lines = tuple(
        (
            label,
            *(f"{s.mean[-1]:.1e} / {s.median[-1]:.1e} / {s.failures[-1]:.0%}" for s in (table[name] for name in shown)),
        )
        for label, table in tables.items()
    )
    return Sheet(f"{title}, last iterate: mean / median of the squared error / share above 1", ("", *shown), lines)


def _headings(ts: list[int]) -> tuple[str, ...]:
    return tuple(f"t = {t}" for t in ts)


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
