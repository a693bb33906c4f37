# %% [markdown]
# # Solve with a certificate
#
# A learned model may be wrong, and on systems unlike its training it often is. `nf.solve` uses it and does not trust
# it: converged means that the residual of the returned x is proven to be within the tolerance.

# %%
from pathlib import Path

import numpy as np

import nlaformer as nf

out = Path("out")
out.mkdir(exist_ok=True)
A, b, x = (values.numpy() for values in nf.problems.SPD(n=20).sample(16, seed=3))

# %% [markdown]
# ## One system
#
# The result unpacks as `x, info`, like SciPy's. The residual is computed again in float64 from the x that is returned,
# and a bound on the rounding errors of that computation is added.

# %%
plain = nf.cg(A[0], b[0], rtol=1e-10)
assert plain.residual_bound <= plain.tolerance
print(plain.finding)
plain

# %% [markdown]
# ## With a model
#
# The bundled model takes the first steps, the classical method the rest. Fewer products with A are needed; what the
# model itself computes is not counted among them.

# %%
guided = nf.solve(A[0], b[0], model="cg-accelerated", rtol=1e-10)
print(f"products with A: {plain.matvecs} without a model, {guided.matvecs} with it")
guided

# %%
figure = guided.plot()
figure.savefig(out / "guided-solve.png")
figure

# %% [markdown]
# ## Many systems
#
# A batch is solved at once; every system has a status of its own.

# %%
many = nf.solve(A, b, model="cg-accelerated", rtol=1e-10)
error = np.abs(many.x - x).max()
print(f"{many.finding}; largest error of an entry {error:.1e}")
figure = many.plot()
figure.savefig(out / "many-solves.png")
figure

# %% [markdown]
# ## A model that is wrong
#
# Any function (A, b) -> x is a model. This one is of no use: its answers are refused, with the reason.


# %%
def nonsense(A, b):
    return 1e9 * b


result = nf.solve(A[0], b[0], model=nonsense, rtol=1e-10)
assert result.converged
print(result.model)

# %% [markdown]
# ## What cannot be solved is said
#
# Conjugate gradients need a positive definite matrix. Without one there is no certificate, and the status says why.

# %%
for name, matrix in {"indefinite": np.diag([1.0, -1.0, 2.0]), "singular": np.diag([1.0, 0.0, 2.0])}.items():
    refused = nf.cg(matrix, np.ones(3), check="ignore")
    assert not refused.converged
    print(f"{name}: {refused.status.name}")

# %% [markdown]
# ## Other problems
#
# A nonsymmetric matrix, more equations than unknowns, an eigenvalue: each with its own certificate.

# %%
rng = np.random.default_rng(0)
print(nf.solve(rng.normal(size=(6, 6)) + 4 * np.eye(6), np.ones(6)).finding)
print(nf.solve(rng.normal(size=(9, 4)), np.ones(9)).finding)
pair = nf.eigenpair(A[0], which="largest")
low, high = pair.enclosure
assert low <= np.linalg.eigvalsh(A[0])[-1] <= high
print(f"an eigenvalue lies between {low:.12g} and {high:.12g}")
