"""The paper's own form of CG: Theorem 3.1 and Lemma 3.2, their attention written out and corrected.

Prompt (n data tokens after the sink; d, x, r and the work rows stand in the last token alone)::

    P = [ 0  a_1 ... a_n ;  0  b_1 ... b_n ;  0 ... 0 d ;  0 ... 0 x ;  0 ... 0 r ;  0 ;  e_1 ... e_{n+1} ]

*Pre block*: one layer, four heads, r = d = b - A x0. *Loop block*: one layer, two heads, work = A d, then an FFN.

What the lemma does and does not give. Its attention is constructive: A d within O(c) by the paper's heads (c and 0),
within O(c^2) by the heads +c and -c. The corrections: one e^C and not two in W_V P, the cancelling head written out,
1/c folded into W_V, the sign of A x0. The rest, x + alpha d, r - alpha A d and r' + beta d, is given to an FFN by the
universal approximation theorem, since these are continuous. But alpha = r.r / d.Ad and beta are quotients, not
continuous where d.Ad = 0 and without a limit at r = 0; the theorem covers compact sets away from that, and there to
an absolute error, which further iterations do not remove: single steps, not convergence. And d stands in the score: as
it shrinks, rounding is divided by c |d|, so that even an exact FFN stagnates.

``ffn="ideal"`` puts the exact update in the FFN's place (no ReLU network; the error left is the attention's).
``ffn="fitted"`` is a genuine ReLU FFN, fitted to the updates CG makes on the paper's family while |r| >= 1/100. It acts
on 3n numbers at once, so it is possible for very small n only; ``python -m paper.paper_form`` prints ``fitted_error``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nlaformer import io
from nlaformer.arrays import check_memory, plain, whole
from nlaformer.compiler.algorithm import Algorithm, Changes
from nlaformer.compiler.compiling import check_options, torch_dtype
from nlaformer.compiler.config import AlgorithmConfig
from nlaformer.compiler.library.krylov import ConjugateGradient
from nlaformer.compiler.lower.facts import facts_of
from nlaformer.compiler.lower.normal import normal
from nlaformer.compiler.states import per_system
from nlaformer.compiler.verify import with_verification
from nlaformer.console import Sheet, print_sheets
from nlaformer.errors import OptionError, unknown_name
from nlaformer.express.heads import Head, Unit, assemble, linear_heads, replace, select
from nlaformer.express.linearize import Linearization, design
from nlaformer.problems.spd import random_spd
from nlaformer.program.data import ProgramGraph
from nlaformer.prompt import Layout, scale
from nlaformer.transformer import Layer, NLAFormer

_FFNS = ("ideal", "fitted")
_LARGEST_FITTED = 4
_LARGEST_WIDTH = 8192
_FIT_FLOOR = 1e-2  # the compact set: residuals at least this large (b has norm about 1)


def paper_cg(
    n: int,
    *,
    ffn: str = "ideal",
    width: int = 256,
    scheme: str = "antisymmetric",
    order: int = 1,
    dtype: torch.dtype | str = torch.float64,
    verify: bool = True,
) -> Algorithm:
    """CG in the form of Theorem 3.1: ``ffn`` is "ideal", the exact update, or "fitted", a network of some width."""
    order, width = plain(order), whole("width", width, 1)
    kind: torch.dtype = torch_dtype(dtype)
    n = check_options(n, order, kind, scheme)
    if ffn not in _FFNS:
        raise unknown_name("ffn", ffn, _FFNS)
    if width > _LARGEST_WIDTH:
        raise OptionError(f"width is {width}; expected a whole number from 1 to {_LARGEST_WIDTH}")
    if ffn == "fitted" and n > _LARGEST_FITTED:
        raise OptionError(
            f"ffn='fitted' was asked for n={n}; an FFN of {3 * n} inputs cannot be fitted, the largest n is "
            f"{_LARGEST_FITTED}. Use ffn='ideal', or the compiled form, nf.algorithm('cg', n)"
        )
    registers = (("A", n), ("b", 1), ("d", n), ("x", n), ("r", n), ("work", n), ("position", n + 1))
    layout = Layout(registers, tokens=n + 1)
    needed = 8 * (layout.rows + 2 * layout.tokens) * layout.tokens
    check_memory(f"n is {n:,}: the run of a single system", needed, torch.device("cpu"), ". Choose a smaller n")
    # Scores are a_i . d with |A| and |d| about 1.
    lin = design(n, kind, 0.5 / n**0.5, order=order, scheme=scheme, summands=1)
    pre = assemble(layout, _start_heads(layout, lin))
    units = _update_units(layout, width) if ffn == "fitted" else []
    loop = assemble(layout, _product_heads(layout, lin, "d", [*layout["work"]], 1.0), units)
    if ffn == "ideal":
        loop.ffn = _IdealUpdate(layout)  # type: ignore[assignment]
    model = NLAFormer([pre], [loop]).to(kind)
    fit = {"fit": fitted_error(n, width)} if ffn == "fitted" else {}
    program = ConjugateGradient()
    algorithm = PaperAlgorithm(_config(program.graph(n), kind, order, layout, ffn, fit), model, program)
    return with_verification(algorithm) if verify else algorithm


def _start_heads(layout: Layout, lin: Linearization) -> list[Head]:
    """Theorem 3.1: two heads put b into column n + 1, two take A x0 off; both into r and d."""
    key, query = [{layout["b"][0]: 1.0}], [{layout["position"][-1]: 1.0}]
    value, target = 2 * select(layout["position"][1:]), [*layout["r"], *layout["d"]]
    take_b = linear_heads(layout, lin, key=key, query=query, value=value, target=target)
    return take_b + _product_heads(layout, lin, "x", target, -1.0)


def _product_heads(layout: Layout, lin: Linearization, source: str, target: list[int], sign: float) -> list[Head]:
    """Lemma 3.2: target += sign * A source in column n + 1; keys a_i, query the vector, values e_{i+1}."""
    key, query = select(layout["A"]), select(layout[source])
    value = [{row: sign} for row in layout["position"][1:]] * (len(target) // len(query))
    return linear_heads(layout, lin, key=key, query=query, value=value, target=target)


def _update_units(layout: Layout, width: int) -> list[Unit]:
    """The fitted FFN: clears the work rows exactly; its bias stands on the last position, so other columns stay."""
    W_1, b_1, W_2, b_2 = _fit(layout.tokens - 1, width)
    last = layout["position"][-1]
    inputs = [*layout["d"], *layout["r"], *layout["work"]]
    outputs = [*layout["d"], *layout["x"], *layout["r"]]
    forms = [dict(zip([*inputs, last], w.tolist(), strict=True)) for w in torch.cat([W_1, b_1[:, None]], 1)]
    rows = torch.cat([W_2.T, b_2[None]])
    units = [
        Unit(form, 0.0, dict(zip(outputs, v.tolist(), strict=True)))
        for form, v in zip([*forms, {last: 1.0}], rows, strict=True)
    ]
    return units + [unit for row in layout["work"] for unit in replace(row)]


class _IdealUpdate(nn.Module):
    """The exact CG update in an FFN's place, column by column; columns of zeros stay zero. Not a ReLU network."""

    width = 0

    def __init__(self, layout: Layout):
        super().__init__()
        self.rows = {name: slice(layout[name].start, layout[name].stop) for name in ("d", "x", "r", "work")}

    def added_to(self, U: Tensor, X: Tensor) -> Tensor:
        d, x, r, q = (X[..., self.rows[name]] for name in ("d", "x", "r", "work"))
        rho, curvature = (r * r).sum(-1, keepdim=True), (d * q).sum(-1, keepdim=True)
        alpha = torch.where(curvature == 0, 0.0, rho / curvature)
        r_next = r - alpha * q
        beta = torch.where(rho == 0, 0.0, (r_next * r_next).sum(-1, keepdim=True) / rho)
        result = U.clone()
        for name, value in (("d", r_next + beta * d), ("x", x + alpha * d), ("r", r_next), ("work", 0 * q)):
            result[..., self.rows[name]] = value
        return result


