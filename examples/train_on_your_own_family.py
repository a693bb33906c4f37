# %% [markdown]
# # Train on your own family, on a CPU
#
# A network learns to precondition conjugate gradients for problems of your own. The training takes a few minutes on a
# laptop without a GPU. Call it again and it resumes; a finished run is only read.

# %%
import os
from dataclasses import dataclass
from pathlib import Path

import torch

import nlaformer as nf

out = Path("out")
out.mkdir(exist_ok=True)
short = os.environ.get("NLAFORMER_EXAMPLES") == "short"  # a few steps of a small network: what the tests run

# %% [markdown]
# ## A family
#
# A family makes matrices from random numbers: `draw.normal` and `draw.uniform` give them, each name a stream of its
# own. These are chains of springs between two walls, with random stiffness. The solution is drawn too, and b = A x.


# %%
@dataclass(frozen=True)
class Springs(nf.problems.Family):
    n: int = 8
    spread: float = 1.0

    def matrices(self, draw, count):
        k = torch.exp(self.spread * draw.normal("springs", count, self.n + 1))
        A = torch.diag_embed(k[:, 1:] + k[:, :-1])
        off = torch.diag_embed(k[:, 1:-1], offset=1)
        return A - off - off.mT


A, b, x = Springs().sample(3, seed=0)
A[0].numpy().round(2)

# %% [markdown]
# ## The training
#
# `learned-preconditioner` is preconditioned conjugate gradients: a network reads A once and writes M, the inverse of a
# diagonal plus a few columns, here two; the rest of the arithmetic is exact. M is positive definite by construction, so
# the method converges whatever the network says. The recipe is for a GPU; these sizes are for a CPU. The validation
# error of every iterate is recorded while it trains.

# %%
config = nf.recipe(
    "learned-preconditioner",
    family=Springs(n=8, spread=1.0),
    program_options={"rank": 2},
    T=4,
    d=64,
    heads=4,
    steps=1500,
    warmup=100,
    lr=2e-3,
)
if short:
    config = config.replace(steps=4, warmup=1, d=16, heads=2, batch=4)
run = nf.train(config, out=out / ("springs-short" if short else "springs"), device="cpu")
print(run.finding)
run

# %%
figure = run.plot()
figure.savefig(out / "springs-training.png")
figure

# %% [markdown]
# ## What it gained
#
# On systems that no training draws, beside methods that were not trained. Conjugate gradients are exact after n
# iterations but for rounding, with any M, so a learned one can be ahead only before that.

# %%
model = run.model
found = nf.evaluate(model, Springs(n=8, spread=1.0), iterations=12, count=32 if short else 512)
print(found.iterations_to()["learned"][:6], "iterations of the learned method to 1e-1, ..., 1e-6")
print(found.iterations_to()["CG"][:6], "of CG")
figure = found.plot()
figure.savefig(out / "springs-errors.png")
figure

# %% [markdown]
# ## Elsewhere
#
# Stiffer and softer springs than it has seen: how much of the gain is left?

# %%
elsewhere = nf.evaluate(model, Springs(n=8, spread=2.0), iterations=12, count=32 if short else 512)
print(elsewhere.iterations_to()["learned"][:6], "iterations of the learned method to 1e-1, ..., 1e-6")
print(elsewhere.iterations_to()["CG"][:6], "of CG")
elsewhere

# %% [markdown]
# ## Use it
#
# `nf.solve` does not trust the model: the residual of what it returns is proven, and a bad preconditioner costs time,
# never the answer.

# %%
result = nf.solve(A[0], b[0], M=model, rtol=1e-10)
assert result.converged and result.residual_bound <= result.tolerance
print(result.finding)
result
