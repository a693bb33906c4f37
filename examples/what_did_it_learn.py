# %% [markdown]
# # What did it learn?
#
# A model that was trained to imitate conjugate gradients: does it run that algorithm, or something else that gives
# similar numbers? First the tests are tried on a method that is known, then on the model.

# %%
import os
from pathlib import Path

import numpy as np

import nlaformer as nf
from nlaformer.microscope.battery import QUICK, Effort

out = Path("out")
out.mkdir(exist_ok=True)
short = os.environ.get("NLAFORMER_EXAMPLES") == "short"  # fewer systems: what the tests run
effort = Effort(count=8, matrices=1, right_hand_sides=24, fitting=32) if short else QUICK

# %% [markdown]
# ## A method that is known
#
# The battery sees iterates alone. A compiled algorithm gives it nothing but those, and it must find the name.

# %%
known = nf.microscope(nf.algorithm("steepest_descent", n=6, verify=False), effort=effort)
assert known.named == "steepest_descent"
print(f"named: {known.named}, up to t = {known.until}")
known

# %% [markdown]
# ## The model
#
# A candidate explains an iterate if the model is closer to it than half the candidate's own error.

# %%
model = nf.load("cg-imitation")
seen = nf.microscope(model, effort=effort, iterations=6 if short else None)
named = "no algorithm" if seen.named is None else f"{seen.named}, up to t = {seen.until}"
print(f"explained by {named}; the iterates go on to t = {seen.T}")
seen

# %%
figure = seen.plot()
figure.savefig(out / "explained.png")
figure

# %% [markdown]
# Methods like conjugate gradients stay in Krylov spaces: x_t is a combination of b, A b, ..., A^(t-1) b. How far is the
# model's x_t from that space?

# %%
figure = seen.plot("krylov")
figure.savefig(out / "krylov.png")
figure

# %% [markdown]
# ## Inside
#
# The names of a recording are those of the blocks. Where does the last token, which the answer is read from, look?

# %%
A, b, x = (values.numpy() for values in nf.problems.SPD(n=20).sample(1, seed=5))
record = nf.trace(model, A[0], b[0])
weights = record.attention["loop[2].layer[0]"]
for head, row in enumerate(weights[:, -1]):
    print(f"head {head}: {row[0]:.0%} on the first token, {row[-1]:.0%} on itself, the rest spread over {len(row) - 2}")

# %% [markdown]
# ## Cause
#
# A head that is set to zero in one pass: which iterates change, and by how much? The value before the pass cannot.

# %%
heads = record["loop[2].layer[0].attention.heads"]
for head in range(len(heads)):
    changed = heads.copy()
    changed[head] = 0
    with nf.patch(model, {"loop[2].layer[0].attention.heads": changed}):
        other = model.iterates(A[0], b[0])
    moved = np.linalg.norm(other - record.iterates, axis=-1) / np.linalg.norm(x[0])
    assert moved[:3].max() == 0
    print(f"head {head}: x_3 moves by {moved[3]:.1e}, the last iterate by {moved[-1]:.1e} of |x|")

# %% [markdown]
# ## A short program
#
# Programs of a few lines, with constants that are fitted, predict the iterates on systems that nothing was fitted on.
# The solution is the control: it explains nothing of the model's error.

# %%
taken = nf.extract(model, until=2 if short else 6, count=16 if short else 128)
print(taken.finding)
taken
