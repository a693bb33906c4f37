"""The same work in several processes: results in the order of the arguments, one thread each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def add_options(parser: argparse.ArgumentParser) -> None:
    """--jobs, and --commit for a copy of the files without their history."""
    parser.add_argument("--jobs", type=int, default=1, help="processes; default: 1")
    parser.add_argument("--commit", help="the commit that is measured, where the files have no history with them")


def map_in_order(jobs: int, work: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
    """As map, in so many processes; each starts anew and uses one thread, so that no number depends on ``jobs``."""
    torch.set_num_threads(1)
    if jobs == 1:
        yield from map(work, *arguments)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(work, *arguments)
