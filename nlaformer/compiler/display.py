"""How a compiled algorithm prints: its blocks, layer by layer."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nlaformer.compiler.artifact import Algorithm

_TITLES = {"pre": "pre block (start)", "loop": "loop block (step)", "post": "post block (finish)"}


def show(algorithm: Algorithm) -> str:
    """The schedule: for every layer its heads, its FFN width and its instructions; then what was verified."""
    plan = algorithm.plan
    lines = [
        f"{plan.name}, n = {plan.n}, {plan.dtype}: {algorithm.layout.rows} rows x {algorithm.layout.tokens} tokens, "
        f"{algorithm.cost.loop.layers} layers an iteration",
        "scaled by powers of two: " + (", ".join(plan.scaled) or f"nothing (inputs within {plan.bound:g})"),
    ]
    for block, title in _TITLES.items():
        layers = getattr(algorithm.model, block)
        lines.append(f"{title}: {len(layers)} layer" + ("" if len(layers) == 1 else "s"))
        for k, (layer, instructions) in enumerate(zip(layers, plan.schedule[block], strict=True), start=1):
            heads = 0 if layer.heads is None else layer.heads.count
            width = 0 if layer.ffn is None else layer.ffn.width
            first = f"  {k:2}  {heads:3} heads  FFN {width:5}  "
            lines += textwrap.wrap(
                "; ".join(instructions), 118, initial_indent=first, subsequent_indent=" " * len(first)
            )
    lines += [f"note: {warning}" for warning in plan.warnings]
    for name, found in plan.verification.get("systems", {}).items():
        lines.append(
            f"verified on {name}: deviation {found['first']:.0e} after one step, {found['last']:.0e} "
            f"after {plan.verification['iterations']}"
        )
    return "\n".join(lines)