def _updates(n: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """(d, r, A d) and the update (d' - d, x' - x, r' - r) of every CG step with |r| >= _FIT_FLOOR, inputs scaled."""
    rng = np.random.default_rng(seed)
    A, b = random_spd(n, count, seed=seed), rng.standard_normal((count, n))
    A = A / 2.0 ** np.round(np.log2(np.linalg.norm(A, axis=(1, 2))))[:, None, None]
    b = b / 2.0 ** np.round(np.log2(np.linalg.norm(b, axis=1)))[:, None]
    states = ConjugateGradient().run(A, b, iterations=n).state
    before, after = ({k: v[:, s] for k, v in states.items()} for s in (slice(0, n), slice(1, n + 1)))
    r, d = before["r"].reshape(-1, n), before["d"].reshape(-1, n)
    q = (A[:, None] @ before["d"][..., None]).reshape(-1, n)
    change = [after[name].reshape(-1, n) - before[name].reshape(-1, n) for name in ("d", "x", "r")]
    keep = np.linalg.norm(r, axis=1) >= _FIT_FLOOR
    inputs = np.concatenate([d, r, q], 1)[keep]
    return torch.tensor(inputs), torch.tensor(np.concatenate(change, 1)[keep])


@lru_cache(maxsize=4)
def _fit(n: int, width: int, steps: int = 3000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_1, b_1, W_2, b_2 of a ReLU network trained on relative errors (Adam, float32, fixed seed)."""
    Z, Y = (t.float() for t in _updates(n, 5000, seed=1))
    generator = torch.Generator().manual_seed(0)
    W_1 = torch.randn(width, Z.shape[1], generator=generator) / Z.std(0) / Z.shape[1] ** 0.5
    b_1 = 0.5 * torch.randn(width, generator=generator)
    weights = [W_1, b_1, torch.zeros(Y.shape[1], width), torch.zeros(Y.shape[1])]
    weights = [weight.requires_grad_() for weight in weights]
    optimizer = torch.optim.Adam(weights, lr=3e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    importance = 1 / Y.norm(dim=1, keepdim=True).clamp_min(1e-3)
    with torch.enable_grad():
        for _ in range(steps):
            rows = torch.randint(len(Z), (1024,), generator=generator)
            loss = ((_network(weights, Z[rows]) - Y[rows]) * importance[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    return tuple(weight.detach().double() for weight in weights)  # type: ignore[return-value]


def _network(weights: Sequence[Tensor], Z: Tensor) -> Tensor:
    W_1, b_1, W_2, b_2 = weights
    return torch.relu(Z @ W_1.mT + b_1) @ W_2.mT + b_2


def fitted_error(n: int, width: int) -> dict[str, float]:
    """The relative error of one fitted update on systems it was not fitted to: median and nine tenths."""
    Z, Y = _updates(n, 500, seed=2)
    error = (_network(_fit(n, width), Z) - Y).norm(dim=1) / Y.norm(dim=1)
    return {"width": width, "median": float(error.median()), "nine_tenths": float(error.quantile(0.9))}


class PaperAlgorithm(Algorithm):
    """An Algorithm whose vectors stand as columns in the last token, as in the paper."""

    def save(self, path: Any) -> Path:
        if any(isinstance(layer.ffn, _IdealUpdate) for layer in self.model.loop if isinstance(layer, Layer)):
            raise OptionError("ffn='ideal' is no ReLU network and has no weights to save; use ffn='fitted'")
        return super().save(path)

    def _prompt(self, inputs: dict[str, Tensor], exponents: dict[str, Tensor]) -> Tensor:
        P = self.layout.empty((len(inputs["A"]),), self.dtype, self.device)
        last = slice(self.n, self.n + 1)
        A, b, x0 = (self._scaled(name, inputs[name], exponents) for name in ("A", "b", "x0"))
        self.layout.write(P, "A", A.mT)
        self.layout.write(P, "b", b[:, None, :])
        self.layout.write(P, "x", x0[:, :, None], last)
        return P

    def _value(self, P: Tensor, place: dict[str, Any]) -> Tensor:
        return self.layout.read(P, place["rows"][0], slice(self.n, self.n + 1))[..., 0]

    def with_states(self, P: Tensor, powers: Mapping[str, Tensor], changes: Changes) -> Tensor:
        result, last = P.clone(), slice(self.n, self.n + 1)
        for name, change in changes.items():
            place, power = self.config.state[name], per_system(powers[name], P[..., 0])
            value = change(scale(self._value(P, place), power))
            self.layout.write(result, place["rows"][0], scale(value, -power)[..., None], last)
        return result


def load(path: str | os.PathLike[str]) -> Algorithm:
    """A fitted algorithm that ``save`` wrote."""
    _, config, model, _ = io.read(path)
    return PaperAlgorithm(AlgorithmConfig.read(config), model)


def _config(
    program: ProgramGraph, kind: torch.dtype, order: int, layout: Layout, ffn: str, fit: dict[str, Any]
) -> AlgorithmConfig:
    rows = {name: {"kind": "vector", "rows": [name], "scale": None, "logarithm": False} for name in ("x", "r", "d")}
    loop = ["Lemma 3.2: work = A d in column n + 1", f"{ffn} FFN: update d, x, r, clear work"]
    facts = facts_of(normal(program))
    return AlgorithmConfig(
        "ConjugateGradient, the paper's form",
        str(kind).removeprefix("torch."),
        order,
        1.0,
        program,
        scaled=sorted(facts.scaled),
        units={name: [[f.numerator, f.denominator] for f in pair] for name, pair in facts.units.items()},
        state=rows,
        answer=rows["x"],
        registers=[list(register) for register in layout.registers],
        schedule={"pre": [["Theorem 3.1: r = d = b - A x0 in column n + 1"]], "loop": [loop], "post": []},
        form="paper",
        verification=fit,
    )


def main() -> None:
    found = [(n, fitted_error(n, width)) for n in (2, 3, 4) for width in (16, 64, 256, 1024)]
    lines = tuple((str(n), str(e["width"]), f"{e['median']:.3f}", f"{e['nine_tenths']:.3f}") for n, e in found)
    title = "The paper's one FFN, fitted: relative error of one CG update on unseen systems"
    print_sheets([Sheet(title, ("n", "width", "median", "nine tenths below"), lines)], markdown=True)


if __name__ == "__main__":
    main()
