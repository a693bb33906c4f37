"""The figures of ``train_step.py`` as a section of benchmarks/README.md, printed or put in its place there.

python benchmarks/train_step_table.py results/train_step.json [--into benchmarks/README.md]
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HEADING = "## One training step on a GPU"


def section(found: Mapping[str, Any]) -> str:
    """Heading, what was run where, times, accuracy; a part of the benchmark that did not run is left out."""
    paragraphs = [HEADING, _introduction(found)]
    if rows := _times(found):
        paragraphs += ["\n".join(rows), _reading(found)]
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
        f"{where['date']}. Made by `python benchmarks/train_step.py --json results/train_step.json`."
    )


def _times(found: Mapping[str, Any]) -> list[str]:
    """One row per precision and stack, the eager engine first."""
    times, eager = found.get("time", {}), found.get("eager", {}).get("ms")
    rows = ["| engine | precision | models | ms per step | ms per model | with data | memory |"]
    rows += ["|---|---|---:|---:|---:|---:|---:|"]
    if eager:
        rows.append(f"| eager | float32 | 1 | {eager:.1f} | {eager:.1f} | | |")
    for case, row in times.items():
        if isinstance(row, Mapping):
            precision, models = case.split(" E=")
            rows.append(
                f"| fused | {precision} | {models} | {row['ms_per_step']:.2f} | {row['ms_per_model']:.2f} "
                f"| {row['ms_with_data']:.2f} | {row['memory_gb']:.1f} GB |"
            )
    return rows if len(rows) > 2 else []


def _reading(found: Mapping[str, Any]) -> str:
    text = (
        "*ms per step*: median of replays of the captured step, by CUDA events. *With data*: wall clock over steps "
        "that also draw their systems, for the whole stack."
    )
    overlap = found.get("overlap", {})
    if {"True", "False"} <= set(overlap):
        same = "the same bits" if overlap["equal"] else "other numbers"
        text += (
            f" Letting a kernel start while the one before drains takes a step of one model from "
            f"{overlap['False']:.2f} to {overlap['True']:.2f} ms and gives {same}."
        )
    return text


def _accuracy(found: Mapping[str, Any]) -> list[str]:
    gradients, losses = found.get("gradients", {}), found.get("losses", {})
    rows = ["| precision | first gradient, from autograd in float32 | loss over 100 steps, from eager float32 |"]
    rows += ["|---|---:|---:|"]
    for precision in ("float32", "tf32", "bf16"):
        if precision in gradients and precision in losses:
            gap = gradients[precision]["all against torch.float32"]
            rows.append(f"| {precision} | {gap:.1e} | {losses[precision]:.1e} |")
    return rows if len(rows) > 2 else []


def _reading_of_accuracy(found: Mapping[str, Any]) -> str:
    text = "Relative differences: of the whole gradient in norm, and the largest of the losses."
    members = [row["loss"] for row in found.get("stack", {}).values() if isinstance(row, Mapping)]
    if members:
        text += f" Members of a stack against the same models trained alone, loss after 20 steps: {max(members):.1e}."
    return text


def put(text: str, into: str) -> str:
    """Replace the section in a document, or append it."""
    place = re.compile(rf"^{re.escape(HEADING)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if place.search(into):
        return place.sub(lambda match: text + ("\n" if match.end() < len(into) else ""), into)
    return f"{into.rstrip()}\n\n{text}" if into.strip() else f"# Benchmarks\n\n{text}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--into", type=Path, help="the document whose section is replaced")
    chosen = parser.parse_args(arguments)
    text = section(json.loads(chosen.figures.read_text()))
    if chosen.into:
        chosen.into.write_text(put(text, chosen.into.read_text() if chosen.into.exists() else ""))
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
