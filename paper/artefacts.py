"""Every table and figure, in the paper's order, then what goes beyond it; and writing one to its files.

An artefact owns no numbers: it needs the files of training runs, shared between artefacts, and the file of what
its ``measure`` found. Figure and tables are functions of these files alone, one figure also of a benchmark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nlaformer.console import Sheet, to_markdown
from nlaformer.errors import unknown_name
from nlaformer.io import make_folder, replace_file
from nlaformer.report.figure import save
from paper import acceleration, bundled, controls, imitation, learned_operations, measured, note_figures, teaching
from paper.results import BENCHMARKS, HOME, Results, sources

BEYOND = "beyond the paper"


@dataclass(frozen=True)
class Artefact:
    """A table, a figure, or both."""

    name: str
    title: str
    paper: str
    """What it is in the paper: "Figure 7"; or "beyond the paper"."""
    runs: tuple[str, ...] = ()
    """The training runs it shows."""
    file: str | None = None
    """The document of what ``measure`` found."""
    measure: Callable[[bool], dict[str, Any]] | None = None
    """Measures it; the flag asks for a size that takes seconds on a CPU."""
    benchmark: str | None = None
    """The document of benchmarks/results that it shows beside them."""
    figure: Callable[[Results], Figure] | None = None
    tables: Callable[[Results], list[Sheet]] | None = None

    def missing(self, results: Results) -> list[str]:
        """The runs and documents that are not there yet."""
        runs = [name for name in self.runs if not results.has_run(name)]
        documents = ((self.file, results), (self.benchmark, Results(BENCHMARKS)))
        return runs + [name for name, place in documents if name and not place.has(name)]


def draw(artefact: Artefact, results: Results, out: Path = HOME) -> list[Path]:
    """Write its figure to ``out/figures/NAME.svg`` and its tables to ``out/tables/NAME.md``."""
    written = []
    if artefact.figure is not None:
        make_folder(out / "figures")
        written.append(save(artefact.figure(results), out / "figures" / f"{artefact.name}.svg"))
    if artefact.tables is not None:
        make_folder(out / "tables")
        path = out / "tables" / f"{artefact.name}.md"
        replace_file(path, _page(artefact, results).encode())
        written.append(path)
    return written


def _page(artefact: Artefact, results: Results) -> str:
    """The tables of an artefact and where their numbers come from."""
    documents = [results.run(name).document for name in artefact.runs]
    documents += [results.document(artefact.file)] if artefact.file else []
    parts = [f"# {artefact.title}", f"{artefact.paper}. Written by `python -m paper draw {artefact.name}`."]
    if artefact.figure is not None:
        parts.append(f"![{artefact.title}](../figures/{artefact.name}.svg)")
    parts += [to_markdown(sheet) for sheet in artefact.tables(results)] if artefact.tables else []
    parts.append("Numbers from " + "; ".join(sources(documents)) + ".")
    return "\n\n".join(parts) + "\n"


def _names(*groups: Mapping[Any, Iterable[str]]) -> tuple[str, ...]:
    """The runs of groups by kind, each once."""
    return tuple(dict.fromkeys(name for group in groups for names in group.values() for name in names))


def _sweep(name: str, title: str, paper: str, symbol: str, sweep: acceleration.Sweep) -> Artefact:
    figure = partial(acceleration.sweep_figure, sweep=sweep, symbol=symbol)
    table = partial(acceleration.sweep_table, sweep=sweep, symbol=symbol, title=title)
    return Artefact(name, title, paper, tuple(sweep.values()), figure=figure, tables=table)


def _grid(name: str, title: str, paper: str, symbol: str, grid: acceleration.Grid, short: str) -> Artefact:
    figure = partial(acceleration.grid_figure, grid=grid, symbol=symbol, title=short)
    table = partial(acceleration.grid_table, grid=grid, symbol=symbol, title=short)
    return Artefact(name, title, paper, tuple(grid.values()), figure=figure, tables=table)


ARTEFACTS: tuple[Artefact, ...] = (
    Artefact("fig-transformer", "The components of a transformer layer", "Figure 1",
             figure=measured.transformer_figure),
    Artefact("table-operations", "What the operations cost as transformers", "Table 1",
             file=measured.OPERATIONS, measure=measured.measure_operations, tables=measured.operations_tables),
    Artefact("theorem-cg", "Conjugate gradients as a transformer", "Theorem 3.1",
             file=measured.CG, measure=measured.measure_cg, tables=measured.cg_table),
    Artefact("fig-structure", "The pre, loop and post blocks", "Figure 2", figure=measured.structure_figure),
    Artefact("fig-probe", "The probe mechanism", "Figure 3", figure=measured.probe_figure),
    Artefact("table-systems", "The systems: what the log-normal diagonal does to their condition",
             "Sections 4.1 and 4.2",
             file=measured.SYSTEMS, measure=measured.measure_systems, tables=measured.systems_table),
    Artefact("table-first-setting", "Discrepancy before and after training, joint and result supervision", "Table 2",
             runs=(*_names(imitation.FIRST_SETTING), imitation.SECOND_SETTING["step + solution"][0]),
             file=imitation.UNTRAINED, measure=imitation.measure_untrained, figure=imitation.discrepancy_figure,
             tables=partial(imitation.discrepancy_table, setting=imitation.FIRST_SETTING)),
    Artefact("fig-learning-rate", "The learning rate during training", "Figure 4a",
             runs=(*imitation.RATES.values(), *imitation.ANNEALED.values()), figure=imitation.learning_rate_figure),
    _sweep("fig-eta", "Joint supervision, by the weight eta", "Figure 4b", "eta", acceleration.ETA),
    Artefact("fig-supervision", "Squared relative error per iteration, result and joint supervision against CG",
             "Figure 5a",
             runs=_names(imitation.KINDS), figure=imitation.error_figure, tables=imitation.imitation_table),
    Artefact("fig-intermediate", "Error of the intermediate variables per iteration", "Figure 5b",
             runs=_names(imitation.KINDS), figure=imitation.intermediate_figure),
    Artefact("table-second-setting", "Discrepancy before and after training, step and solution supervision", "Table 3",
             runs=_names(imitation.SECOND_SETTING), file=imitation.UNTRAINED, measure=imitation.measure_untrained,
             tables=partial(imitation.discrepancy_table, setting=imitation.SECOND_SETTING)),
    _sweep("fig-lambda", "Step and solution supervision, by the weight lambda", "Figure 6", "lambda",
           acceleration.LAMBDA),
    Artefact("fig-sigma", "NLAFormer against CG and PCG at sigma 1, 1.2 and 1.4", "Figure 7",
             runs=_names(acceleration.SIGMA), figure=acceleration.sigma_figure, tables=acceleration.sigma_table),
    _grid("fig-dimension", "Embedding dimension 64, 128 and 256, both teachers, all sigmas",
          "Figures 8 and 9, first rows", "d", acceleration.DIMENSION, "Embedding dimension"),
    _grid("fig-window", "Learning window 10, 15 and 20, both teachers, all sigmas",
          "Figures 8 and 9, second rows", "K", acceleration.WINDOW, "Learning window"),
    Artefact("fig-architectures", "NLAFormer, a looped transformer and a deep one", BEYOND,
             runs=_names(acceleration.ARCHITECTURES), figure=acceleration.architectures_figure,
             tables=acceleration.architectures_table),
    Artefact("fig-loops", "Trained for 20 iterations, looped 40 times", BEYOND,
             runs=_names(acceleration.LOOPS), figure=acceleration.loops_figure, tables=acceleration.loops_table),
    Artefact("fig-lead", "How far ahead of its teacher a model gets", BEYOND,
             runs=(*acceleration.LEAD.values(), *acceleration.LAMBDA.values()),
             figure=acceleration.lead_figure, tables=acceleration.lead_table),
    Artefact("table-runs", "Every kind of run, the paper's loss and ours, up to three seeds", BEYOND,
             runs=_names(acceleration.KINDS_OF_RUNS), tables=acceleration.runs_table),
    Artefact("table-bundled", "The bundled models", BEYOND, runs=bundled.RUNS, file=bundled.FILE,
             measure=bundled.measure, figure=bundled.figure, tables=bundled.tables),
    Artefact("controls", "Whose quantities a trained state holds", BEYOND, file=controls.FILE,
             measure=controls.measure, figure=controls.figure, tables=controls.tables),
    Artefact("fig-heads", "The error of a product by attention, over c", BEYOND, file=note_figures.HEADS,
             measure=note_figures.measure_heads, figure=note_figures.heads_figure),
    Artefact("fig-teacher", "What the teacher contributes, on fresh seeds", BEYOND, runs=teaching.RUNS,
             file=teaching.FILE, measure=teaching.measure, figure=teaching.figure, tables=teaching.table),
    Artefact("fig-floor", "Learned solvers with and without a floor", BEYOND, file=bundled.FILE,
             measure=bundled.measure, benchmark=note_figures.LEARNED, figure=note_figures.floor_figure),
    Artefact("learned-operations", "Operations learned from random weights, and their constructions", BEYOND,
             file=learned_operations.FILE, measure=learned_operations.measure, figure=learned_operations.figure,
             tables=learned_operations.tables),
)  # fmt: skip


def artefact(name: str) -> Artefact:
    """An artefact by its name."""
    known = {entry.name: entry for entry in ARTEFACTS}
    if name not in known:
        raise unknown_name("table or figure", name, known)
    return known[name]
