"""HTML for notebooks and pages: every text is escaped where it enters, so no name or title can become markup.

Only ``Html`` is markup; a plain string among the children of a ``tag`` is text. Colours come from the page around
(``currentColor``, half-transparent greys), so that a panel is readable on light and on dark ground. Nothing is loaded
from anywhere.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PANEL = "border:1px solid rgba(128,128,128,.45);border-radius:6px;padding:.5em .9em;margin:.3em 0;max-width:60em;"
_PANEL += "overflow-x:auto"
_PLAIN = "background:none;color:inherit"  # where a page has colours of its own for tables
_CELL = f"padding:.1em .9em .1em 0;vertical-align:top;text-align:left;{_PLAIN}"
_NUMBER = f"padding:.1em .9em .1em 0;vertical-align:top;text-align:right;white-space:nowrap;{_PLAIN}"
_TABLE = f"border-collapse:collapse;border:none;margin:.2em 0;font-size:.92em;{_PLAIN}"
_WIDTH, _HEIGHT = 220, 44  # of a small curve
_LEAST = 1e-300


class Html(str):
    """Markup, which is not escaped again."""


def tag(name: str, *children: str, **attributes: object) -> Html:
    """An element with its children; plain strings and the values of attributes are escaped.

    >>> tag("b", "a < b", title='"')
    '<b title="&quot;">a &lt; b</b>'
    >>> tag("p", tag("i", "x"), "<script>")
    '<p><i>x</i>&lt;script&gt;</p>'
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(v))}"' for key, v in attributes.items())
    inside = "".join(child if isinstance(child, Html) else html.escape(child) for child in children)
    return Html(f"<{name}{given}>{inside}</{name}>")


def panel(title: str, *parts: str) -> Html:
    """A framed panel with a title, for a notebook."""
    return tag("div", tag("div", tag("strong", title)), *parts, style=_PANEL, class_="nlaformer")


def rows(entries: Mapping[str, str]) -> Html:
    """A table of two columns: names, and what they stand for."""
    lines = (tag("tr", tag("td", name, style=_CELL + ";opacity:.7"), tag("td", value, style=_CELL))
             for name, value in entries.items())  # fmt: skip
    return tag("table", tag("tbody", *lines), style=_TABLE)


def table(headings: Sequence[str], lines: Iterable[Sequence[str]], words: bool = False) -> Html:
    """A table with headings; the first column is aligned left and the others right, with ``words`` all of them left."""
    styles = [_CELL if words or k == 0 else _NUMBER for k in range(len(headings))]
    head = (tag("th", text, style=style + ";opacity:.7") for text, style in zip(headings, styles, strict=True))
    body = (tag("tr", *(tag("td", text, style=style) for text, style in zip(line, styles, strict=True)))
            for line in lines)  # fmt: skip
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), style=_TABLE)


def folded(summary: str, *parts: str) -> Html:
    """Something longer that opens on a click."""
    return tag("details", tag("summary", summary, style="cursor:pointer"), *parts)


def spark(values: Iterable[float], label: str) -> Html:
    """A small curve on a logarithmic scale; what is not finite is left out. ``label`` says what is drawn, in words."""
    known = [(t, max(v, _LEAST)) for t, v in enumerate(values) if math.isfinite(v) and v >= 0]
    if len(known) < 2:
        return Html()
    logs = [math.log10(v) for _, v in known]
    low, high, last = min(logs), max(logs), max(known[-1][0], 1)
    height = _HEIGHT / ((high - low) or 1.0)
    points = " ".join(f"{2 + _WIDTH * t / last:.1f},{2 + (high - y) * height:.1f}"
                      for (t, _), y in zip(known, logs, strict=True))  # fmt: skip
    line = tag("polyline", points=points, fill="none", stroke="currentColor", stroke_width="1.6")
    size = {"width": _WIDTH + 4, "height": _HEIGHT + 4, "viewBox": f"0 0 {_WIDTH + 4} {_HEIGHT + 4}"}
    picture = tag("svg", tag("title", label), line, role="img", aria_label=label, **size)
    return tag("div", picture, tag("div", label, style="font-size:.8em;opacity:.7"), style="margin:.3em 0")


def page(title: str, *parts: str, style: str = "") -> str:
    """A whole document, complete in itself."""
    seen = Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width">')
    head = tag("head", seen, tag("title", title), tag("style", Html(style)))
    return "<!doctype html>\n" + tag("html", head, tag("body", tag("h1", title), *parts), lang="en")


def script(data: Any, code: str) -> Html:
    """Code that finds ``data`` as the constant of that name. JSON inside a script must not contain ``</script>``."""
    written = json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace("\u2028", " ").replace("\u2029", " ")
    return Html(f"<script>\n'use strict';\nconst data = {written};\n{code}\n</script>")
