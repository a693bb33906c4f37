"""What the rounded weights of the explorer cost: errors of the learned models it holds, beside the bundled ones.

``python -m benchmarks.explorer``
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlaformer import problems
from nlaformer.explorer.catalogue import SOLVERS, rounded_solver
from nlaformer.learn.model import Solver, load_solver

_COUNT, _SEED, _SIGMA = 128, 5, 1.2
_SHOWN = (1, 3, 5, 10, 15, 20)


def errors(model: Solver) -> Tensor:
    """The mean squared relative error of every iterate."""
    A, b, x = problems.SPD(n=model.config.n, sigma=(_SIGMA,)).sample(_COUNT, seed=_SEED)
    distance = (model.iterates(A, b) - x[:, None]).square().sum(-1)
    return (distance / x.square().sum(-1, keepdim=True)).mean(0)


def main() -> None:
    print(f"mean squared relative errors, {_COUNT} systems, sigma {_SIGMA}")
    print(f"{'':30}" + "".join(f"{f't = {t}':>10}" for t in _SHOWN))
    for name, bits in SOLVERS.items():
        for label, model in ((name, load_solver(name)), (f"{name}, {bits} bits", rounded_solver(name))):
            found = errors(model)
            print(f"{label:30}" + "".join(f"{found[t]:10.1e}" for t in _SHOWN))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
