"""The figures of ``train_step.py`` as a section of benchmarks/README.md, printed or put in its place there.

python -m benchmarks.train_step_table benchmarks/results/train_step.json [--into benchmarks/README.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import read
from benchmarks.sections import deliver

HEADING = "## One training step on a GPU"
COMPILED = "torch.compile + CUDA graph"
PRECISIONS = ("float32", "bf16x3", "tf32", "bf16")
READING = (
    "*ms per step*: median of replays of the captured step (eager: of steps on systems drawn before), by CUDA events. "
    "*With data*: wall clock over steps that also draw their systems, for the whole stack."
)


def section(found: Mapping[str, Any]) -> str:
    """Heading, what was run where, times, accuracy; a part of the benchmark that did not run is left out."""
    paragraphs = [HEADING, _introduction(found)]
    if rows := _times(found):
        paragraphs += ["\n".join(rows), READING]
    if rows := _accuracy(found):
        paragraphs += ["\n".join(rows), _reading_of_accuracy(found)]
    return "\n\n".join(paragraphs) + "\n"


def _introduction(found: Mapping[str, Any]) -> str:
    where, machine = found["provenance"], found.get("machine", {})
    versions = [f"{name} {machine[name]}" for name in ("torch", "triton", "cuda", "python") if name in machine]
    return (
        "The paper's model (n=20, T=20, d=256, 8 heads, FFN width 1024, batch 64): forward over all iterates, loss, "
        "backward, clipping, Adam. "
        f"{machine.get('device', 'GPU')}, {', '.join(versions)}; commit {where['commit'] or 'unknown'}; "
        f"{where['date']}. Made by `python -m benchmarks.train_step --json benchmarks/results/train_step.json`."
    )


def _times(found: Mapping[str, Any]) -> list[str]:
    """The eager engine, the same compiled, then the fused one by precision and number of models."""
    times, eager = found.get("time", {}), found.get("eager", {}).get("ms")
    rows = ["| engine | precision | models | ms per step | ms per model | with data | memory |"]
    rows += ["|---|---|---:|---:|---:|---:|---:|"]
    if eager:
        rows.append(f"| eager | float32 | 1 | {eager:.1f} | {eager:.1f} | not measured | not measured |")
    for name, engine in (("compiled", COMPILED), ("autotuned", f"{COMPILED}, products autotuned")):
        for precision in PRECISIONS:
            row = found.get(name, {}).get(precision, {})
            if "ms" in row:
                rows.append(
                    f"| {engine} | {precision} | 1 | {row['ms']:.2f} | {row['ms']:.2f} | not measured | not measured |"
                )
            elif "error" in row:
                rows.append(f"| {engine} | {precision} | 1 | {row['error'].replace('|', ' ')} | | | |")
    cases = [(*case.split(" E="), row) for case, row in times.items() if isinstance(row, Mapping)]
    for precision, models, row in sorted(cases, key=lambda case: (PRECISIONS.index(case[0]), int(case[1]))):
        rows.append(
            f"| fused | {precision} | {models} | {row['ms_per_step']:.2f} | {row['ms_per_model']:.2f} "
            f"| {row['ms_with_data']:.2f} | {row['memory_gb']:.1f} GB |"
        )
    return rows if len(rows) > 2 else []


def _accuracy(found: Mapping[str, Any]) -> list[str]:
    gradients, losses = found.get("gradients", {}), found.get("losses", {})
    rows = [
        "| precision | gradient, from autograd in float64 | from eager float32 "
        "| loss over 100 steps, from eager float32 |"
    ]
    rows += ["|---|---:|---:|---:|"]
    for precision in PRECISIONS:
        if precision in gradients and precision in losses:
            exact, eager = (gradients[precision][f"fused from {name}"] for name in ("float64", "eager float32"))
            rows.append(f"| {precision} | {exact:.1e} | {eager:.1e} | {losses[precision]:.1e} |")
    return rows if len(rows) > 2 else []


def _reading_of_accuracy(found: Mapping[str, Any]) -> str:
    text = "Relative differences: of the whole gradient in norm, and the largest of the losses."
    draws = [row for name, row in found.get("gradients", {}).items() if "draw" in name]
    same = [row["fused from eager float32"] for row in draws if not row["ReLU units that switch"]]
    if same:
        text += (
            f" At random weights with a batch of 4, float32: {min(same):.1e} to {max(same):.1e} from eager float32 in "
            f"the {len(same)} of {len(draws)} draws in which eager float32 and float64 have the same ReLU units on"
        )
        others = [row["fused from eager float32"] for row in draws if row["ReLU units that switch"]]
        text += f", {max(others):.1e} in the others: a gradient jumps where a unit switches." if others else "."
    if note := found.get("notes", {}).get("gradients"):
        text += f" ({note[0].upper()}{note[1:]}.)"
    members = [row["loss"] for row in found.get("stack", {}).values() if isinstance(row, Mapping)]
    if members:
        text += f" Members of a stack against the same models trained alone, loss after 20 steps: {max(members):.1e}."
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--into", type=Path, help="the document whose section is replaced")
    chosen = parser.parse_args(arguments)
    deliver(section(read(chosen.figures)), HEADING, chosen.into)


if __name__ == "__main__":
    main()
