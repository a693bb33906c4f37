"""A compiled algorithm, the artefact: its weights and its runs.

A run scales A and b by powers of two (``config.py``), writes them into the prompt, passes it through the pre block once
and through the loop block again and again, and reads every state after each pass (``states.py``). The iteration is
computed by the forward pass of ``transformer.py`` alone. Residual norms and the checks of the program's promises and
steps are evaluated beside the run.
"""

from __future__ import annotations

import copy
import math
import os
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from nlaformer import io
from nlaformer.arrays import DTYPES, ArrayT, full_precision, give, threads_for, usable_device
from nlaformer.compiler import states
from nlaformer.compiler.config import AlgorithmConfig, size_exponent
from nlaformer.compiler.machine.rows import BLOCKS
from nlaformer.compiler.states import per_system
from nlaformer.errors import FileError
from nlaformer.express.construction import Cost
from nlaformer.program.data import ANSWER
from nlaformer.program.inputs import padded
from nlaformer.program.ir import AXES
from nlaformer.program.judge import RULES
from nlaformer.program.language import Program
from nlaformer.program.run import Run, array_library, check_iterations, flatten, recorded_run, take_inputs
from nlaformer.prompt import Layout, scale
from nlaformer.transformer import NLAFormer

Changes: TypeAlias = Mapping[str, Callable[[Tensor], Tensor]]
_TITLES = {"pre": "pre block (start)", "loop": "loop block (step)", "post": "post block (finish)"}


@dataclass(frozen=True)
class BlockCosts:
    """What each of the three blocks costs."""

    pre: Cost
    loop: Cost
    post: Cost


