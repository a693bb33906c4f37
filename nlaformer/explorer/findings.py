"""What the repository has found out, for a page that is packed in a checkout: the microscope's figures, the claims.

Both are read from the files of ``paper/`` when the page is packed, so that the page says what they say. The wheel has
no such folder; its page says where to look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nlaformer.errors

_CHECKOUT = Path(nlaformer.errors.__file__).parents[1]
_CLAIMS = "paper/claims.md"
_MICROSCOPE = "paper/results/microscope"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_KEY = re.compile(r"<!--.*?-->")
_FIGURE = re.compile(r"\]\((figures/[\w-]+\.svg)\)")
_AT = (1, 5, 10)  # the iterations that a sentence names


def claims(root: Path = _CHECKOUT) -> dict[str, Any] | None:
    """Every claim with its section, what was found and the verdict; None where there is no checkout."""
    path = root / _CLAIMS
    if not path.is_file():
        return None
    rows: list[dict[str, str]] = []
    meanings: list[list[str]] = []
    section, headings = "", list[str]()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section, headings = line[3:], []
        if not line.startswith("|"):
            headings = []
            continue
        figure = _FIGURE.search(line)
        cells = [_plain(cell) for cell in line.strip().strip("|").split("|")]
        if not headings:
            headings = cells
        elif set(line) <= set("|:- "):
            continue
        elif headings == ["verdict", "meaning"]:
            meanings.append(cells)
        elif "claim" in headings and "verdict" in headings:
            rows.append(
                _claim(section, dict(zip(headings, cells, strict=True))) | {"figure": figure[1] if figure else ""}
            )
    about = f"From {_CLAIMS}; a test of the repository checks every number in it against the stored results."
    return {"rows": rows, "meanings": meanings, "about": about}


def figures(told: dict[str, Any] | None, root: Path = _CHECKOUT) -> dict[str, bytes]:
    """The drawings that the claims name, by their place below ``paper/``."""
    named = {row["figure"] for row in told["rows"]} - {""} if told else set()
    return {name: (root / "paper" / name).read_bytes() for name in sorted(named) if (root / "paper" / name).is_file()}


def _claim(section: str, cells: dict[str, str]) -> dict[str, str]:
    number = f"**{cells['']}** " if cells.get("") else ""
    found = cells.get("our number", cells.get("what was found", ""))
    return {"section": section, "claim": number + cells["claim"], "found": found, "verdict": cells["verdict"]}


def _plain(cell: str) -> str:
    """A cell without the keys of its numbers and the targets of its links."""
    return _LINK.sub(r"\1", _KEY.sub("", cell)).strip()


def microscope(models: Iterable[str], root: Path = _CHECKOUT) -> dict[str, Any]:
    """For each model what its file says, in sentences; models without a file are left out."""
    found = {}
    for model in models:
        path = root / _MICROSCOPE / f"{model}.json"
        if path.is_file():
            data = json.loads(path.read_text(encoding="utf-8"))
            command = f"nlaformer microscope {model} --sigma 1.2 --json"
            found[model] = {"file": f"{_MICROSCOPE}/{path.name}", "command": command, "sentences": _sentences(data)}
    return found


def _sentences(data: dict[str, Any]) -> list[str]:
    candidate = data["explanations"][0]["candidate"]
    named = (
        f"Its iterates are explained by {data['named']} up to t = {data['until']}."
        if data["named"]
        else f"No algorithm explains its iterates; the nearest of the candidates is {candidate}."
    )
    own, cg = data["errors"]["model"]["median"], data["errors"]["cg"]["median"]
    errors = "; ".join(f"{_short(own[t])} at t = {t} (CG {_short(cg[t])})" for t in (*_AT, data["T"]))
    as_cg = ", ".join(f"{data['cg_iterations'][t]:.1f} for x_{t}" for t in _AT if data["cg_iterations"][t])
    distance, best = data["krylov"]["model"]["distance"][4], data["krylov"]["model"]["solution"][4]
    afar = {name: table["model"]["median"][-1] for name, table in data["elsewhere"].items()}
    worst, easiest = max(afar, key=lambda name: afar[name]), min(afar, key=lambda name: afar[name])
    return [
        named,
        f"Median squared relative errors over {data['effort']['count']} systems: {errors}.",
        f"Iterations that CG takes to come as near to the solution: {as_cg}.",
        f"x_5 lies at a squared distance of {_short(distance[0])} from the Krylov space of CG's x_5; the solution "
        f"itself is {_short(best[0])} away from it.",
        f"On other families its last median error runs from {_short(afar[easiest])} ({easiest}) to "
        f"{_short(afar[worst])} ({worst}).",
    ]


def _short(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")
