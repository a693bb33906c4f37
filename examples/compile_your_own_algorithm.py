# %% [markdown]
# # Compile your own algorithm
#
# An iterative method, written as on paper, becomes the weights of a transformer. Nothing is trained. This example
# writes the heavy-ball method, compiles it, runs both forms on the same systems, and looks at what the layers do.

# %%
from pathlib import Path

import numpy as np

import nlaformer as nf

out = Path("out")
out.mkdir(exist_ok=True)

# %% [markdown]
# The three methods of a program are the three blocks of the transformer: `start` is the block before the loop, `step`
# the loop, `finish` the block after it. `finish` may be left out, then the answer is the state `x`. Constants are
# attributes; they go into the weights.


# %%
class HeavyBall(nf.Program):
    """Steps along the residual, with momentum."""

    step_size, momentum = 0.12, 0.5

    def start(self, A, b, x0):
        return dict(x=x0, previous=x0)

    def step(self, A, b, x, previous):
        return dict(x=x + self.step_size * (b - A @ x) + self.momentum * (x - previous), previous=x)


compiled = nf.compile(HeavyBall(), n=8)
compiled

# %% [markdown]
# `print` shows the schedule: a line is a layer with its heads, its FFN, and what it computes.

# %%
print(compiled)

# %% [markdown]
# ## Run it
#
# The class itself runs too, in NumPy or torch, without a transformer: that is the reference.

# %%
rng = np.random.default_rng(0)
M = rng.normal(size=(8, 8))
A = M @ M.T / 8 + np.eye(8)
b = rng.normal(size=8)

run = compiled.run(A, b, iterations=100)
reference = HeavyBall().run(A, b, iterations=100)
largest = np.abs(run.x - reference.x).max()
print(f"largest difference of an iterate from NumPy's: {largest:.1e}")
print(run.finding)
assert largest < 1e-9
run

# %%
figure = run.plot()
figure.savefig(out / "heavy-ball.png")
figure

# %% [markdown]
# ## Beside other methods
#
# `nf.evaluate` takes anything that gives iterates, and compares it with classical methods on the same systems.

# %%
matrices = np.stack([A + 0.1 * k * np.eye(8) for k in range(5)])
found = nf.evaluate(compiled, (matrices, b), iterations=20)
figure = found.plot()
figure.savefig(out / "heavy-ball-beside-cg.png")
figure

# %% [markdown]
# ## Look inside
#
# A recording has every intermediate by name. Its page shows P before and after each layer, the attention of each head,
# and the registers; open it in a browser.

# %%
record = nf.trace(compiled, A, b, iterations=3)
(out / "heavy-ball.html").write_text(record.to_html(), encoding="utf-8")
assert np.array_equal(record.registers["x"], compiled.run(A, b, iterations=3).x)
record

# %%
weights = record.attention["loop[0].layer[0]"]  # (head, query, key)
print(f"{weights.shape[0]} heads in the first layer of the loop; a query's weights sum to {weights.sum(-1).max():.6f}")
print(f"The page is {out / 'heavy-ball.html'}.")