class Algorithm:
    """A program as a looped transformer. Made by ``nf.compile`` and ``nf.algorithm``; ``print`` shows the schedule.

    Attributes
    ----------
    model : NLAFormer, the transformer
    layout : the named rows of its prompt
    cost : ``cost.pre``, ``cost.loop``, ``cost.post``, a ``Cost`` each; ``cost.loop.layers`` is layers for one iteration
    verification : the error against the program itself on random and hard systems
    """

    def __init__(self, config: AlgorithmConfig, model: NLAFormer, program: Program | None = None):
        self.config, self.model = config, model
        self.program = program  # the user's own, which no file holds
        self.layout = Layout(tuple((name, height) for name, height in config.registers), tokens=config.n + 1)
        # Called before a run with the exponents of the powers of two that its values are scaled by, for each system.
        self.observers: list[Callable[[dict[str, Tensor]], None]] = []

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def n(self) -> int:
        return self.config.n

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.config.dtype]

    @property
    def verification(self) -> dict[str, Any]:
        return self.config.verification

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self.model.buffers()), torch.device("cpu"))

    @property
    def cost(self) -> BlockCosts:
        rows, tokens = self.layout.rows, self.layout.tokens
        blocks = (self.model.pre, self.model.loop, self.model.post)
        return BlockCosts(*(Cost.of(NLAFormer(list(block)), rows, tokens) for block in blocks))  # type: ignore[arg-type]

    def dense(self) -> dict[str, list[dict[str, Any]]]:
        """The plain tensors of eq. (1): for each block, its layers with ``heads`` (W_Q, W_K, W_V), W_1, b_1, W_2, b_2.

        A layer without an FFN has no W_1.

        >>> import nlaformer as nf
        >>> weights = nf.algorithm("richardson", n=3, verify=False).dense()
        >>> rows = weights["loop"][0]["heads"][0]["W_V"].shape[0]
        >>> weights["loop"][0]["W_1"].shape[1] == rows
        True
        """
        return {block: [layer.dense() for layer in getattr(self.model, block)] for block in BLOCKS}

    @property
    def loop_heads(self) -> int:
        """The heads of all layers of an iteration."""
        return sum(layer.heads.count for layer in self.model.loop if layer.heads is not None)  # type: ignore[union-attr, misc]

    def to(self, device: torch.device | str) -> Algorithm:
        """The same algorithm on another device; this one stays where it is."""
        return type(self)(self.config, copy.deepcopy(self.model).to(usable_device(device)), self.program)

    def __repr__(self) -> str:
        layers = self.cost.loop.layers
        return f"<algorithm {self.name!r}, n={self.n}: {layers} layer{'' if layers == 1 else 's'} an iteration>"

    def __str__(self) -> str:
        return self.schedule()

    def _repr_html_(self) -> str:
        from nlaformer.report.html import folded, panel, rows, table

        config, cost = self.config, self.cost
        told = {name: f"{len(getattr(self.model, block))} layers" for block, name in _TITLES.items()}
        told |= {"largest layer": f"{cost.loop.heads} heads, FFN width {cost.loop.ffn_width} (loop block)"}
        told |= {"P": f"{self.layout.rows} rows x {self.layout.tokens} tokens", "states": ", ".join(config.state)}
        told |= {f"note {k}": warning for k, warning in enumerate(config.warnings, start=1)}
        lines = [(f"{block} {k}", "; ".join(assignments))
                 for block in BLOCKS for k, assignments in enumerate(config.schedule[block])]  # fmt: skip
        schedule = folded("what each layer computes", table(("layer", "computes"), lines, words=True))
        return panel(f"Algorithm {self.name}, n = {self.n}, {config.dtype}", rows(told), schedule)

    def schedule(self, width: int = 118) -> str:
        """What each layer computes, with its heads and its FFN width, in lines of up to ``width`` characters."""
        config, loop = self.config, len(self.model.loop)
        lines = [
            f"{config.name}, n = {config.n}, {config.dtype}: {self.layout.rows} rows x {self.layout.tokens} tokens, "
            f"{loop} layer{'' if loop == 1 else 's'} an iteration",
            "scaled by powers of two: " + (", ".join(config.scaled) or f"nothing (inputs within {config.bound:g})"),
        ]
        for block, title in _TITLES.items():
            layers: Any = getattr(self.model, block)
            lines.append(f"{title}: {len(layers)} layer" + ("" if len(layers) == 1 else "s"))
            for k, (layer, assignments) in enumerate(zip(layers, config.schedule[block], strict=True), start=1):
                heads = 0 if layer.heads is None else layer.heads.count
                hidden = 0 if layer.ffn is None else layer.ffn.width
                first = f"  {k:2}  {heads:3} head{' ' if heads == 1 else 's'}  FFN {hidden:5}  "
                text, further = "; ".join(assignments), " " * len(first)
                lines += textwrap.wrap(text, width, initial_indent=first, subsequent_indent=further) or [first.rstrip()]
        remarks = [f"note: {warning}" for warning in config.warnings]
        systems = self.verification.get("systems", {})
        remarks += [_verified(name, found, RULES[self.dtype].bars) for name, found in systems.items()]
        lines += [line for remark in remarks for line in textwrap.wrap(remark, width, subsequent_indent="  ")]
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write config.json and model.safetensors into a folder; ``nf.load`` reads it back."""
        return io.save(path, "algorithm", self.model, self.config.data())

    @full_precision()
    def run(
        self,
        A: ArrayT | None = None,
        b: ArrayT | None = None,
        x0: ArrayT | None = None,
        iterations: int = 30,
        **further: ArrayT | float,
    ) -> Run[ArrayT]:
        """Start, ``iterations`` steps, finish: every iterate, every state, the residuals and how it ended.

        Parameters
        ----------
        A, b, x0 : arrays (..., n, n), (..., n), (..., n); NumPy in, NumPy out; torch in, torch out. x0 is 0 by default
        iterations : passes of the loop block
        further : what else the program declares, by name

        Returns
        -------
        Run
        """
        library, inputs = self._take(A=A, b=b, x0=x0, **further)
        batch, flat = flatten(inputs, self.config.kinds)
        places = (*self.config.state.values(), self.config.answer)
        count = check_iterations(iterations, [(self.n,) * AXES[place["kind"]] for place in places], flat)
        exponents = self.config.exponents(flat)
        P = self._prompt(flat, exponents)
        powers = {name: self.config.exponent_of(name, exponents) for name in (*self.config.state, ANSWER)}
        for observer in self.observers:
            observer(powers)
        tokens = self.layout.tokens
        widest = max((layer.width(tokens) for layer in self.model.loop), default=1)  # type: ignore[operator]
        with torch.no_grad(), threads_for(len(P) * tokens * widest):
            pieces = [self._iterate(part, count) for (part,) in self.model.pieces(*P.shape[-2:], P)]
            raw = {name: torch.cat([part[name] for part in pieces]) for name in pieces[0]}
        values = {name: scale(value, per_system(powers[name], value)) for name, value in raw.items()}
        graph, own = self.config.program, self.program
        return recorded_run(values, flat, graph, self.name, batch, library, of_weights=True, program=own)

    @full_precision()
    def prompt(
        self, A: ArrayT | None = None, b: ArrayT | None = None, x0: ArrayT | None = None, **further: ArrayT | float
    ) -> ArrayT:
        """The token matrix P, (..., rows, tokens), inputs scaled; NumPy for NumPy, torch for torch."""
        library, inputs = self._take(A=A, b=b, x0=x0, **further)
        batch, flat = flatten(inputs, self.config.kinds)
        P = self._prompt(flat, self.config.exponents(flat))
        return give(P.reshape(*batch, *P.shape[1:]), library)

    # --- inside ---

    def taken(self, **given: Any) -> dict[str, Any]:
        """What is given to a run, without what is not, as NumPy arrays with one leading dimension."""
        _, flat = flatten(self._take(**given)[1], self.config.kinds)
        return {name: value.cpu().numpy() for name, value in flat.items() if given.get(name) is not None}

    def _iterate(self, P: Tensor, iterations: int) -> dict[str, Tensor]:
        """Every state and the answer after each pass, (systems, T + 1, ...), still scaled."""
        records: list[dict[str, Tensor]] = []
        Q = P  # after the pre or loop block; P: after the post block. A block without layers yields no state.
        for state in self.model.states(P, iterations, post_each_pass=True):
            while len(records) < state.iteration + (state.block == "loop"):
                records.append(self._read(Q, P))
            P = state.P
            Q = Q if state.block == "post" else P
        while len(records) <= iterations:
            records.append(self._read(Q, P))
        return {name: torch.stack([record[name] for record in records], 1) for name in records[0]}

    def _read(self, Q: Tensor, P: Tensor) -> dict[str, Tensor]:
        """The states, from the token matrix after a pass, and the answer, from that after the post block."""
        values = {name: self._value(Q, place) for name, place in self.config.state.items()}
        return values | {ANSWER: self._value(P, self.config.answer)}

    def _value(self, P: Tensor, place: dict[str, Any]) -> Tensor:
        return states.read(self.layout, P, place)

    def with_states(self, P: Tensor, powers: Mapping[str, Tensor], changes: Changes) -> Tensor:
        """P (systems, rows, tokens) after a pass with some states changed: functions of the values that stand there.

        ``powers`` are those that ``observers`` are told, so that values are in the units of what the run was given.
        """
        values = {}
        for name, change in changes.items():
            held = self._value(P, self.config.state[name])
            power = per_system(powers[name], held)
            back = scale(held, power)
            value = change(back)
            values[name] = torch.where(value == back, held, scale(value, -power))
        return states.replaced(self.layout, P, self.config.state, values)

    def _prompt(self, inputs: dict[str, Tensor], exponents: dict[str, Tensor]) -> Tensor:
        count = len(next(iter(inputs.values())))
        P = self.layout.empty((count,), self.dtype, self.device)
        self.layout.write(P, "one", torch.ones(1, self.n, dtype=self.dtype, device=self.device))
        for name, value in inputs.items():
            if name in self.config.scales:
                normal, log = self.config.scales[name]
                e = size_exponent(value, AXES[self.config.kinds[name]])
                self._write(P, name, normal, scale(value, -per_system(e, value)))
                difference = math.log(2.0) * (e - self.config.exponent_of(name, exponents)).to(self.dtype)
                self.layout.write(P, log, difference[:, None, None].expand(-1, 1, self.n))
            if name in self.layout.names:
                self._write(P, name, name, self._scaled(name, value, exponents))
        return P

    def _write(self, P: Tensor, name: str, register: str, value: Tensor) -> None:
        """An input into its rows. Token j holds row j of A: the paper's [a_1 ... a_n] for A = [a_1 ... a_n]^T."""
        kind = self.config.kinds[name]
        if kind == "scalar":
            value = value[:, None].expand(-1, self.n)
        self.layout.write(P, register, value.mT if kind == "matrix" else value[:, None, :])

    def _scaled(self, name: str, value: Tensor, exponents: dict[str, Tensor]) -> Tensor:
        return scale(value, -per_system(self.config.exponent_of(name, exponents), value))

    def _take(self, **given: Any) -> tuple[str, dict[str, Tensor]]:
        """The caller's array library, and the inputs in one batch shape."""
        config = self.config
        given = padded(self.name, given, config.kinds, self.n, config.program.rectangular)
        inputs = take_inputs(self.name, config.kinds, given, self.n, self.dtype, self.device)
        return array_library(*given.values()), {name: value.detach() for name, value in inputs.items()}


