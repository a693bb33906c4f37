"""The command ``demo``: what the package does, in four parts with a picture each.

A part is a few lines of Python, printed and run as they stand, and sentences that say what came out.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nlaformer.console import Sheet, output_folder, print_sheets, say

if TYPE_CHECKING:
    from nlaformer.learn.compare import Comparison


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the model that is trained.")] = Path("out"),
) -> None:
    """Show what there is, with real runs: about two minutes."""
    output_folder(out)
    for part in (operation, algorithm, learning, solving, afterwards):
        part(out)


def operation(out: Path) -> None:
    """A product of matrices as a layer of attention."""
    from nlaformer.cli.operations import draw_prompts

    _heading("1. An operation: a product of matrices by one layer of softmax attention")
    found = _shown(
        """
        A, B = np.random.default_rng(0).normal(size=(2, 6, 6))
        product = nf.operation("matmul", n=6)  # product.model is a torch.nn.Module
        error = abs(product(A, B) - A @ B)
        bound = product.error_bound(A, B)  # proven, for each entry of this call
        """
    )
    cost, (error, bound) = found["product"].cost, (found[name].max() for name in ("error", "bound"))
    picture = draw_prompts(found["product"], [found["A"], found["B"]], out / "1-operation.png")
    _tell(
        f"The weights were written down, not trained: {cost.heads} heads with opposite scores, whose difference is "
        f"nearly a product. The largest error is {error:.0e}, the largest bound {bound:.0e}. The picture shows the "
        f"matrix that the layer works on, {cost.rows} rows with names over {cost.tokens} tokens, before and after: "
        f"{picture}"
    )


def algorithm(out: Path) -> None:
    """Conjugate gradients as a looped transformer."""
    _heading("2. An algorithm: conjugate gradients, written as on paper, compiled into weights")
    found = _shown(
        """
        class Compiled(nf.Program):
            positive_definite = True  # a promise about A; every run checks it

            def start(self, A, b, x0):
                r = b - A @ x0
                return dict(x=x0, r=r, d=r, rho=r @ r)

            def step(self, A, x, r, d, rho):
                q = A @ d
                alpha = rho / (d @ q)
                r = r - alpha * q
                beta = r @ r / rho
                return dict(x=x + alpha * d, r=r, d=r + beta * d, rho=r @ r)

        cg = nf.compile(Compiled(), n=20)
        errors = nf.evaluate(cg, nf.problems.SPD(n=20), iterations=30, count=8)
        """
    )
    loop, errors = found["cg"].cost.loop, found["errors"]
    ours, theirs = errors.mean["Compiled"], errors.mean["CG"]
    curves = {"compiled CG": ours, "CG in NumPy": theirs}
    picture = _drawn(
        errors, curves, f"Compiled CG ends at {ours[-1]:.0e}, CG at {theirs[-1]:.0e}", out / "2-algorithm.png"
    )
    _tell(
        f"One step became a block of {loop.layers} layers; 30 passes of it are 30 iterations, and nothing was trained. "
        f"On {errors.count} systems of 20 unknowns the mean squared relative error, |x_t - x|^2 / |x|^2, is "
        f"{ours[10]:.0e} after 10 iterations and {ours[30]:.0e} after 30; CG in NumPy has {theirs[10]:.0e} and "
        f"{theirs[30]:.0e}. Picture: {picture}"
    )


def learning(out: Path) -> None:
    """A bundled model ahead of CG, and one that is trained here."""
    _heading("3. Learned solvers: fewer iterations than conjugate gradients")
    found = _shown(
        """
        model = nf.load("cg-accelerated")
        errors = nf.evaluate(model, nf.problems.SPD(n=20), count=128)
        """
    )
    errors = found["errors"]
    _compared(errors, (1, 2, 4, 8, 12, 20))
    ahead = max(theirs / ours for ours, theirs in zip(errors.mean["learned"], errors.mean["CG"], strict=True))
    picture = _drawn(
        errors, errors.mean, f"cg-accelerated: squared error up to {ahead:,.0f} times below CG's", out / "3-learned.png"
    )
    _tell(
        "The bundled cg-accelerated is a transformer that was trained to be ahead of CG. On these systems, which are "
        f"new to it, its squared error is up to {ahead:,.0f} times smaller than CG's; then it stays there. PCG is "
        f"CG with a preconditioner: Jacobi's, or one made by hand for such matrices. Picture: {picture}"
    )
    _tell(
        "Now a network is trained before your eyes, on systems of 8 unknowns. It proposes a preconditioner in every "
        "iteration, and exact arithmetic does the rest, so that its error keeps falling. The loss is a "
        "logarithm of errors, so it is negative:"
    )
    model = str(out / "demo-model")
    found = _shown(
        f"""
        config = nf.recipe("guided-quickstart")
        nf.train(config, out={model!r}, device="cpu")
        errors = nf.evaluate(nf.load({model!r}), count=512)
        """
    )
    print()  # after the lines of progress
    errors, last = found["errors"], found["config"].T
    _compared(errors, tuple(range(1, last + 1)))
    ahead = errors.mean["CG"][last] / errors.mean["learned"][last]
    title = f"At t = {last} CG's squared error is {ahead:,.3g} times that of the model trained here"
    picture = _drawn(errors, errors.mean, title, out / "3-trained.png")
    _tell(f"{title}. The model is kept in {model}. Picture: {picture}")


def solving(out: Path) -> None:
    """A certified answer, with a good model and with a bad one."""
    from nlaformer.report.figure import residual_figure, save

    _heading("4. Solving with a certificate: a learned solver that need not be trusted")
    found = _shown(
        """
        A, b, x = (v[0].numpy() for v in nf.problems.SPD(n=20).sample(1, seed=0))
        result = nf.solve(A, b, model="cg-accelerated", rtol=1e-8)
        spoilt = nf.solve(A, b, model=lambda A, b: 1e9 * b, rtol=1e-8)  # no good
        plain = nf.cg(A, b, rtol=1e-8)
        """
    )
    result, spoilt, plain = (found[name] for name in ("result", "spoilt", "plain"))
    curves = {"CG": plain.residuals}, {"with cg-accelerated": result.residuals}
    picture = save(residual_figure(*curves, result.tolerance, "One system of 20 unknowns"), out / "4-solve.png")
    _tell(
        f"With the model the solve took {result.matvecs} products with A, without one {plain.matvecs}. (In time the "
        f"model does not pay at this size: {result.seconds:.2g} s and {plain.seconds:.2g} s.) The exact |b - A x| of "
        f"the returned x is proven to be at most {result.residual_bound:.1e}; the tolerance, 1e-8 |b|, is "
        f"{result.tolerance:.1e}. With the model that is no good the solve "
        f"{'converged' if spoilt.converged else 'did not converge'} after {spoilt.matvecs} products: a model costs "
        f"time, never the answer. Picture: {picture}"
    )


def afterwards(out: Path) -> None:
    """The explorer, and what to try."""
    from nlaformer.explorer import write_page
    from nlaformer.learn.progress import stages

    _heading("Where to go from here")
    with stages() as stage:
        stage("Packing the explorer")
        page = write_page(out / "explorer.html")
    _tell(
        f"{page} is the explorer: open it in a browser. It needs no network. Watch compiled CG, and learned models, "
        f"on a matrix of your own, layer by layer. The pictures of the parts above are in {out}. Try next:"
    )
    print(NEXT.format(out=out))
    if shutil.which("nlaformer") is None and sys.prefix != sys.base_prefix:  # as after make demo
        _tell(f"Your shell finds the command nlaformer after: . {os.path.relpath(sys.prefix)}/bin/activate")


NEXT = """\
    nlaformer algorithms cg
        what each layer of compiled CG computes
    nlaformer microscope {out}/demo-model --quick --out page.html
        what the network that was trained above has learned
    nlaformer solve A.mtx b.mtx
        a system of your own, from files
    docs/first-steps.md, docs/tutorial.md, examples/
        your own algorithm, your own family, your own model
