"""The page of a recording: P before and after every layer, the attention of every head, the registers at every step.

Drawn by plain JavaScript (recording.js) from one string of float32 numbers, seven digits each; complete in one file.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nlaformer.errors import OptionError
from nlaformer.report.html import Html, page, script, tag

_LARGEST = 15_000_000  # bytes of a page
_NAVIGATION = Html(
    '<nav><label for="layer">layer</label> <button id="back">previous</button>'
    '<input id="layer" type="range" min="0" value="0" step="1"><button id="on">next</button> <b id="name"></b> '
    '<label for="scale">colours</label> <select id="scale"><option>logarithmic</option><option>linear</option></select>'
    '<div id="reading" aria-live="polite">Point at a cell to read its value.</div></nav>'
)
_SECTIONS = (
    '<p id="computes"></p><main><section><h2>Token matrix</h2><div id="before"></div></section><section>'
    '<h2>State <span id="step"></span></h2><div id="states"></div>'
    '<h2>Attention</h2><div id="heads"></div></section></main>'
)
_LEGEND = (
    "Blue is negative, orange positive. Logarithmic colours span six powers of ten below the largest magnitude of each "
    "picture. A row of an attention map is a query, a column a key. Its first column, the sink, is coloured from 0 to "
    "1, the others from the least to the largest weight among them."
)


@dataclass(frozen=True)
class RecordedLayer:
    """One layer in one pass: P before and after (rows, tokens), weights (head, query, key); None where not kept."""

    name: str
    computes: str
    step: int
    """Steps of the program that were complete before it."""
    input: np.ndarray | None = None
    output: np.ndarray | None = None
    weights: np.ndarray | None = None


@dataclass
class _Numbers:
    """Arrays one after another in float32; an array that is there already is not stored again."""

    pieces: list[bytes] = field(default_factory=list)
    known: dict[bytes, int] = field(default_factory=dict)
    length: int = 0

    def part(self, array: np.ndarray) -> dict[str, Any]:
        with np.errstate(over="ignore"):
            raw = np.ascontiguousarray(array, dtype="<f4").tobytes()
        if raw not in self.known:
            self.known[raw] = self.length
            self.pieces.append(raw)
            self.length += len(raw) // 4
        return {"start": self.known[raw], "shape": list(np.shape(array))}


def recording_page(
    title: str,
    layers: Sequence[RecordedLayer],
    states: Mapping[str, np.ndarray],
    rows: Sequence[tuple[str, int]] = (),
) -> str:
    """The page of a run of one system.

    ``states`` are arrays (T + 1, ...) by name, ``rows`` the names and heights of the registers of P from the top.
    """
    numbers = _Numbers()
    parts = ("input", "output", "weights")
    described = [
        {"name": layer.name, "computes": layer.computes, "step": layer.step}
        | {part: numbers.part(value) for part in parts if (value := getattr(layer, part)) is not None}
        for layer in layers
    ]
    starts = np.cumsum([0, *(height for _, height in rows)]).tolist()
    data = {
        "layers": described,
        "states": [{"name": name, **numbers.part(value)} for name, value in states.items()],
        "rows": [[name, start, height] for (name, height), start in zip(rows, starts, strict=False)],
        "steps": max((len(value) - 1 for value in states.values()), default=0),
        "numbers": base64.b64encode(b"".join(numbers.pieces)).decode("ascii"),
    }
    body = (tag("p", _LEGEND), _NAVIGATION, Html(_SECTIONS), script(data, _file("recording.js")))
    whole = page(title, *body, style=_file("recording.css"))
    if len(whole) > _LARGEST:
        raise OptionError(
            f"this page would take {len(whole) / 1e6:.0f} MB; it may take {_LARGEST / 1e6:.0f}. Record fewer "
            'iterations, or keep less: nf.trace(..., keep=["*.output", "*.weights"])'
        )
    return whole


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
