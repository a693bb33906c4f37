"""The command ``demo``: what the package does, in a few minutes, section by section.

A section is a function that runs something, prints it and says in plain sentences what it shows.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

from nlaformer.console import Sheet, console, print_sheets

SYSTEMS = 512  # for the bundled models


def demo() -> None:
    """Show what there is, with real runs; two or three minutes."""
    for section in SECTIONS:
        section()


def operations() -> None:
    """What the measured Table 1 shows, then its two main tables."""
    from paper import table_1 as table
    from paper import table_1_measured as verify

    _heading("Operations: the paper's Table 1, measured")
    rows = verify.measure_all(n=20)
    for sentence in table.findings(rows):
        _say(sentence)
    size, float64, *_ = table.sheets(rows)
    print_sheets([size, float64])
    print("`nlaformer operations` prints the rest: float32, the loop-transformer; any n.\n")


def python() -> None:
    """The first lines a user types, run."""
    _heading("In Python")
    source = textwrap.dedent(inspect.getsource(example).partition("\n")[2].partition("return")[0])
    print(textwrap.indent(source + "print(product.cost)", "    ") + "\n")
    found = example()
    print(f"    {found['cost']}\n")
    _say(f"The largest error of an entry is {found['error']:.1e}, the largest proven bound {found['bound']:.1e}.")


def example() -> dict[str, Any]:
    import numpy as np

    import nlaformer as nf

    A, B = np.random.default_rng(0).normal(size=(2, 20, 20))
    product = nf.operation("matmul", n=20)
    error = np.abs(product(A, B) - A @ B).max()
    bound = product.error_bound(A, B).max()
    return {"cost": str(product.cost), "error": float(error), "bound": float(bound)}


def algorithms() -> None:
    """A program, its schedule, and how it converges beside NumPy."""
    import numpy as np

    import nlaformer as nf
    from nlaformer.compiler.library import ConjugateGradient, example
    from nlaformer.compiler.verify import converge

    _heading("Algorithms: conjugate gradients, written as on paper, compiled into weights")
    print(textwrap.indent(textwrap.dedent(inspect.getsource(ConjugateGradient)).rstrip(), "    ") + "\n")
    cg = nf.algorithm("cg", n=20)
    print(cg.schedule(width=76) + "\n")
    _say(
        "The deviations after 12 steps are CG's own: it amplifies every rounding on its way, NumPy's too, and "
        "converges all the same."
    )
    inputs, exact = example("cg", n=20)
    curves = converge(cg, ConjugateGradient(), inputs, exact, iterations=40)
    found, theirs = (np.median(errors, axis=0) for errors in (curves.found, curves.reference))
    _say(
        f"Looped 40 times on {len(exact)} systems it was not made for, the transformer ends at a relative error "
        f"of {found[-1]:.0e}, NumPy's CG at {theirs[-1]:.0e}; after 10 iterations they stand at {found[10]:.0e} and "
        f"{theirs[10]:.0e}. Nothing was trained. nlaformer algorithms shows more, docs/compile.md how to write one."
    )


def learning() -> None:
    """The quickstart model trained before the user's eyes, and its iterates beside CG's."""
    import shutil
    import tempfile

    import nlaformer as nf
    from nlaformer.learn.evaluate import evaluate, findings

    _heading("Learning: a transformer that solves linear systems")
    config = nf.recipe("quickstart")
    _say(f"Training the recipe quickstart: {config.steps} steps, systems of {config.n} unknowns, on the CPU.")
    folder = tempfile.mkdtemp(prefix="nlaformer-demo-")
    try:
        solver = nf.train(config, out=folder, device="cpu").solver
    except KeyboardInterrupt:  # the folder is kept: the run can be resumed
        print(f"To resume this run: nlaformer train {config.recipe} --out {folder} --device cpu", file=sys.stderr)
        raise
    shutil.rmtree(folder)
    own = evaluate(solver)[0]
    lines = tuple((f"t = {t}", f"{own.model[t]:.2g}", f"{own.cg[t]:.2g}") for t in range(1, config.T + 1))
    title = f"Squared relative error on {own.count} systems not seen in training"
    print()  # after the lines of progress
    print_sheets([Sheet(title, ("iterate", "learned", "CG"), lines)])
    _say(findings(own))


def pretrained() -> None:
    """The bundled models beside CG and PCG, on systems they have not seen."""
    from nlaformer import pretrained as bundled
    from nlaformer.learn.evaluate import SEED, findings, measure
    from nlaformer.learn.model import load_solver
    from nlaformer.problems import SPD

    _heading("Bundled models: trained before, run here")
    systems = SPD(n=20, sigma=(1.0, 1.2, 1.4)).sample(SYSTEMS, seed=SEED)
    solvers = {name: load_solver(name) for name in bundled.names()}
    rows = {name: measure(solver, name, systems) for name, solver in solvers.items()}
    first = next(iter(rows.values()))
    curves = {name: row.model for name, row in rows.items()} | {"CG": first.cg, "PCG": first.pcg}
    lines = tuple((f"t = {t}", *(f"{curve[t]:.1g}" for curve in curves.values())) for t in (1, 2, 3, 4, 6, 8, 12, 20))
    headings = tuple(name.replace("-", "-\n") for name in curves)
    title = f"Squared relative error, mean of {first.count} systems, sigma 1, 1.2 and 1.4"
    print_sheets([Sheet(title, ("iterate", *headings), lines)])
    for name, row in rows.items():
        _say(f"{name}: {findings(row, solvers[name].config.teacher)}")


def solving() -> None:
    """One system of the paper's family, solved with a bundled model, and the certificate of its answer."""
    import nlaformer as nf
    from nlaformer.problems import SPD

    _heading("Solving: a learned solver one can trust")
    A, b, _ = (part[0].numpy() for part in SPD(n=20).sample(1, seed=0))
    print('    model = nf.load("cg-accelerated")')
    print('    nf.solve(A, b, model=model, method="flexible", rtol=1e-8)\n')
    model = nf.load("cg-accelerated")
    result, plain = nf.solve(A, b, model=model, method="flexible", rtol=1e-8), nf.cg(A, b, rtol=1e-8)
    width, calls = console().width, result.model.applications if result.model else 0
    for line in str(result).splitlines():
        print(textwrap.fill(line, width, subsequent_indent=" " * 10))
    print()
    _say(
        f"With {calls} calls of the model the solve took {result.matvecs} products with A and {result.seconds:.2g} s, "
        f"CG alone {plain.matvecs} and {plain.seconds:.2g} s. "
        f"No answer was believed: the residual is computed again from x, and the exact |b - A x| proven to be at most "
        f"{result.residual_bound:.1e}, below the tolerance of {result.tolerance:.1e}. A model that "
        "is wrong costs time, never the answer. docs/solve.md says when one pays; nlaformer solve reads files."
    )


SECTIONS = [python, operations, algorithms, learning, pretrained, solving]


def _heading(title: str) -> None:
    console().print(f"{title}\n{'=' * len(title)}\n", style="bold")


def _say(sentence: str) -> None:
    out = console()
    out.print(textwrap.fill(sentence, out.width) + "\n", soft_wrap=True)
