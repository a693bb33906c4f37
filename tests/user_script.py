"""A script of a user that touches every public name; a test checks its types. It is never run."""

import numpy as np
import torch
from torch import Tensor

import nlaformer as nf


class Damped(nf.Program):
    omega = 0.1

    def start(self, A: Tensor, b: Tensor, x0: Tensor) -> dict[str, Tensor]:
        return {"x": x0 + nf.zeros_like(b)}

    def step(self, A: Tensor, b: Tensor, x: Tensor) -> dict[str, Tensor]:
        scale = nf.sqrt(nf.exp(nf.log(nf.positive(nf.diag(A)))))
        scale = nf.maximum(scale, nf.minimum(nf.relu(scale), nf.sign(scale))) + 0.0 * (nf.outer(b, b) @ x)
        return {"x": x + self.omega * (b - (A + 0.0 * nf.identity_like(A)) @ x) / scale / nf.norm(nf.dot(b, b))}

    def residual(self, A: Tensor, b: Tensor, x: Tensor) -> Tensor:
        return A @ x + x * x * x - b


class Guided(nf.Program):
    positive_definite = True
    propose = nf.Learned("vector", memory=True)

    def start(self, A: Tensor, b: Tensor, x0: Tensor) -> dict[str, Tensor]:
        return {"x": x0, "r": b - A @ x0}

    def step(self, A: Tensor, x: Tensor, r: Tensor) -> dict[str, Tensor]:
        d = self.propose(A, r / nf.norm(r))
        q = A @ d
        alpha = nf.dot(r, d) / nf.dot(d, q)
        return {"x": x + alpha * d, "r": r - alpha * q}


def use(model: nf.TrainedProgram) -> None:
    A, b = torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    c, memory = model.propose(A, model.begin(A), b)
    D, U = model.preconditioner(A)
    print(
        model.run(A, b, iterations=4).x, model.iterates(A, b), c + memory, D + U, model.config.n, model.save("guided")
    )


def main() -> None:
    A, b = np.eye(3), np.ones(3)
    S, y = torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    print(nf.__version__, nf.operations(), nf.algorithms(), nf.recipes())
    op = nf.operation("matmul", n=3)
    transformer: nf.NLAFormer = op.model
    print(op(A, A).shape, op(S, S) + op.error_bound(S, S), op.prompt(A, A), op.read(transformer(op.prompt(S, S))))
    print(op.cost.entries, op.layout.rows, op.save("op").name, op.name, op.n, op.dtype, op.device, op.to("cpu"))
    compiled = nf.compile(Damped(), n=3)
    for run in (nf.algorithm("cg", n=3).run(S, y, iterations=4), compiled.run(A, b), Damped().run(S, y)):
        print(run.x, run.state["x"], run.residual_norms, run.status, compiled.cost.loop.layers)
    config: nf.Config = nf.recipe("quickstart", steps=10).replace(seed=1)
    trained, several = nf.train(config, out="runs/one"), nf.train([config], out="runs/several")
    print(trained.model.iterates(S, y), trained.diverged, several[0].folder, config.to_json(), config.validate())
    result: nf.SolveResult[Tensor]
    for result in (nf.solve(S, y), nf.cg(S, y, trajectory=True), nf.pcg(S, y), nf.gmres(S, y), nf.minres(S, y)):
        x, info = result
        print(x, info, result.x, result.x64, result.residuals, result.iterations, result.converged, result.model)
        print(result.status, result.residual_norm, result.residual_bound, result.tolerance, result.trajectory)
    for array in (nf.solve(A, b, rtol=1e-8), nf.cg(A, b), nf.pcg(A, b, M="jacobi")):
        print(array.x + b, array.x64.shape, array.residuals, array.info, array.seconds, op.error_bound(A, A).shape)
    pair: nf.EigenResult[Tensor] = nf.eigenpair(S, which="largest")
    print(pair.value + 1.0, pair.vector @ y, pair.enclosure[0], pair.residual_bound, nf.eigenpair(A).vector + b)
    root: nf.NonlinearResult[Tensor] = nf.solve_nonlinear(Damped(), y, A=S, b=y)
    print(root.x @ y, root.info, root.residual_bound, root.converged, nf.solve_nonlinear(Damped(), b, A=A, b=b).x + b)
    model = nf.load("cg-accelerated")
    assert isinstance(model, nf.Solver) and not isinstance(model, (nf.Operation, nf.Algorithm))
    print(model.iterates(S, y), model.iterates(A, b) - b, nf.Cost(1, 2, 3, 4, 5), nf.RunStatus.CONVERGED.value)
    family = nf.problems.family("spd", n=3)
    print(family.sample(2, seed=0).A, nf.problems.families(), nf.problems.SPD(n=3).stream(2, torch.Generator()).b)
    print(nf.Status.CONVERGED, nf.errors.NLAFormerError("message"))
    record: nf.Trace[Tensor] = nf.trace(compiled, S, y, iterations=2, keep="*.output")
    print(record["loop[0].layer[0].output"] + 1, record.registers["x"], record.names, record.memory, record.output)
    read: nf.Probing = nf.probe(model, nf.problems.SPD(n=20), targets=["cg.r", "cg.alpha"], systems=100)
    print(read["cg.r"]["model"].r2, read["cg.r"]["input"].mean_low, read.beyond_controls("cg.r"), read.fitted)
    taken: nf.Extraction = nf.extract(model, family=nf.problems.SPD(n=20), programs=[Damped()], until=3)
    print(taken.fits[0].r2, taken.fits[0].constants["omega"], taken.fits[0].program.run(A, b).x, taken.to_json())
    with nf.patch(compiled, {"registers.x[1]": y, "loop[0].layer[0].attention": 0}):
        print(compiled.run(S, y, iterations=2).x)
    errors: nf.Comparison = nf.evaluate(compiled, family, iterations=3, count=4)
    print(errors.mean["Damped"], errors.iterations_to()["CG"], nf.evaluate(model, (A, b)).median, errors.failures)
    for figure in (errors.plot(), run.plot(), trained.plot(), array.plot(), pair.plot(), root.plot(), read.plot()):
        figure.savefig("figure.png")
    print(record.to_html(), record.about.title, run.finding, array.finding, trained.finding, taken.plot())
    seen: nf.Microscopy = nf.microscope(model, family=nf.problems.SPD(n=20), quick=True)
    print(seen.named, seen.until, seen.explanations[0].ratio, seen.errors["model"].median, seen.to_json())
