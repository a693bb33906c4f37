"""What each operation of the language costs: layers, heads and FFN width of a block that computes it alone, its error.

    python -m benchmarks.language                    # the table of docs/compile.md, a minute on one core

x and y are vector states, s a scalar and X a matrix state, w and C constants of the class, n = 20, float64. The block
is the post block; the layer that writes the answer counts. The deviation is from NumPy, relative to the largest entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import nlaformer as nf
from nlaformer.console import Sheet, print_sheets
from nlaformer.provenance import in_words, provenance

N = 20
_RNG = np.random.default_rng(3)
w, C = _RNG.standard_normal(N), _RNG.standard_normal((N, N)) / N**0.5
EXPRESSIONS = (
    *("x + 2 * y", "s * x", "w * x", "x * y", "x / y", "x**3"),
    *("A @ x", "A.T @ x", "X @ x", "C @ x", "x @ y", "np.linalg.norm(x)", "x / np.linalg.norm(x)"),
    *("np.sum(x)", "np.mean(x)", "np.abs(x)", "np.maximum(x, y)", "np.clip(x, -1, 1)", "np.sign(x)"),
    *("np.sqrt(x * x)", "np.exp(x)", "np.log(1 + x * x)", "np.tanh(x)"),
    *("np.roll(x, 1)", "x[2]", "X[2]", "np.diag(X)", "np.diag(x)", "np.tril(X)", "np.trace(X)", "X.sum(axis=1)"),
    *("np.outer(x, y)", "X.T", "X @ X", "X * X", "X * x", "X + 1", "np.abs(X)", "np.exp(X)", "np.linalg.norm(X)"),
)


class Once(nf.Program):
    """A program that computes an expression in its post block."""

    def __init__(self, expression: str):
        self.code = compile(expression, expression, "eval")

    def start(self, A: Any, b: Any, x0: Any) -> dict[str, Any]:
        return dict(x=b, y=x0, s=b @ x0, X=A)

    def step(self, x: Any, y: Any, s: Any, X: Any) -> dict[str, Any]:
        return dict(x=x, y=y, s=s, X=X)

    def finish(self, A: Any, x: Any, y: Any, s: Any, X: Any) -> Any:
        return eval(self.code, {"np": np, "A": A, "x": x, "y": y, "s": s, "X": X, "w": w, "C": C})


def measured(expression: str) -> tuple[str, ...]:
    """One line of the table."""
    program = Once(expression)
    algorithm = nf.compile(program, n=N)
    rng = np.random.default_rng(4)
    A, b, x0 = rng.standard_normal((N, N)) / N**0.5, rng.standard_normal(N), rng.standard_normal(N)
    found = algorithm.run(A, b, x0, iterations=0).x[0]
    wanted = program.finish(A, b, x0, b @ x0, A)
    deviation = np.abs(found - wanted).max() / np.abs(wanted).max()
    cost, blocks = algorithm.cost.post, algorithm.model.post
    heads = sum(layer.heads.count for layer in blocks if layer.heads is not None)  # type: ignore[union-attr, misc]
    return f"`{expression}`", str(cost.layers), str(heads), f"{cost.ffn_width:,}", f"{deviation:.0e}"


def main() -> None:
    torch.set_num_threads(1)
    headings = ("expression", "layers", "heads, all layers", "FFN width", "deviation")
    sheet = Sheet("What an operation costs", headings, tuple(measured(expression) for expression in EXPRESSIONS))
    print_sheets([sheet], markdown=True)
    print(f"\n{in_words(provenance())}")


if __name__ == "__main__":
    main()
