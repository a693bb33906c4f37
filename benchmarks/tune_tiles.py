"""Which tiles are fastest: every product of a layer, alone, with every sensible tile, on the GPU at hand.

    python -m benchmarks.tune_tiles [--json FILE] [--models 8 1] [--precision bf16 tf32] [--products qkv W_1 ...]

What it prints belongs into nlaformer/learn/cuda/launch.py. Tiles are compiled by as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.command import write
from nlaformer.learn.cuda.launch import Launch, Tile, tile_for
from nlaformer.learn.cuda.products import add_projected, norm_backward, project, relu_backward

B, TOKENS, D, WIDTH, SLOTS = 64, 21, 256, 1024, 4
R = B * TOKENS
SHAPES = {  # columns and inner axis
    "qkv": (3 * D, D), "W_O": (D, D), "W_1": (WIDTH, D), "W_2": (D, WIDTH),
    "d_hidden": (WIDTH, D), "d_U": (D, WIDTH), "d_mixed": (D, D), "d_P": (D, 3 * D),
}  # fmt: skip


class Case(NamedTuple):
    product: str
    models: int
    precision: str
    tile: Tile


def candidates(product: str, precision: str) -> Iterator[Tile]:
    columns, inner = SHAPES[product]
    size = 2 if precision == "bf16" else 4
    for rows in (64, 128):
        for wide in (32, 64, 128, 256):
            for depth in (64, 128, 256):
                for stages in (2, 3, 4, 5):
                    for warps in (4, 8):
                        k = depth * 2 // size
                        shared = (rows + wide) * k * size * stages
                        registers = rows * wide // (32 * warps)
                        fits = columns % wide == 0 and inner % k == 0 and stages <= inner // k + 1
                        if fits and 48_000 <= shared <= 200_000 and 16 <= registers <= 128:
                            yield Tile(rows, wide, k, warps, stages)


def runner(case: Case) -> Callable[[int], None]:
    """The product as the engine calls it, on one of several sets of buffers."""
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    launch = Launch(1e-7, True, "tf32" if case.precision == "tf32" else "ieee", {case.product: case.tile})
    (columns, inner), E = SHAPES[case.product], case.models
    X = torch.randn(E, SLOTS, R, inner, device="cuda", dtype=dtype)
    out = torch.empty(E, SLOTS, R, columns, device="cuda", dtype=dtype)
    W = torch.randn(E, columns, inner, device="cuda", dtype=dtype) / inner**0.5
    if case.product.startswith("d_") and dtype == torch.bfloat16:
        W = W.mT.contiguous().mT  # the engine reads the forward weight transposed
    bias, squares = torch.randn(E, columns, device="cuda"), torch.rand(E, 4, R, device="cuda") + D
    stream = torch.randn(2, E, R, D, device="cuda")
    parts = torch.empty(E, launch.row_parts(case.product, X[:, 0], columns), R, device="cuda")
    sums = torch.empty(E, launch.column_parts(case.product, X[:, 0], columns), columns, device="cuda")
    dots, hidden = (
        torch.randn(E, 8, R, device="cuda"),
        torch.randn(E, SLOTS, R, columns, device="cuda").relu().to(dtype),
    )
    streams = (stream[0], stream[1]) if dtype == torch.bfloat16 else (hidden[:, 0].float(), None)

    def run(slot: int) -> None:
        x, y = X[:, slot], out[:, slot]
        after = streams[1] if streams[1] is not None else y
        if case.product in ("qkv", "d_mixed"):
            project(launch, case.product, x, W, y, squares if case.product == "qkv" else None)
        elif case.product == "W_1":
            project(launch, case.product, x, W, y, squares, bias, relu=True)
        elif case.product in ("W_O", "W_2"):
            add_projected(launch, case.product, x, W, bias, streams[0], after, y, parts)
        elif case.product == "d_hidden":
            relu_backward(launch, case.product, x, W, hidden[:, slot], bias, squares, y, parts, sums)
        else:
            norm_backward(launch, case.product, x, W, hidden[:, slot], squares, dots, streams[0], after, y, sums)

    return run


def compile_one(case: Case) -> None:
    try:
        runner(case)(0)
        torch.cuda.synchronize()
    except Exception:
        torch.cuda.synchronize()


def microseconds(run: Callable[[int], None], launches: int = 24) -> float:
    """Of one launch inside a graph of many."""
    run(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for k in range(launches):
            run(k % SLOTS)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = float("inf")
    for _ in range(4):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1000 * begin.elapsed_time(end) / launches)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--precision", nargs="+", default=["bf16", "tf32"])
    parser.add_argument("--products", nargs="+", default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=400, help="stop measuring after so long")
    chosen = parser.parse_args()
    begun = time.perf_counter()
    cases = [Case(product, models, precision, tile) for precision in chosen.precision for models in chosen.models
             for product in chosen.products for tile in candidates(product, precision)]  # fmt: skip
    once = {
        (case.product, case.precision, case.tile): case for case in cases
    }  # the number of models needs no compiling
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 2)) as pool:
        pool.map(compile_one, once.values(), chunksize=4)
    print(f"{len(cases)} cases, {len(once)} kernels compiled in {time.perf_counter() - begun:.0f} s", flush=True)
    found: dict[str, list[tuple[float, Tile]]] = {}
    for case in cases:
        if time.perf_counter() - begun > chosen.seconds:
            print("out of time")
            break
        key = f"{case.precision} E={case.models} {case.product}"
        try:
            found.setdefault(key, []).append((microseconds(runner(case)), case.tile))
        except Exception as problem:
            print(f"{key} {tuple(case.tile)}: {str(problem)[:100]}")
    for key, rows in found.items():
        precision, models, product = key.split()
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        current = tile_for(product, int(models[2:]) * R, *SHAPES[product], dtype)
        now = [us for us, tile in rows if tile == current]
        best = sorted(rows)[:4]
        print(
            f"{key:20s} now {now[0] if now else float('nan'):6.2f}  "
            + "  ".join(f"{us:.2f} {tuple(t)}" for us, t in best)
        )
    if chosen.json:
        write(chosen.json, found)
    print(f"{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