def from_config(config: dict[str, Any], model: NLAFormer) -> Algorithm:
    """The algorithm that ``save`` wrote."""
    if config.get("form") == "paper":
        raise FileError("it is CG in the paper's form; in a checkout of the repository, paper.paper_form.load reads it")
    try:
        algorithm = Algorithm(AlgorithmConfig.read(config), model)
        _try(algorithm)
    except FileError:
        raise
    except Exception as error:  # whatever a part that does not fit the others leads to
        raise FileError(f"this is no compiled algorithm: {type(error).__name__}: {error}") from error
    return algorithm


def _try(algorithm: Algorithm) -> None:
    """Run and print what a file holds, on zeros, beside its program: what does not fit together is found here."""
    program = algorithm.config.program
    given = {name: torch.zeros(1, *node.shape, dtype=torch.float64) for name, node in program.inputs.items()}
    with np.errstate(all="ignore"):
        record = algorithm.run(**given, iterations=1).record
        _ = record.residuals, record.first_broken, str(algorithm), algorithm._repr_html_()
        own = record.values if program.parts else {k: v[:, None] for k, v in [*program.iterate(given, 1)][1].items()}
    for name, value in record.values.items():
        if own[name].shape[2:] != value.shape[2:]:
            raise ValueError(f"{name} of the shape {tuple(value.shape[2:])}")


def _verified(name: str, found: Mapping[str, Any], allowed: float) -> str:
    """A sentence about the verification on the systems of one name."""
    if "first" not in found:
        return f"not compared on {name}: the program itself is not finite there, or breaks a promise"
    values = f"the answer deviates by {found['first']:.0e} after one step, {found['last']:.0e} at the end, "
    values += f"{found['largest']:.0e} at most"
    values += f"; every value within {found['bars']:.1e} bars" if "bars" in found else ""
    if "lost" in found:
        values += f"; not all of it from step {found['lost']} on, where the program is not finite or breaks a promise"
    return f"{'not verified' if found.get('bars', 0.0) > allowed else 'verified'} on {name}: {values}"
