"""The network that a model was before its training: the control of the battery, of extractions and of probes.

It has the model's own architecture: of a trained solver its config, of a program with learned parts the same program
with untrained networks in it. What has no network, an algorithm or a function, gets a small solver as its control.
"""

from __future__ import annotations

import torch

from nlaformer.learn import programs
from nlaformer.learn.model import Solver, initial
from nlaformer.learn.programs import TrainedProgram
from nlaformer.learn.recipes import recipe
from nlaformer.microscope.subject import Subject, subject
from nlaformer.problems import Systems
from nlaformer.weights import Dense

UNTRAINED = "untrained"


def before_training(model: object, n: int, T: int) -> Solver | TrainedProgram:
    """The model with the weights that its training began with, drawn by its config's seed."""
    if isinstance(model, Solver):
        return initial(model.config.replace(start=None))
    if isinstance(model, TrainedProgram):
        return programs.fresh(model.config, model.data)
    return initial(recipe("quickstart", n=n, T=T))


@torch.no_grad()
def untrained(of: Subject, fitting: Systems) -> Subject:
    """The subject before its training.

    The probe of an untrained solver is zero, so it is fitted to the solutions by least squares: what the architecture
    gives without learning. A program gives iterates as it is.
    """
    network = before_training(of.model, of.family.n, of.T)
    if isinstance(network, Solver):
        A, b = (value.to(network.positions) for value in fitting[:2])
        rows = network.features(A, b, of.T)[:, 1:].double().flatten(0, 1)
        wanted = fitting.x[:, None].expand(-1, of.T, -1).flatten(0, 1)
        ridge = 1e-6 * len(rows) * torch.eye(rows.shape[-1], dtype=rows.dtype)
        read_out = torch.linalg.solve(rows.mT @ rows + ridge, rows.mT @ wanted)  # (d, n)
        network.probe_x = Dense(read_out.mT.to(network.positions).contiguous())
    return subject(network, of.family, of.T).renamed(UNTRAINED)
