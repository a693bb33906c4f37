"""The command ``microscope``: which algorithm a model is like; the figures of every test, and a page of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nlaformer.cli.options import Json
from nlaformer.console import Sheet, print_json, print_sheets
from nlaformer.errors import FileError, OptionError

if TYPE_CHECKING:
    from nlaformer.microscope.battery import Microscopy
    from nlaformer.microscope.measures import Spread

_ITERATES = (1, 2, 4, 6, 8)


def microscope(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A bundled model, the folder of a run, or the name of an algorithm.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer systems, for a first look.")] = False,
    n: Annotated[int | None, typer.Option("--n", help="Size of the systems of an algorithm; default 8.", min=2)] = None,
    iterations: Annotated[
        int | None, typer.Option(help="T; default: that of the training, n for an algorithm.", min=3)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the systems.", min=0)] = None,
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

    if out is not None and (out.suffix != ".html" or not out.parent.is_dir()):
        raise FileError(f"cannot write {out}; expected the name of an .html file in a folder that exists")
    subject = _subject(model, n)
    with stages() as say:
        found = nf.microscope(
            subject, iterations=iterations, seed=SEED if seed is None else seed, quick=quick, say=_progress(say, model)
        )
    document = {"given": model, **found.to_json(), "provenance": provenance()}
    if out is not None:
        out.write_text(page(document), encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        print_sheets(sheets(found))
        if out is not None:
            print(f"The figures are in {out}.")
    if found.named is None:
        raise typer.Exit(1)


def _progress(say: Callable[[str], None], model: str) -> Callable[[str], None]:
    return lambda test: say(f"{model}: {test}")


def _subject(name: str, n: int | None) -> object:
    """The model of a path or bundled name, or else the compiled algorithm of that name."""
    import nlaformer as nf
    from nlaformer import pretrained

    if not Path(name).exists() and name not in pretrained.names() and name in nf.algorithms():
        return nf.algorithm(name, n=8 if n is None else n, verify=False)
    if n is not None:
        raise OptionError(f"--n goes with the name of an algorithm; {name} has a size of its own")
    return nf.load(name)


def sheets(found: Microscopy) -> list[Sheet]:
    """The tables of every test."""
    ts = [t for t in _ITERATES if t <= found.T]
    last = sorted({*ts, found.T})
    by_t = tuple(f"t = {t}" for t in ts)
    named = "no algorithm" if found.named is None else f"{found.named}, up to t = {found.until}"
    explanations = tuple(
        (e.candidate, str(e.until), str(e.ended), f"{e.score:.2f}", *(f"{e.ratio[t - 1]:.2g}" for t in ts))
        for e in found.explanations
    )
    relative = tuple((e.candidate, *(f"{e.relative_deviation[t - 1]:.2g}" for t in ts)) for e in found.explanations)
    spaces = tuple(
        (name, *(f"{each.distance[t - 1][0]:.2g} / {_count(each.products[t - 1])}" for t in ts))
        for name, each in found.krylov.items()
    )
    own = found.krylov["model"]
    multiples = tuple(
        (
            str(t),
            *(f"{a:.2g} ({s:.2g})" for a, s in zip(own.distance[t - 1], own.solution[t - 1], strict=True)),
            "-" if (same := found.cg_iterations[t]) is None else f"{same:.1f}",
        )
        for t in ts
    )
    operators = tuple((name, *(f"{v:.2f}" for v in each.off_diagonal)) for name, each in found.operators.items())
    filters = tuple(
        (f"{name}, t = {t}", *(f"{value:.3f}" for value in found.operators[name].filter[k]))
        for k, t in enumerate(ts)
        for name in ("model", "cg", "fixed polynomial")
    )
    return [
        Sheet(
            f"Explained by {named}: ratio of the rule, by candidate",
            ("candidate", "up to t", "compared", "score", *by_t),
            explanations,
            f"{found.model}, n = {found.n}, T = {found.T}, {found.effort.count} systems of {found.family}.",
        ),
        Sheet("Mean squared deviation from a candidate over its own squared error", ("candidate", *by_t), relative),
        _spreads("Squared relative error: mean / median", found.errors, last),
        Sheet("Distance of x_t from K_t / effective products", ("", *by_t), spaces),
        Sheet(
            "Distance of the model's x_t from K_m (of the solution); iterations of CG with the same error",
            ("t", "K_t", "K_2t", "K_3t", "K_4t", "CG"),
            multiples,
        ),
        Sheet("Share of the error operator off the diagonal in A's eigenbasis", ("", *by_t), operators),
        Sheet(
            "Spectral filter, six groups of eigenvalues from low to high", ("", *map(str, range(1, 7))), filters
        ),
        *(
            _spreads(
                f"Systems under {label}: squared defect of x_t, mean / median",
                {name: each.defect for name, each in table.items()},
                last,
            )
            for label, table in found.symmetries.items()
        ),
        _failures("Transformed systems", {label: {k: v.error for k, v in t.items()} for label, t in
                                          found.symmetries.items()}),
        *(
            _spreads(f"A with {label}: squared relative error, mean / median", table, ts)
            for label, table in found.termination.items()
        ),
        _spreads("Additivity in b: squared defect, mean / median", found.additivity, ts),
        _failures("Other systems", found.elsewhere),
        *(
            [_spreads("More iterations: squared relative error, mean / median", found.beyond,
                      [found.T, 2 * found.T, 4 * found.T])]
            if found.beyond
            else []
        ),
    ]  # fmt: skip


def _count(products: int | None) -> str:
    return "-" if products is None else str(products)


def _spreads(title: str, table: dict[str, Spread], ts: list[int]) -> Sheet:
    lines = tuple((name, *(f"{s.mean[t]:.1e} / {s.median[t]:.1e}" for t in ts)) for name, s in table.items())
    return Sheet(title, ("", *(f"t = {t}" for t in ts)), lines)


def _failures(title: str, tables: dict[str, dict[str, Spread]]) -> Sheet:
    """Mean, median and share of failures at the last iterate, of the model and of three controls."""
    shown = ("model", "cg", "pcg", "untrained")
    lines = tuple(
        (label, *(f"{s.mean[-1]:.1e} / {s.median[-1]:.1e} / {s.failures[-1]:.0%}" for s in map(table.get, shown) if s))
        for label, table in tables.items()
    )
    return Sheet(f"{title}, last iterate: mean / median of the squared error / share above 1", ("", *shown), lines)
