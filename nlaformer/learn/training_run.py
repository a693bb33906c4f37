"""The outcome of training one model, from the files of its folder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nlaformer.errors import FileError
from nlaformer.learn.checkpoint import read_manifest, read_metrics
from nlaformer.learn.config import Config
from nlaformer.learn.models import Model, load_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TrainingRun:
    """The outcome of training one model."""

    folder: Path
    config: Config
    model: Model
    steps: int
    diverged: bool
    """The loss or its gradient stopped being finite; the weights are those of before."""

    @classmethod
    def read(cls, folder: Path, config: Config) -> TrainingRun:
        """The outcome of a run from its folder."""
        manifest = read_manifest(folder)
        return cls(folder, config, load_model(folder), manifest["steps"], manifest["state"] == "diverged")

    @property
    def solver(self) -> Model:
        """``model``, under its name of version 0.2."""
        return self.model

    def __repr__(self) -> str:
        return f"<TrainingRun {self.finding}; {self.folder}>"

    @property
    def finding(self) -> str:
        """The validation error of the last iterate before and after, from the metrics in the folder."""
        errors = [last for _, (*_, last) in self._validations]
        change = f": {self._measure} at t = {self.config.T} from {errors[0]:.2g} to {errors[-1]:.2g}" if errors else ""
        return f"{self.config.recipe}{change} in {self.steps:,} steps" + ", diverged" * self.diverged

    def plot(self) -> Figure:
        """Draw the loss over the steps and the error of every iterate, from the metrics in the folder.

        Returns
        -------
        matplotlib.figure.Figure : notebooks show it, ``savefig`` writes it
        """
        from nlaformer.report.curves import training_figure

        lines = [line for line in read_metrics(self.folder) if line.get("loss") is not None]
        if not lines and not self._validations:
            raise FileError(
                f"there are no metrics in {self.folder} to draw; a run writes them into metrics.jsonl there"
            )
        loss = [line["step"] for line in lines], [line["loss"] for line in lines]
        return training_figure(loss, self._validations, self.finding, self._measure)

    def _repr_html_(self) -> str:
        from nlaformer.report.html import panel, rows, spark

        told = {"folder": str(self.folder), "steps": f"{self.steps:,} of {self.config.steps:,}"}
        curve = spark([errors[-1] for _, errors in self._validations], "validation error of the last iterate, by step")
        return panel(f"Training run {self.finding}", rows(told), curve)

    @property
    def _measure(self) -> str:
        return self.config.make_family().measure

    @property
    def _validations(self) -> list[tuple[int, list[float]]]:
        """The steps at which the model was validated, and the mean error of every iterate there."""
        found = [(line["step"], line["validation"]) for line in read_metrics(self.folder) if "validation" in line]
        return [
            (step, [math.nan if value is None else value for value in measured["squared_relative_error"]])
            for step, measured in found
        ]
