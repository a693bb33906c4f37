"""What the tests of the explorer share: systems, links to a state of the page, and when a view is done."""

from __future__ import annotations

import itertools
import json
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from nlaformer import problems

SYSTEMS = 20
_LAYERS = """async ([name, n, steps]) => {
  const { model } = await explorer.openAlgorithm(name, n);
  return steps.map(([block, layer, rows, tokens, data]) => Array.from(explorer.applyLayer(
    model[block][layer], explorer.tokenMatrix(rows, tokens, Float64Array.from(data))).data));
}"""


def system(n: int, seed: int, names: tuple[str, ...] = ("A", "b", "x0")) -> dict[str, np.ndarray]:
    A, b, _ = problems.SPD(n=n).sample(1, seed=seed)
    given = {"A": A[0].numpy(), "b": b[0].numpy(), "x0": np.zeros(n)}
    return {name: given[name] for name in names}


def largest_difference(found: object, expected: object) -> float:
    """The largest difference, relative to the largest expected entry where that is above 1."""
    wanted = np.asarray(expected, dtype=float).ravel()
    return float(np.abs(np.asarray(found, dtype=float).ravel() - wanted).max() / max(1.0, np.abs(wanted).max()))


def layer_differences(page: Any, cg: Any, inputs: dict[str, np.ndarray]) -> dict[tuple[str, int, int], float]:
    """How far page and library differ, row by row, in each layer of compiled CG from the library's own P."""
    states = list(cg.model.states(torch.from_numpy(cg.prompt(**inputs)), 5))
    steps = [
        [after.block, after.layer, *before.P.shape, before.P.contiguous().ravel().tolist()]
        for before, after in itertools.pairwise(states)
    ]
    found = {}
    for data, state in zip(page.evaluate(_LAYERS, "cg", cg.n, steps), states[1:], strict=True):
        rows = zip(np.reshape(data, state.P.shape), state.P, strict=True)  # each by itself: the signs of A are 200
        found[state.block, state.iteration, state.layer] = max(itertools.starmap(largest_difference, rows))
    return found


def values(run: Any) -> dict[str, np.ndarray]:
    """Every state of a run, and its answer under the name that the page has for it."""
    return run.state | {"finish()": run.x}


def undecided(compiled: Any, inputs: dict[str, np.ndarray], draws: int = 12) -> dict[str, list[float]]:
    """How far the library's own values move where each number given moves by one unit in its last place.

    Weights amplify roundings, on some systems much. The order in which a processor adds decides on digits beyond
    this, and on another one the library has others.
    """
    rng, batch = np.random.default_rng(0), {}
    for name, value in inputs.items():
        steps = rng.integers(-1, 2, size=(draws, *value.shape)).astype(float)
        steps[0] = 0.0
        if value.ndim == 2:
            steps = np.triu(steps) + np.triu(steps, 1).mT
        batch[name] = value + steps * np.spacing(np.abs(value))
    found = values(compiled.run(**batch, iterations=5))
    return {
        name: [max(largest_difference(other, each[0, t]) for other in each[1:, t]) for t in range(6)]
        for name, each in found.items()
    }


def texts(A: np.ndarray, b: np.ndarray) -> dict[str, str]:
    """A system as a visitor types it, with all its digits."""
    return {"A": "\n".join(" ".join(map(repr, row)) for row in A.tolist()), "b": " ".join(map(repr, b.tolist()))}


def link(**views: Any) -> str:
    """The end of an address that opens the page in a state."""
    return "#" + quote(json.dumps(views))


def settled(page: Any, view: str) -> None:
    """Wait until a view has computed what it shows."""
    waiting = {"Watch": ".watch[data-ready]", "Compare": ".compare[data-round]", "Learned": ".learned[data-ready]"}
    if view in waiting:
        page.wait_for_selector(waiting[view])


def open_view(page: Any, view: str) -> None:
    """Choose a view by its button, and wait for what it shows."""
    page.get_by_role("navigation", name="Views").get_by_role("button", name=view).click()
    settled(page, view)
