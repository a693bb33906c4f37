"""Operations, algorithms and models as the page takes them: plain data, with their arrays in a ``Store``.

A layer is what eq. (1) needs and no more: the factors of its heads, its FFN, the gains of its normalization. Sparse
weights are stored by rows: how many entries each row has, the column of each, its value. ``page/transformer.js`` reads
this data and computes the layer in float64.
"""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from typing import Any, cast

import numpy as np
import torch

from nlaformer.compiler.algorithm import Algorithm
from nlaformer.compiler.machine.rows import BLOCKS
from nlaformer.explorer.store import Store
from nlaformer.express.operation import Operation
from nlaformer.learn.model import Solver
from nlaformer.learn.scale import familiar
from nlaformer.prompt import Layout
from nlaformer.transformer import Layer, NLAFormer
from nlaformer.weights import Sparse, Weight


def transformer(model: NLAFormer, store: Store, kind: str = "f8") -> dict[str, Any]:
    """The three blocks of a model; ``kind`` is that of its weights in the store."""
    return {block: [_layer(cast(Layer, layer), store, kind) for layer in getattr(model, block)] for block in BLOCKS}


def _layer(layer: Layer, store: Store, kind: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if layer.heads is not None:
        weights = {name: _weight(getattr(layer.heads, name), store, kind) for name in ("W_Q", "W_K", "W_U", "W_O")}
        data["heads"] = {"count": layer.heads.count, **weights}
    if layer.ffn is not None:
        ffn = layer.ffn
        data["ffn"] = {"W_1": _weight(ffn.W_1, store, kind), "W_2": _weight(ffn.W_2, store, kind)}
        data["ffn"] |= {"b_1": store.put(ffn.b_1, kind), "b_2": store.put(ffn.b_2, kind)}
    if layer.gain_1 is not None and layer.gain_2 is not None:
        data["norm"] = {"gains": [store.put(layer.gain_1, kind), store.put(layer.gain_2, kind)]}
        data["norm"]["rows"] = None if layer.rows is None else list(layer.rows)
        data["norm"]["eps"] = torch.finfo(layer.gain_1.dtype).eps
    return data


def _weight(weight: Weight, store: Store, kind: str) -> dict[str, Any]:
    if not isinstance(weight, Sparse):
        return {"shape": list(weight.shape), "values": store.put(weight.dense(), kind)}
    order = torch.argsort(weight.index[0] * weight.shape[1] + weight.index[1])  # row by row
    rows, columns = weight.index[:, order].numpy()
    counts = np.bincount(rows, minlength=weight.shape[0])
    steps = np.diff(columns, prepend=0)  # which repeat, and so take little room
    return {
        "shape": list(weight.shape),
        "counts": store.put(counts, "i4"),
        "steps": store.put(steps, "i4"),
        "values": store.put(weight.values[order], kind),
    }


def _layout(layout: Layout) -> dict[str, Any]:
    return {
        "registers": [list(register) for register in layout.registers],
        "tokens": layout.tokens,
        "sink": layout.sink,
    }


def algorithm(compiled: Algorithm, store: Store, lines: dict[str, list[list[int]]]) -> dict[str, Any]:
    """A compiled algorithm; ``lines`` has, for each instruction of its schedule, the lines of its program."""
    config = compiled.config
    schedule = {
        block: [
            [{"text": text, "line": line} for text, line in zip(layer, at, strict=True)]
            for layer, at in zip(config.schedule[block], lines[block], strict=True)
        ]
        for block in BLOCKS
    }
    return {
        "n": config.n,
        "inputs": config.kinds,
        "scaled": config.scaled,
        "bound": config.bound,
        "units": {name: [str(Fraction(*part)) for part in pair] for name, pair in config.units.items()},
        "state": config.state,
        "answer": config.answer,
        "scales": config.scales,
        "layout": _layout(compiled.layout),
        "schedule": schedule,
        "model": transformer(compiled.model, store),
    }


def operation(op: Operation, store: Store) -> dict[str, Any]:
    """An operation: where each entry of its operands goes, and from where each entry of its result is read."""
    construction, layout = op._construction, op.layout
    operands = []
    for operand in construction.operands:
        tokens = range(layout.tokens)[layout.data_tokens if operand.tokens is None else operand.tokens]
        operands.append(
            {
                "name": operand.name,
                "kind": operand.kind,
                "register": operand.register or operand.name,
                "token": tokens.start,
                "measure": operand.measure if op.options.normalize else "none",
            }
        )
    count = len(operands)
    zero = torch.zeros(1, dtype=torch.int32)
    units = [[zero + (j == k) for j in range(count)] for k in range(count)]
    places = torch.arange(layout.rows * layout.tokens, dtype=torch.float64).reshape(1, layout.rows, layout.tokens)
    read = construction.read(places)
    results = read if isinstance(read, tuple) else (read,)
    return {
        "n": op.n,
        "operands": operands,
        # Exponents of operands add up to the result's, some with a minus.
        "powers": [int(construction.result_exponent(*unit)) for unit in units],
        "results": [{"shape": list(r.shape[1:]), "places": r[0].reshape(-1).int().tolist()} for r in results],
        "minimum": op.options.minimum if op.name == "divide" else None,
        "layout": _layout(layout),
        "model": transformer(op.model, store),
    }


def solver(model: Solver, store: Store) -> dict[str, Any]:
    """A trained model: read-in, positions, blocks and probes in float32, and the scales that it knows."""
    config, known = model.config, familiar(model.config)
    return {
        "n": config.n,
        "d": config.d,
        "T": config.T,
        "read_in": _weight(model.read_in, store, "f4"),
        "positions": store.put(model.positions, "f4"),
        "probe_x": _weight(model.probe_x, store, "f4"),
        "probe_rd": _weight(model.probe_rd, store, "f4"),
        "familiar": known and asdict(known),
        "model": transformer(model.blocks, store, "f4"),
    }