"""


def _shown(code: str) -> dict[str, Any]:
    """Print some lines of Python and run them: what they have named."""
    import numpy as np

    import nlaformer as nf

    lines = textwrap.dedent(code).strip()
    print(textwrap.indent(lines, "    ") + "\n")
    scope: dict[str, Any] = {"np": np, "nf": nf, "__name__": "demo"}
    exec(compile(lines, "<demo>", "exec"), scope)
    return scope


def _compared(errors: Comparison, iterates: tuple[int, ...]) -> None:
    """A table of mean errors, a row for each iterate."""
    rows = tuple((f"t = {t}", *(f"{curve[t]:.1g}" for curve in errors.mean.values())) for t in iterates)
    title = f"Squared relative error, mean of {errors.count} systems"
    print_sheets([Sheet(title, ("iterate", *errors.mean), rows)])


def _drawn(errors: Comparison, curves: Mapping[str, Sequence[float]], title: str, path: Path) -> Path:
    """A picture of mean errors by iterate."""
    from nlaformer.report.curves import errors_figure
    from nlaformer.report.figure import save

    return save(errors_figure(curves, title, f"squared relative error, mean of {errors.count}"), path)


def _heading(title: str) -> None:
    say(f"{title}\n{'=' * len(title)}\n", style="bold")


def _tell(text: str) -> None:
    say(f"{text}\n")
