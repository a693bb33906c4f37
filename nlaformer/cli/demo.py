"""The command ``demo``: what the package does, section by section.

A section is a function that runs something, prints it and says in plain sentences what it shows.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

from nlaformer.console import Sheet, console, print_sheets, say

__all__ = ["demo"]

SYSTEMS = 512  # for the bundled models
OPERATION_SIZE = 20


def demo() -> None:
    """Show what there is, with real runs: about three minutes."""
    for section in SECTIONS:
        section()


def operations() -> None:
    """The table of the operations, and what it shows."""
    from nlaformer.cli.operations import measure_all, sheets

    _heading("Operations: cost, error and proven bound")
    rows = measure_all(OPERATION_SIZE, ("float64",))
    found = {row["operation"]: row["accuracy"]["float64"] for row in rows if row["form"] == "accurate"}
    worst = max(found, key=lambda name: found[name]["error"])
    above = [name for name in found if found[name]["error"] > found[name]["bound"]]
    outcome = f"ABOVE THE BOUND: {', '.join(above)}." if above else "No error exceeds its bound."
    _tell(
        "Each line is an ordinary softmax transformer. Its weights were written down, not trained, and it was run on "
        f"random numbers. The least accurate, apart from the single FFNs, is {worst}, with a relative error of "
        f"{found[worst]['error']:.0e}. {outcome}"
    )
    print_sheets(sheets(rows))


def python() -> None:
    """The first lines a user types, run."""
    _heading("In Python")
    source = textwrap.dedent(inspect.getsource(example).partition("\n")[2].partition("return")[0])
    print(textwrap.indent(source + "print(product.cost)", "    ") + "\n")
    found = example()
    print(f"    {found['cost']}\n")
    _tell(f"The largest error of an entry is {found['error']:.1e}, the largest proven bound {found['bound']:.1e}.")


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
    from nlaformer.compiler.library import example
    from nlaformer.compiler.library.krylov import ConjugateGradient
    from nlaformer.compiler.verify import converge

    _heading("Algorithms: conjugate gradients, written as on paper, compiled into weights")
    print(textwrap.indent(textwrap.dedent(inspect.getsource(ConjugateGradient)).rstrip(), "    ") + "\n")
    cg = nf.algorithm("cg", n=20)
    print(cg.schedule(width=console().width) + "\n")
    _tell("CG amplifies every rounding error, NumPy's too: after about 12 steps the two differ, and both converge.")
    inputs, exact = example("cg", n=20)
    curves = converge(cg, ConjugateGradient(), inputs, exact, iterations=40)
    found, theirs = (np.median(errors, axis=0) for errors in (curves.found, curves.reference))
    _tell(
        f"After 40 iterations on {len(exact)} systems the median relative error of the transformer is {found[-1]:.0e}, "
        f"that of CG in NumPy {theirs[-1]:.0e}; after 10 iterations they are {found[10]:.0e} and {theirs[10]:.0e}. "
        "Nothing was trained. nlaformer algorithms shows more; docs/compile.md explains how to write one."
    )


def learning() -> None:
    """The quickstart model trained before the user's eyes, and its iterates beside CG's."""
    import shutil
    import tempfile

    import nlaformer as nf
    from nlaformer.learn.evaluate import evaluate, findings

    _heading("Learning: a transformer that solves linear systems")
    config = nf.recipe("quickstart")
    _tell(f"Training the recipe quickstart: {config.steps} steps, systems of {config.n} unknowns, on the CPU.")
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
    _tell(findings(own))


def pretrained() -> None:
    """The bundled models beside CG and PCG, on systems they have not seen."""
    from nlaformer import pretrained as bundled
    from nlaformer.learn import teachers
    from nlaformer.learn.compare import compare, summary
    from nlaformer.learn.evaluate import SEED, findings, measure, squared_relative_errors
    from nlaformer.learn.model import Solver
    from nlaformer.learn.models import load_model
    from nlaformer.learn.progress import stages
    from nlaformer.problems import SPD

    _heading("Bundled models: trained before, run here")
    systems = SPD(n=20, sigma=(1.0, 1.2, 1.4)).sample(SYSTEMS, seed=SEED)
    curves, words = {}, {}
    with stages() as stage:
        for name in bundled.names():
            stage(f"Solving {SYSTEMS} systems: {name}")
            model = load_model(name)
            if isinstance(model, Solver):
                row = measure(model, name, systems)
                curves[name], words[name] = row.model, findings(row, model.config.teacher)
            else:
                found = compare(model, name, systems, iterations=20)
                curves[name], words[name] = found.mean["learned"], summary(found)
    for name, method in (("CG", teachers.cg), ("PCG", teachers.pcg)):
        errors = squared_relative_errors(method(systems.A, systems.b, 20).x, systems.x)
        curves[name] = tuple(errors.mean(0).tolist())
    lines = tuple((f"t = {t}", *(f"{curve[t]:.1g}" for curve in curves.values())) for t in (1, 2, 3, 4, 6, 8, 12, 20))
    headings = tuple(name.replace("-", "-\n") for name in curves)
    title = f"Squared relative error, mean of {SYSTEMS} systems, sigma 1, 1.2 and 1.4"
    print_sheets([Sheet(title, ("iterate", *headings), lines)])
    for name, sentence in words.items():
        _tell(f"{name}: {sentence}")


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
    calls = result.model.applications if result.model else 0
    say(f"{result}\n", indent=10)
    _tell(
        f"With {calls} calls of the model the solve took {result.matvecs} products with A and {result.seconds:.2g} s, "
        f"CG alone {plain.matvecs} and {plain.seconds:.2g} s. "
        f"No answer is taken on trust: the residual is recomputed from x, and the exact |b - A x| is proven to be at "
        f"most {result.residual_bound:.1e}, below the tolerance of {result.tolerance:.1e}. A wrong model costs time, "
        "never the answer. docs/solve.md explains when a model pays; nlaformer solve reads files."
    )


SECTIONS = [python, operations, algorithms, learning, pretrained, solving]


def _heading(title: str) -> None:
    say(f"{title}\n{'=' * len(title)}\n", style="bold")


def _tell(text: str) -> None:
    say(f"{text}\n")
