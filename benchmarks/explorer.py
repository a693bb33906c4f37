"""What the explorer's numbers can be held to.

The cost of its rounded weights: errors of the learned models it holds, beside the bundled ones. And how far float64
determines the iterates of compiled CG: the same weights and systems, in the library, with the vector instructions that
torch chooses for this processor and with those of others, which sum in other orders; and with the last bits of A moved.

``python -m benchmarks.explorer``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch
from torch import Tensor

from nlaformer import problems
from nlaformer.compiler.library import algorithm
from nlaformer.explorer.catalogue import SOLVERS, rounded_solver
from nlaformer.learn.model import Solver
from nlaformer.learn.models import load_solver

_COUNT, _SEED, _SIGMA = 128, 5, 1.2
_SHOWN = (1, 3, 5, 10, 15, 20)
_SYSTEMS, _ITERATIONS = 20, 5  # those of tests/test_explorer_engine.py
_INSTRUCTIONS = ("default", "avx2")


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


def cg_iterates() -> Tensor:
    """x_0, ..., x_5 of compiled CG, n = 8, for the systems of the tests."""
    cg = algorithm("cg", n=8, verify=False)
    systems = [problems.SPD(n=8).sample(1, seed=seed) for seed in range(_SYSTEMS)]
    return torch.stack([cg.run(A[0], b[0], iterations=_ITERATIONS).x for A, b, _ in systems])


def elsewhere(instructions: str) -> Tensor:
    """The same in a process of its own, with other vector instructions."""
    code = "import json; from benchmarks.explorer import cg_iterates; print(json.dumps(cg_iterates().tolist()))"
    told = {**os.environ, "ATEN_CPU_CAPABILITY": instructions}
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=True)
    return torch.tensor(json.loads(done.stdout), dtype=torch.float64)


def moved() -> Tensor:
    """The same where each entry of A moves by one unit in its last place, up or down."""
    cg, signs = algorithm("cg", n=8, verify=False), torch.Generator().manual_seed(0)
    found = []
    for seed in range(_SYSTEMS):
        A, b, _ = problems.SPD(n=8).sample(1, seed=seed)
        up = torch.randint(0, 2, (8, 8), generator=signs).triu()
        towards = torch.where((up + up.triu(1).mT).bool(), torch.inf, -torch.inf).to(A)
        found.append(cg.run(A[0].nextafter(towards), b[0], iterations=_ITERATIONS).x)
    return torch.stack(found)


def compare_instructions() -> None:
    here, names = cg_iterates(), torch.backends.cpu.get_cpu_capability()
    print(f"\ncompiled CG, n = 8, t <= {_ITERATIONS}: largest difference in x on {_SYSTEMS} systems, from {names}")
    size = here.abs().amax((1, 2)).clamp(min=1)
    for label, other in ({name: elsewhere(name) for name in _INSTRUCTIONS} | {"last bits of A": moved()}).items():
        found = ((other - here).abs().amax((1, 2)) / size).sort(descending=True)
        print(f"{label:30}{found[0][0]:10.1e} (seed {found[1][0]}), next {found[0][1]:.1e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
    compare_instructions()
