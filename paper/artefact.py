"""What every table and figure of the study is: the runs it needs, the numbers it keeps, how it is drawn, what it says.

An artefact owns no numbers. They are JSON in ``results/``: of training runs (``results/runs``, shared between
artefacts, written by ``running.py``), and files of its own that ``measure`` writes. ``draw``, ``sheets`` and
``verdicts`` are functions of these files alone, so that a fresh clone draws every figure and reaches every verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nlaformer.console import Sheet
from paper.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEYOND = "beyond the paper"
Judgement = Literal["holds", "holds more strongly", "differs", "not reproducible as stated", "not yet run"]


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper beside what we found."""

    claim: str
    """The paper's claim, in a sentence."""
    where: str
    """Where the paper makes it: "section 4.1, Table 2"; "beyond the paper" for what it does not say."""
    found: str
    """Our figures, in a sentence; empty where there are none yet."""
    judgement: Judgement

    @property
    def ours(self) -> bool:
        """Whether the claim is ours, not the paper's."""
        return BEYOND in self.where


@dataclass(frozen=True)
class Artefact:
    """A table, a figure, or both."""

    name: str
    """As on the command line, and of the files in docs/figures: fig-sigma."""
    title: str
    paper: str
    """What it is in the paper: "Figure 7"; or "beyond the paper"."""
    runs: tuple[str, ...] = ()
    """Names of training runs (paper.plan)."""
    files: tuple[str, ...] = ()
    """Names of its own files in results/, which ``measure`` writes: "controls.json"."""
    measure: Callable[[Results, bool], None] | None = None
    """Makes these files with ``results.write``; the flag asks for a size a CPU measures in seconds."""
    draw: Callable[[Results], Figure | None] | None = None
    """The figure; None where its numbers are not there yet."""
    sheets: Callable[[Results], list[Sheet]] | None = None
    """Tables for people; none where their numbers are not there yet."""
    verdicts: Callable[[Results], list[Verdict]] | None = None

    def missing(self, results: Results) -> list[str]:
        """The runs and files that are not there yet; a run counts in full, or at the length of the others."""
        found = results.together(self.runs)
        return [name for name in self.runs if name not in found and results.run(name) is None] + [
            name for name in self.files if results.file(name) is None
        ]

    def still_missing(self, results: Results) -> str:
        """The same in words; empty where nothing is missing."""
        absent = self.missing(results)
        runs = sum(name in self.runs for name in absent)
        parts = [f"{runs} of {len(self.runs)} runs still to be made"] if runs else []
        parts += [f"{name} still to be measured" for name in absent if name in self.files]
        return ", ".join(parts)

    def drawable(self, results: Results) -> bool:
        """Whether there is a figure to be drawn: from some of its runs, or from its files where it has no runs."""
        if self.draw is None:
            return False
        return bool(results.together(self.runs)) if self.runs else not self.missing(results)

    def command(self) -> str:
        """What a user types to run it."""
        return f"nlaformer reproduce {self.name}"


@dataclass(frozen=True)
class Made:
    """What became of an artefact: files, tables and verdicts, as a program reads them too."""

    name: str
    figures: list[str]
    """Its picture as PNG and as SVG, if there is one."""
    missing: list[str]
    tables: list[Sheet]
    verdicts: list[Verdict]


def not_yet(claim: str, where: str) -> Verdict:
    """A claim whose runs are still to come."""
    return Verdict(claim, where, "", "not yet run")


def picture_files(artefact: Artefact, folder: Path) -> tuple[Path, Path]:
    """Where its figure goes, as PNG and as SVG."""
    return folder / f"{artefact.name}.png", folder / f"{artefact.name}.svg"
