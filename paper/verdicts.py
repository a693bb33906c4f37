"""The rules of protocol.md, each a function from the numbers of its hypothesis to a verdict.

Where no clause of a rule applies, the verdict is "undecided". Where two clauses apply, that against the claim decides:
a comparison may come out "better" and another one "worse".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paper import plan
from paper.hypotheses import SIGMAS, Numbers

HOLDS, IN_PART, DIFFERS, UNDECIDED = "holds", "holds in part", "differs", "undecided"
NOT_RUN, REPORTED = "not run", "reported"
_Rule = Callable[[Numbers], str]


def verdicts(numbers: Mapping[str, Numbers]) -> dict[str, str]:
    """The verdict of every claim, by keys such as "h3.1", from the numbers of the hypotheses."""
    own = {name: numbers.get(name.partition(".")[0]) for name in RULES}
    return {name: NOT_RUN if found is None else RULES[name](found) for name, found in own.items()}


def _first(*clauses: tuple[bool, str]) -> str:
    return next((verdict for applies, verdict in clauses if applies), UNDECIDED)


def _below(interval: Sequence[float], level: float) -> bool:
    return interval[1] < level


def _above(interval: Sequence[float], level: float) -> bool:
    return interval[0] > level


def _outcomes(numbers: Numbers, names: Sequence[str]) -> list[str]:
    return [numbers[f"{name}.outcome"] for name in names]


def _count_of(holding: int, all_of: int, none: str = DIFFERS) -> str:
    return HOLDS if holding == all_of else IN_PART if holding else none


def _h1(numbers: Numbers) -> str:
    horizon = min(numbers["result"], numbers["joint"])
    return _first((horizon >= numbers["cg.0.0001"], HOLDS), (horizon >= numbers["cg.0.01"], IN_PART), (True, DIFFERS))


def _better(name: str) -> _Rule:
    """The first of two is better; equal or worse is against the claim."""

    def rule(numbers: Numbers) -> str:
        outcome = numbers[f"{name}.outcome"]
        return _first((outcome == "better", HOLDS), (outcome in ("equal", "worse"), DIFFERS))

    return rule


def _within(key: str, holds_below: float, differs_above: float) -> _Rule:
    """The interval lies below one level, or above another."""
    return lambda numbers: _first(
        (_below(numbers[key], holds_below), HOLDS), (_above(numbers[key], differs_above), DIFFERS)
    )


def _h2_printed(numbers: Numbers) -> str:
    printed = zip(("joint", "result", "accelerated"), plan.PRINTED.values(), strict=True)
    return _count_of(sum(numbers[f"{name}.discrepancy"][1] <= end for name, (_, end) in printed), len(plan.PRINTED))


def _best(*names: str) -> _Rule:
    """Better than all; better than some and equal to the rest; another is better."""

    def rule(numbers: Numbers) -> str:
        found = set(_outcomes(numbers, names))
        return _first(
            ("worse" in found, DIFFERS), (found == {"better"}, HOLDS), (found == {"better", "equal"}, IN_PART)
        )

    return rule


def _h3_dominates(numbers: Numbers) -> str:
    strong, *others = _outcomes(numbers, ("0.05", "0.0001", "result"))
    return _first(
        (strong in ("equal", "worse"), DIFFERS),
        (strong == "better" and set(others) == {"better"}, HOLDS),
        (strong == "better", IN_PART),
    )


def _h4_degrades(numbers: Numbers) -> str:
    found = _outcomes(numbers, ("13", "30"))
    return _first(("better" in found, HOLDS), (set(found) <= {"equal", "worse"}, DIFFERS))


def _h5_cg(numbers: Numbers) -> str:
    found = [numbers[f"{sigma}.cg"] for sigma in SIGMAS]
    fewer = all(_below(each, 1) for each in found)
    return _first(
        (any(_above(each, 1) for each in found), DIFFERS),
        (fewer and any(each[1] <= 0.55 for each in found), HOLDS),
        (fewer, IN_PART),
    )


def _h5_pcg(numbers: Numbers) -> str:
    found = [numbers[f"{sigma}.pcg"] for sigma in SIGMAS]
    if all(_below(each, 1.5) for each in found):
        return DIFFERS
    return _count_of(sum(_above(each, 1.5) for each in found), len(found), none=UNDECIDED)


def _h5_teachers(numbers: Numbers) -> str:
    low, high = numbers["saved"]
    return _first((low >= 0.2 and high <= 0.4, HOLDS), (high < 0.2 or low > 0.4, DIFFERS))


def _h7(numbers: Numbers) -> str:
    found = _outcomes(numbers, ("256_128", "128_64"))
    return _first(("worse" in found, DIFFERS), (set(found) == {"better"}, HOLDS), ("better" in found, IN_PART))


def _h8(numbers: Numbers) -> str:
    growth = numbers["growth"]
    return _first((_below(growth, 0.5), HOLDS), (_below(growth, 1), IN_PART), (_above(growth, 1), DIFFERS))


def _h9(numbers: Numbers) -> str:
    within = sum(low >= 1 / 1.5 and high <= 1.5 for low, high in (numbers[f"{weight}"] for weight in (1, 7, 10, 13)))
    return _first((within == 4, HOLDS), (within >= 2, IN_PART), (True, DIFFERS))


def _h12(numbers: Numbers) -> str:
    """A run that fails has e_T = 1 and may still have G below 1; it does not count as trained."""
    return _count_of(numbers["trained"], numbers["runs"], none=UNDECIDED)


def _h14(numbers: Numbers) -> str:
    """One unstable run decides; that the claim holds takes both."""
    filed = [kind for kind in ("joint", "accelerated") if f"{kind}.finite" in numbers]
    stable = all(numbers[f"{kind}.finite"] and numbers[f"{kind}.spread"] <= 2 for kind in filed)
    return _first((not stable, DIFFERS), (len(filed) == 2, HOLDS), (True, NOT_RUN))


def _reported(numbers: Numbers) -> str:
    """The protocol asks for the numbers and has no rule to judge them."""
    return REPORTED


RULES: dict[str, _Rule] = {
    "h1": _h1,
    "h2.1": _better("joint_result"),
    "h2.2": _within("result.relative", 0.9, 0.9),
    "h2.3": _within("accelerated.relative", 0.9, 0.9),
    "h2.4": _h2_printed,
    "h3.1": _best("0.05", "0.0001"),
    "h3.2": _h3_dominates,
    "h4.1": _best("1", "7", "13"),
    "h4.2": _h4_degrades,
    "h5.1": _h5_cg,
    "h5.2": _h5_pcg,
    "h5.3": _h5_teachers,
    "h6": _within("15.interval", 1.5, 1.5),
    "h7": _h7,
    "h8": _h8,
    "h9": _h9,
    "h10.1": _better("solution"),
    "h10.2": _better("descent"),
    "h11": _within("lead", 1.1, 2.0),
    "h12": _h12,
    "h13": _reported,
    "h14": _h14,
    "h15": _reported,
    "h16": _reported,
}
