"""Sparse and dense matrices of fixed seeds for the benchmarks ``preconditioners`` and ``auto``, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _csr(A: Any) -> Any:
    found = sp.csr_matrix(A)
    found.sum_duplicates()
    found.sort_indices()
    return found


def _side(n: int, dimensions: int, aspect: tuple[float, ...] | None = None) -> tuple[int, ...]:
    """The numbers of points of a box of about n points with these relative lengths of its sides."""
    aspect = aspect or (1.0,) * dimensions
    step = (np.prod(aspect) / n) ** (1 / dimensions)
    return tuple(round(side / step) for side in aspect)


def diffusion(coefficient: Array) -> Any:
    """Finite volumes for -div(c grad u) on a grid with u = 0 around it; c is given in the cells."""
    index = np.arange(coefficient.size).reshape(coefficient.shape)
    diagonal = np.zeros(coefficient.shape)
    parts = []
    for axis in range(coefficient.ndim):
        low = [slice(None)] * coefficient.ndim
        high, first, last = low.copy(), low.copy(), low.copy()
        low[axis], high[axis], first[axis], last[axis] = slice(0, -1), slice(1, None), slice(0, 1), slice(-1, None)
        one, two = coefficient[tuple(low)], coefficient[tuple(high)]
        flow = 2 * one * two / (one + two)
        diagonal[tuple(low)] += flow
        diagonal[tuple(high)] += flow
        for side in (first, last):
            diagonal[tuple(side)] += 2 * coefficient[tuple(side)]
        parts.append((-flow.ravel(), index[tuple(low)].ravel(), index[tuple(high)].ravel()))
    values, rows, columns = (np.concatenate(part) for part in zip(*parts, strict=True))
    upper = sp.csr_matrix((values, (rows, columns)), shape=(coefficient.size,) * 2)
    return _csr(upper + upper.T + sp.diags_array(diagonal.ravel()))


def smooth_field(shape: tuple[int, ...], seed: int, contrast: float, length: float) -> Array:
    """A coefficient from 1 to ``contrast`` whose logarithm varies smoothly over this part of the sides."""
    rng = np.random.default_rng(seed)
    waves = np.meshgrid(*[np.fft.fftfreq(m) * m for m in shape], indexing="ij")
    damping = np.exp(-sum(k * k for k in waves) * (np.pi * length) ** 2 / 2)
    field = np.fft.ifftn(np.fft.fftn(rng.standard_normal(shape)) * damping).real
    field = (field - field.min()) / (field.max() - field.min())
    found: Array = contrast**field
    return found


def anisotropic(n: int, degrees: float, epsilon: float) -> Any:
    """Bilinear finite elements for diffusion 1 along a direction and epsilon across it, on a square."""
    m = _side(n, 2)[0]
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    xx, yy, xy = c * c + epsilon * s * s, s * s + epsilon * c * c, (1 - epsilon) * c * s
    stiff, mass, slope = (
        sp.diags_array(np.array(line), offsets=[-1, 0, 1], shape=(m, m))
        for line in ([-1.0, 2.0, -1.0], [1 / 6, 4 / 6, 1 / 6], [-0.5, 0.0, 0.5])
    )
    return _csr(xx * sp.kron(stiff, mass) + yy * sp.kron(mass, stiff) - 2 * xy * sp.kron(slope, slope))


def blocks(n: int, seed: int, contrast: float, parts: int) -> Any:
    """Two-dimensional diffusion with a random coefficient from 1 to ``contrast`` on each of parts^2 squares."""
    m = _side(n, 2)[0]
    values = contrast ** np.random.default_rng(seed).random((parts, parts))
    of = np.arange(m) * parts // m
    return diffusion(values[np.ix_(of, of)])


def triangles(n: int, seed: int, grading: float) -> Any:
    """Linear finite elements for the Laplacian on Delaunay triangles; points crowd at a corner for grading > 1."""
    from scipy.spatial import Delaunay

    points = np.random.default_rng(seed).random((n, 2)) ** grading
    corners = Delaunay(points).simplices
    p = points[corners]
    edges = np.stack([p[:, 2] - p[:, 1], p[:, 0] - p[:, 2], p[:, 1] - p[:, 0]], 1)
    area = 0.5 * np.abs(edges[:, 0, 0] * edges[:, 1, 1] - edges[:, 0, 1] * edges[:, 1, 0])
    area = np.maximum(area, 1e-2 * np.median(area) * (area / np.median(area)) ** 0.5)  # random points make slivers
    local = np.einsum("tia,tja->tij", edges, edges) / (4 * area)[:, None, None]
    rows, columns = np.repeat(corners, 3, 1).ravel(), np.tile(corners, (1, 3)).ravel()
    A = sp.csr_matrix((local.ravel(), (rows, columns)), shape=(n, n))
    hull = np.unique(Delaunay(points).convex_hull)
    inside = np.setdiff1d(np.arange(n), hull)
    return _csr(A[inside][:, inside])


def nearest_neighbours(n: int, seed: int, neighbours: int, shift: float) -> Any:
    """The Laplacian of the graph of random points in a square and their nearest neighbours, plus shift times I."""
    from scipy.spatial import cKDTree

    rng = np.random.default_rng(seed)
    points = rng.random((n, 2))
    near = cKDTree(points).query(points, neighbours + 1)[1][:, 1:]
    rows = np.repeat(np.arange(n), neighbours)
    weights = np.exp(rng.standard_normal(rows.size))
    W = sp.csr_matrix((weights, (rows, near.ravel())), shape=(n, n))
    W = W + W.T
    return _csr(sp.diags_array(np.asarray(W.sum(1)).ravel() + shift) - W)


def convection(shape: tuple[int, ...], wind: float) -> Any:
    """-Laplacian(u) + wind . grad(u) by upwind differences; ``wind`` is the Peclet number of a cell."""
    n = int(np.prod(shape))
    A = sp.csr_matrix((n, n))
    for axis, m in enumerate(shape):
        line = sp.diags_array([-1.0 - wind, 2.0 + wind, -1.0], offsets=[-1, 0, 1], shape=(m, m))
        before, after = int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1 :]))
        A = A + sp.kron(sp.eye_array(before), sp.kron(line, sp.eye_array(after)))
    return _csr(A)


def random_sparse(n: int, seed: int, entries: int, margin: float, symmetric: bool) -> Any:
    """Random entries of both signs, and a diagonal that is 1 + margin times the sum of the others in each row."""
    rng = np.random.default_rng(seed)
    rows, columns = np.repeat(np.arange(n), entries), rng.integers(0, n, n * entries)
    B = sp.csr_matrix((rng.standard_normal(n * entries), (rows, columns)), shape=(n, n))
    B = B + B.T if symmetric else B
    B = B - sp.diags_array(B.diagonal())
    return _csr(B + sp.diags_array((1 + margin) * np.asarray(abs(B).sum(1)).ravel()))


def dense(n: int, seed: int, kind: str) -> Array:
    """A dense matrix: "definite" and "indefinite" symmetric ones with eigenvalues over four decades, or "general"."""
    rng = np.random.default_rng(seed)
    if kind == "general":
        return rng.standard_normal((n, n))
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    values = np.geomspace(1e-4, 1.0, n)
    if kind == "indefinite":
        values = values * rng.choice([-1.0, 1.0], n)
    found: Array = (Q * values) @ Q.T
    return (found + found.T) / 2


_BOX = (1.0, 1.4, 2.0)
FAMILIES: dict[str, Callable[[int], Any]] = {  # of n, for the benchmark ``preconditioners``
    **{f"anisotropy {degrees} degrees": partial(anisotropic, degrees=degrees, epsilon=1e-3)
       for degrees in (10, 35, 65, 80, 125, 155)},
    "jumps": partial(blocks, seed=11, contrast=1e5, parts=7),
    "box, constant": lambda n: diffusion(np.ones(_side(n, 3, _BOX))),
    "box, variable": lambda n: diffusion(smooth_field(_side(n, 3, _BOX), 12, 1e4, 0.05)),
    "triangles": partial(triangles, seed=13, grading=1.0),
    "triangles, graded": partial(triangles, seed=14, grading=1.5),
    "neighbour graph": partial(nearest_neighbours, seed=15, neighbours=5, shift=1e-5),
}  # fmt: skip
THREE_DIMENSIONAL = ("box, constant", "box, variable")

SYSTEMS: dict[str, Callable[[], Any]] = {  # for the benchmark ``auto``
    "dense, definite, 300": partial(dense, 300, 21, "definite"),
    "dense, definite, 2,000": partial(dense, 2000, 22, "definite"),
    "dense, indefinite, 1,000": partial(dense, 1000, 23, "indefinite"),
    "dense, general, 1,000": partial(dense, 1000, 24, "general"),
    "square, 18^2": lambda: diffusion(np.ones((18, 18))),
    "square, 200^2": lambda: diffusion(np.ones((200, 200))),
    "square, 1000^2": lambda: diffusion(np.ones((1000, 1000))),
    "cube, 100^3": lambda: diffusion(np.ones((100, 100, 100))),
    "jumps, 300^2": partial(blocks, 90_000, 25, 1e5, 9),
    "variable cube, 40^3": lambda: diffusion(smooth_field((40, 40, 40), 26, 1e4, 0.05)),
    "anisotropy, 300^2": partial(anisotropic, 90_000, 50.0, 1e-3),
    "triangles, 50,000": partial(triangles, 50_000, 27, 1.0),
    "convection, 250^2": lambda: convection((250, 250), 0.5),
    "convection, 40^3": lambda: convection((40, 40, 40), 0.5),
    "random, definite, 100,000": partial(random_sparse, 100_000, 28, 4, 1e-3, True),
    "random, general, 50,000": partial(random_sparse, 50_000, 29, 6, 1e-2, False),
}
