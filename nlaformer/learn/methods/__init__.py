"""Methods with a learned part, each as one would write it on a page; one file for each kind of problem.

In all of them the network only proposes. What is done with the proposal is exact arithmetic that keeps the guarantee of
the classical method, whatever the network says: an error, a residual or an energy that no step increases.
"""

from __future__ import annotations

from nlaformer.errors import look_up
from nlaformer.learn.methods.conjugate import GuidedCG, LearnedPCG
from nlaformer.learn.methods.eigen import GuidedEigen
from nlaformer.learn.methods.least_squares import GuidedCGLS
from nlaformer.learn.methods.nonlinear import GuidedNonlinear
from nlaformer.learn.methods.nonsymmetric import GuidedGCR
from nlaformer.program.language import Program

__all__ = ["METHODS", "GuidedCG", "GuidedCGLS", "GuidedEigen", "GuidedGCR", "GuidedNonlinear", "LearnedPCG", "method"]

METHODS: dict[str, type[Program]] = {
    "guided-cg": GuidedCG,
    "learned-pcg": LearnedPCG,
    "guided-gcr": GuidedGCR,
    "guided-nonlinear": GuidedNonlinear,
    "guided-cgls": GuidedCGLS,
    "guided-eigen": GuidedEigen,
}


def method(name: str) -> Program:
    """The method of a name.

    >>> method("guided-cg").precondition
    Learned('diagonal + rank 1')
    """
    return look_up("method", name, METHODS)()
