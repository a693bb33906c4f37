"""What a model is compared with: classical methods and the best fixed polynomial.

The classical methods are the library's own programs. The best fixed polynomial is

    x_t = p_t(A / s) b / s,    s = |A|_F,    deg p_t < t,

with the coefficients that make the mean squared relative error smallest over systems of the family: what a method can
do that uses t products and does not look at A or b. It is written in Legendre's polynomials on [0, 1], where the
eigenvalues of A / s lie.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nlaformer.compiler import library
from nlaformer.microscope.subject import Method, Subject, program_method
from nlaformer.problems import Systems

ALGORITHMS = (
    "cg", "pcg", "conjugate_residual", "steepest_descent", "minimal_residual", "richardson", "chebyshev",
    "newton_schulz",
)  # fmt: skip
POLYNOMIAL = "fixed polynomial"


def candidates(of: Subject, fitting: Systems) -> tuple[Subject, ...]:
    """Every method that may explain a subject; the polynomial is fitted on systems that nothing is measured on."""
    methods = {name: program_method(library.program(name)) for name in ALGORITHMS}
    methods[POLYNOMIAL] = best_polynomial(fitting, of.T)
    return tuple(Subject(name, method, of.T, of.family) for name, method in methods.items())


def best_polynomial(systems: Systems, degree: int) -> Method:
    """The iterates of the best polynomials of up to ``degree`` coefficients; beyond that, of the last one."""
    basis = _legendre(systems.A, systems.b, degree)  # (count, degree, n)
    size = systems.x.norm(dim=-1, keepdim=True)
    columns = (basis / size[:, None]).movedim(1, -1).flatten(0, 1)  # (count n, degree)
    right = (systems.x / size).flatten()
    fits = [
        torch.linalg.lstsq(columns[:, :t], right[:, None], driver="gelsd").solution[:, 0] for t in range(degree + 1)
    ]

    def method(A: Tensor, b: Tensor, iterations: int) -> Tensor:
        terms = _legendre(A, b, min(iterations, degree))
        found = [b.new_zeros(b.shape)]
        found += [(fits[min(t, degree)][:, None] * terms[:, : min(t, degree)]).sum(1) for t in range(1, iterations + 1)]
        return torch.stack(found, 1)

    return method


def _legendre(A: Tensor, b: Tensor, count: int) -> Tensor:
    """P_k(2 A / s - 1) b / s for k < count: (systems, count, n)."""
    s = A.flatten(1).norm(dim=-1)[:, None]

    def shifted(v: Tensor) -> Tensor:
        return 2 * (A @ v[..., None])[..., 0] / s - v

    terms = [b / s, shifted(b / s)]
    for k in range(1, count):
        terms.append(((2 * k + 1) * shifted(terms[k]) - k * terms[k - 1]) / (k + 1))
    return torch.stack(terms[:count], 1) if count else b.new_zeros(len(b), 0, b.shape[-1])
