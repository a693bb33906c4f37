"""The words of the microscope's page: what each test measured, in a line, and how to read its figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Data = dict[str, Any]


def about(found: Data) -> str:
    """What was measured on, and the name that was found."""
    return (
        f"n = {found['n']}, T = {found['T']}, {found['effort']['count']} systems of {found['family']}, seed "
        f"{found['seed']}. Explained by {named(found)}."
    )


def named(found: Data) -> str:
    return "no algorithm" if found["named"] is None else f"{found['named']} up to t = {found['until']}"


def drawable(test: str, found: Data) -> bool:
    """Whether a test was made: some are not for every model."""
    return test not in ("beyond", "interchange") or bool(found[test])


def finding(test: str, found: Data) -> str:
    """What a test has measured, in a line."""
    return FINDINGS[test](found)


def _of_krylov(found: Data) -> str:
    t = min(4, found["T"])
    own = found["krylov"]["model"]
    distance, products = own["distance"][t - 1][0], own["products"][t - 1]
    return f"Squared distance of x_{t} from K_{t}: {distance:.1e}; effective products {products or 'more than n'}"


def _of_operators(found: Data) -> str:
    own, cg = found["operators"]["model"], found["operators"]["cg"]
    k = len(own["iterates"]) // 2
    t, (mine, theirs) = own["iterates"][k], (abs(each["off_diagonal"][k]) for each in (own, cg))
    return f"Share of the error operator off A's eigenbasis at t = {t}: {mine:.2f}, CG {theirs:.2f}"


def _of_filters(found: Data) -> str:
    model, cg, polynomial = (
        [value for row in found["operators"][name]["filter"] for value in row]
        for name in ("model", "cg", "fixed polynomial")
    )
    apart = [max(abs(a - b) for a, b in zip(model, other, strict=True)) for other in (cg, polynomial)]
    return f"Spectral filter: within {apart[0]:.2g} of CG's, {apart[1]:.2g} of the best fixed polynomial's"


def _of_symmetries(found: Data) -> str:
    t = min(2, found["T"])
    told = (f"{label} {table['model']['defect']['median'][t]:.0e}" for label, table in found["symmetries"].items())
    return f"Median squared defect at t = {t}: {', '.join(told)}"


def _of_termination(found: Data) -> str:
    told = []
    for k, (label, table) in enumerate(found["termination"].items()):
        t = min(2 + k, found["T"])
        own, cg = (table[name]["median"][t] for name in ("model", "cg"))
        told.append(f"{label}, t = {t}: {own:.0e}, CG {cg:.0e}")
    return f"Median squared error with {'; with '.join(told)}"


def _of_elsewhere(found: Data) -> str:
    shares = {label: table["model"]["failures"][-1] for label, table in found["elsewhere"].items()}
    worst = max(shares, key=shares.__getitem__)
    return (
        f"Fails on up to {shares[worst]:.0%} of other systems ({worst})"
        if shares[worst]
        else "Fails on no other system"
    )


def _of_two(found: Data, test: str, title: str, statistic: str, t: int) -> str:
    own, cg = (found[test][name][statistic][t] for name in ("model", "cg"))
    return f"{title} at t = {t}: {own:.1e}, CG {cg:.1e}"


def _of_beyond(found: Data) -> str:
    T, own = found["T"], found["beyond"]["model"]["median"]
    return f"Median squared error at t = {T}: {own[0]:.1e}; at {4 * T}: {own[-1]:.1e}"


def interchange_finding(found: Data) -> str:
    """What the exchange of x, r and d does after the first loops that were tried, beside its control."""
    first = found["exchanges"][0]
    both, third = (
        ", ".join(f"{share:.2f}" for share in first["shares"][name])
        for name in ("x, r and d as probes read them", "x, r and d of a third system")
    )
    return f"x, r, d exchanged after {first['loop']} loops: {both} of the way to the other system; control {third}"


FINDINGS: dict[str, Callable[[Data], str]] = {
    "explanations": lambda found: f"Explained by {named(found)}",
    "errors": lambda found: _of_two(found, "errors", "Mean squared error", "mean", found["T"]),
    "krylov": _of_krylov,
    "operators": _of_operators,
    "filters": _of_filters,
    "symmetries": _of_symmetries,
    "termination": _of_termination,
    "additivity": lambda found: _of_two(
        found, "additivity", "Additivity in b, median defect", "median", min(2, found["T"])
    ),
    "elsewhere": _of_elsewhere,
    "beyond": _of_beyond,
    "interchange": lambda found: interchange_finding(found["interchange"]),
}

LEGEND = (
    "Black is the model, the other curves are known algorithms on the same systems, and the dotted one is the same "
    "network before its training: what is as good there was not learned. Errors and distances are squared and relative "
    "to |x|^2; what is below 1e-18 is rounding, and is not drawn."
)
# How to read each figure: the question that it answers, and what is to be seen.
READINGS = {
    "explanations": (
        "Is it a known algorithm?",
        "How far the model is from each algorithm, over how far that one is from the solution or from its own last "
        "iterate. Below the dotted line, 1/2, it explains that iterate; a name needs the first three.",
    ),
    "errors": ("How good is it?", "The lower, the better. Compare the slopes: a flat end is a plateau."),
    "krylov": (
        "Does it use more than t products with A?",
        "Every method of t products with A stays in the Krylov space K_t, at a distance that is rounding. A model that "
        "reads the entries of A, as a preconditioned method does, does not.",
    ),
    "operators": (
        "Is x_t a polynomial in A times b?",
        "The share of the error operator that is off the diagonal in A's eigenvectors: 0 for a polynomial with fixed "
        "coefficients, near 0 for CG.",
    ),
    "filters": (
        "Which eigenvalues does it solve first?",
        "How much of the solution is found, by groups of eigenvalues: 1 is all of it. CG begins with the large ones.",
    ),
    "symmetries": (
        "What does it take as given?",
        "How much the answer changes when the system is scaled, permuted or rotated, and the answer is changed back. "
        "An empty panel: not at all. A defect under permutation: the model knows the order of the unknowns; under "
        "scaling: it knows the magnitude of its training.",
    ),
    "termination": (
        "Does it end when there are few eigenvalues?",
        "CG is exact after as many iterations as there are different eigenvalues, two and three here.",
    ),
    "additivity": (
        "Do its coefficients depend on b?",
        "x_t(b + c) - x_t(b) - x_t(c): zero for methods with fixed coefficients, such as Richardson's and Chebyshev's.",
    ),
    "elsewhere": (
        "What does it do on other systems?",
        "The share of systems whose squared error ends above 1, which is that of the answer 0.",
    ),
    "beyond": (
        "What if it runs longer than in training?",
        "After T, 2 T, 3 T and 4 T iterations: falling on, staying, or growing again.",
    ),
    "interchange": (
        "Which part of its state carries the iteration?",
        "Two systems with one A exchange a part of the state. At 1 the next iterates are those of CG for the other "
        "right-hand side, at 0 they do not go there, below 0 they go elsewhere.",
    ),
}
