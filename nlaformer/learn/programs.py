"""A program whose learned parts are filled in, as a model: it trains, runs, solves, is saved and loaded.

The model holds its program as data (``program/data.py``) and a network for each learned part
(``learn/parts.py``). Loading it imports nothing of the user's. Around the networks everything is computed in float64.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nlaformer import io
from nlaformer.arrays import ArrayT, all_finite, full_precision, give, kind_of, threads_for, to_tensor, whole
from nlaformer.compiler.filled import FilledProgram
from nlaformer.compiler.machine.networks import Network
from nlaformer.compiler.weights import refuse_unknown_units
from nlaformer.errors import DomainError, DTypeError, FileError, OptionError, ShapeError, UnfamiliarWarning
from nlaformer.learn.config import Config
from nlaformer.learn.model import differing
from nlaformer.learn.panels import Shown, facts
from nlaformer.learn.parts import PartNetwork
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.earlier import read_earlier
from nlaformer.program.inputs import padded, size_of
from nlaformer.program.language import Program
from nlaformer.program.learned import Learned, factors, low_rank
from nlaformer.program.run import Run, array_library, run_graph, take_any_size
from nlaformer.program.sizes import fits_others, resized
from nlaformer.program.tensors import size
from nlaformer.program.trace import trace
from nlaformer.transformer import NLAFormer


class SavedProgram:
    """The program of a model as its file holds it, and its graphs, one for each number of unknowns."""

    def __init__(self, saved: Mapping[str, Any]):
        self.saved = saved
        self._graphs: dict[int, ProgramGraph] = {}

    def graph(self, n: int) -> ProgramGraph:
        """The program for n unknowns; ShapeError where its lines are for another number."""
        if n not in self._graphs:
            self._graphs[n] = graph = self._made(n)
            _ = graph.values, graph.first_values, graph.next_values, graph.last_values  # before torch.compile asks
        return self._graphs[n]

    def _made(self, n: int) -> ProgramGraph:
        if "nodes" not in self.saved:  # written by version 0.3, for any size
            return read_earlier(self.saved, n)
        own = ProgramGraph.read(self.saved)
        if n != own.n and not self.saved.get("fits others", False):
            raise ShapeError(f"{own.name} computes with its {own.n} unknowns; given a system of {n} unknowns")
        return resized(own, n)

    def __deepcopy__(self, memo: Any) -> SavedProgram:
        return self


class TrainedProgram(Shown, nn.Module):
    """A program with its learned parts filled in, or a stack of E of them: every weight then leads with an axis E.

    Calling the model gives the iterates of a batch with gradients, for training; ``run`` and ``iterates`` take arrays
    of any kind.

    Examples
    --------
    >>> import nlaformer as nf
    >>> from nlaformer import problems
    >>> from nlaformer.learn.methods import GuidedCG
    >>> model = initial(nf.recipe("quickstart"), GuidedCG())  # untrained: any direction will do
    >>> A, b, x = problems.SPD(n=8).sample(5, seed=1)
    >>> run = model.run(A, b, iterations=6)
    >>> run.x.shape, run.state["r"].shape
    (torch.Size([5, 7, 8]), torch.Size([5, 7, 8]))
    """

    def __init__(self, config: Config, data: SavedProgram, networks: dict[str, PartNetwork]):
        super().__init__()
        self.config, self.data = config, data
        self.program = data.graph(config.n)
        self.networks = nn.ModuleDict(networks)
        # Each is given the number of steps taken and the values there, and gives those states that it changes.
        self.interventions: list[Callable[[int, Mapping[str, Tensor]], dict[str, Tensor]]] = []

    @property
    def stacked(self) -> int:
        """E, or 0 for one model without the leading axis."""
        positions = next(iter(self._parts.values())).positions
        return positions.shape[0] if positions.dim() == 3 else 0

    @property
    def _shown(self) -> tuple[str, dict[str, str]]:
        title = f"Stack of {self.stacked} programs" if self.stacked else "Program"
        parts = "; ".join(f"{part.name}: {part.gives} in {part.method}" for part in self.program.parts)
        told = facts(self.config, sum(parameter.numel() for parameter in self.parameters()))
        return f"{title} {self.program.name}", told | {"learned parts": parts}

    @property
    def _parts(self) -> dict[str, PartNetwork]:
        return dict(self.networks.items())  # type: ignore[arg-type]

    def graph(self, n: int) -> ProgramGraph:
        """Its program as data for systems of size n, whose learned parts are left open; see ``nf.Program.graph``."""
        return self.data.graph(n)

    def _graph_of(self, inputs: Mapping[str, Tensor]) -> ProgramGraph:
        return self.graph(size_of(inputs, self.program.kinds) or 1)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, A: Tensor, b: Tensor, x0: Tensor | None = None, iterations: int | None = None) -> Tensor:
        """The iterates x_0, ..., x_T in float64, (..., T+1, n), with gradients.

        A (..., n, n), b and x0 (..., n); a stack takes systems with a leading axis E.
        """
        given = {"A": A.double(), "b": b.double()}
        given["x0"] = torch.zeros_like(given["b"]) if x0 is None else x0.double()
        inputs = {name: given[name] for name in self.program.inputs}
        count = self.config.T if iterations is None else whole("iterations", iterations, 0)
        return torch.stack([values[ANSWER] for values in self._iterate(inputs, count)], -2)

    def _iterate(self, inputs: Mapping[str, Tensor], iterations: int) -> Iterator[dict[str, Tensor]]:
        """The values of the program, its parts filled in, after its start and after each of its steps."""
        yield (values := self._changed(0, inputs, self.first(inputs)))
        for t in range(1, iterations + 1):
            yield (values := self._changed(t, inputs, self.next(inputs, self.program.carried(values))))

    def _changed(self, t: int, inputs: Mapping[str, Tensor], values: dict[str, Tensor]) -> dict[str, Tensor]:
        for change in self.interventions:
            values = values | change(t, values)
            values |= self._graph_of(inputs).last_values({**inputs, **values})
        return values

    def first(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every state after the program's start, and its answer."""
        parts = self._parts.items()
        open_parts = {k: p.start if p.part.method == "start" else p.first for k, p in parts}
        return self._graph_of(inputs).first(inputs, open_parts)

    def next(self, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same after one more step. This is the function to compile: all steps are alike."""
        parts = self._parts.items()
        open_parts = {k: p.step for k, p in parts if p.part.method == "step"}
        return self._graph_of(inputs).next(inputs, states, open_parts)

    @torch.no_grad()
    @full_precision()
    def run(
        self,
        A: ArrayT | None = None,
        b: ArrayT | None = None,
        x0: ArrayT | None = None,
        iterations: int | None = None,
        **further: ArrayT,
    ) -> Run[ArrayT]:
        """Every iterate, every state, the residuals and how the run ended, as from a compiled algorithm.

        Parameters
        ----------
        A, b, x0 : arrays (..., n, n), (..., n), (..., n) of at most the n of the config; NumPy in, NumPy out; torch in,
            torch out. x0 is 0 by default
        iterations : steps; by default as many as in training
        further : the program's further inputs, by name
        """
        self._refuse_stack("run")
        count = self.config.T if iterations is None else iterations
        given = {"A": A, "b": b, "x0": x0} | further
        inputs = self.inputs(given)
        with threads_for(inputs["A"].shape[:-2].numel() * (self.config.n + 1) * self.config.d):
            library = array_library(*given.values())
            return run_graph(self._graph_of(inputs), inputs, count, library, self._iterate, self._pieces)

    def inputs(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """The inputs of a run by name, in float64 and of one batch shape; rectangular ones are padded with zeros."""
        name, kinds = self.program.name, self.program.kinds
        n = size_of(given, kinds)
        if n is not None:
            self.graph(n)  # refuses a size that its lines do not fit
        square = padded(name, given, kinds, n, self.program.rectangular)
        return take_any_size(name, kinds, square, torch.float64, self.device)

    def _pieces(self, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
        """A batch in pieces of as many systems as should run at once."""
        blocks = next(iter(self._parts.values())).blocks
        return blocks.pieces(self.config.d, self.config.n + 1, *tensors)

    def filled(self) -> FilledProgram:
        """The program and its networks, in float64, as ``nf.compile`` takes them."""
        self._refuse_stack("compiled form")
        double = copy.deepcopy(self).cpu().double().requires_grad_(False)
        networks = {
            name: Network(net.part, list(net.blocks.pre), list(net.blocks.loop), net.weights)  # type: ignore[arg-type]
            for name, net in double._parts.items()
        }
        return FilledProgram(self.program, networks, double.run)

    def iterates(self, A: ArrayT, b: ArrayT, iterations: int | None = None) -> ArrayT:
        """The iterates x_0, ..., x_T alone: (..., T+1, n)."""
        return self.run(A, b, iterations=iterations).x

    # For solvers that carry out the method themselves.

    @cached_property
    def role(self) -> str:
        """What this program gives a solver: "directions", a "preconditioner", or, if neither, nothing.

        Directions are what a part gives that is given r / |r|, the direction of the residual, and nothing else.
        """
        if len(self.program.parts) != 1 or self.program.parts[0].dimensionless:  # the program scales it in its own way
            return ""
        (part,) = self.program.parts
        if part.method == "start":
            return "preconditioner" if part.rank and not part.inputs else ""
        asked = (part.rank or part.is_vector) and part.inputs == ["vector"]
        return "directions" if asked and _is_given_the_residual(self.program) else ""

    @property
    def coarse(self) -> bool:
        """Whether a part of it writes the columns of M, not those of its inverse."""
        return any(network.part.coarse for network in self._parts.values())

    @torch.no_grad()
    def begin(self, A: Tensor) -> Tensor:
        """The memory of the part that speaks in every loop, for matrices (..., n, n)."""
        return self._only("step").begin(self._matrices(A))

    @torch.no_grad()
    def propose(self, A: Tensor, memory: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """A direction for the residual r (..., n) of systems with A, in float64, and the next memory.

        It is what the part gives, a vector, or M r.
        """
        network, part = self._only("step"), self._only("step").part
        if self.role != "directions":
            raise OptionError(
                f"propose needs a part that is given A and r / |r| and gives a direction; {part.name} is given A and "
                f"{', '.join(part.inputs) or 'nothing else'}, and gives {part.gives}"
            )
        A, r, batch = self._matrices(A), to_tensor("r", r), A.shape[:-2]
        for name, value, own in (("r", r, A.shape[-1:]), ("memory", memory, (self.config.n + 1, self.config.d))):
            if value.shape != (*batch, *own) or value.is_complex():
                raise ShapeError(
                    f"{name} is {value.dtype} of shape {tuple(value.shape)} for A {tuple(A.shape)}; expected real "
                    f"numbers of shape {(*batch, *own)}"
                )
        r = r.double()
        norm = size(r, 1)[..., None]
        unit = torch.where(norm > 0, r / norm, 0.0)
        said = network.step(A, unit, memory)
        after = said.pop("memory")
        if not part.rank:
            return said["value"], after if part.memory else memory
        D, U = _usable(factors(part, said, A.diagonal(dim1=-2, dim2=-1)))
        return low_rank(part.coarse, D, *U.unbind(-1)) @ unit, after if part.memory else memory

    @torch.no_grad()
    def preconditioner(self, A: ArrayT) -> tuple[ArrayT, ArrayT]:
        """D (..., n) and U (..., n, k) in float64, with M^-1 = diag(1/D) + U U^T; D is positive, and so is M.

        Of a part that gives "diagonal + coarse k" it is M = diag(D) + U U^T; ``coarse`` says which.

        Arrays of the kind of A, (..., n, n). A matrix whose diagonal is not positive is not positive definite; it gets
        M = 1, with an UnfamiliarWarning.
        """
        matrices = self._matrices(A).to(self.device)
        if not all_finite(matrices):
            raise DomainError("A holds NaN or infinity; every entry must be finite")
        if bool((matrices.diagonal(dim1=-2, dim2=-1) <= 0).any()):
            message = "A has entries on its diagonal that are not positive: it is not positive definite, and gets M = 1"
            warnings.warn(message, UnfamiliarWarning, stacklevel=3)  # above the decorator
        network = self._only("start")
        if self.role != "preconditioner":
            raise OptionError(
                f"{self.program.name} has no part that writes a preconditioner from A alone; {network.part.name} is "
                f"given {', '.join(['A', *network.part.inputs])} and gives {network.part.gives!r}"
            )
        D, U = _usable(factors(network.part, network.start(matrices), matrices.diagonal(dim1=-2, dim2=-1)))
        return give(D, kind_of(A)), give(U, kind_of(A))

    def _matrices(self, A: Any) -> Tensor:
        """Real square matrices of at most the n of the config, in float64."""
        matrices, largest = to_tensor("A", A), self.config.n
        if matrices.is_complex():
            raise DTypeError("A is complex; expected real matrices")
        shape = tuple(matrices.shape)
        if len(shape) < 2 or shape[-1] != shape[-2] or not 0 < shape[-1] <= largest:
            raise ShapeError(f"A has shape {shape}; expected square matrices (..., n, n), n from 1 to {largest}")
        return matrices.double()

    def _only(self, method: str) -> PartNetwork:
        """The part in a method of the program, if there is one such part."""
        self._refuse_stack("begin, propose and preconditioner")
        found = [network for network in self._parts.values() if network.part.method == method]
        if len(found) != 1:
            raise OptionError(f"{self.program.name} has {len(found)} learned parts in {method}; this needs one")
        return found[0]

    def _refuse_stack(self, what: str) -> None:
        if self.stacked:
            raise OptionError(f"a stack has no {what} of its own; take one of its models with member(model, k)")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``config.json`` and ``model.safetensors`` into a folder; ``nf.load`` reads them.

        ``model.bfloat16().save(folder)`` takes half the room; a loaded model computes in float32 again.
        """
        if self.stacked:
            raise OptionError("a stack is saved model by model; take one with member(model, k)")
        networks = self._parts
        pre, loop = (
            [layer for network in networks.values() for layer in getattr(network.blocks, block)]
            for block in ("pre", "loop")
        )
        extra = {f"{name}.{key}": value for name, net in networks.items() for key, value in net.weights.items()}
        config = {"config": self.config.to_json(), "program": self.data.saved}
        return io.save(path, "program", NLAFormer(pre, loop), config, extra)


def _usable(found: list[Tensor]) -> tuple[Tensor, Tensor]:
    """D and U; 1 and 0 where the diagonal of A was not positive."""
    D, *columns = found
    usable = ((D > 0) & D.isfinite()).all(-1, keepdim=True)
    return torch.where(usable, D, 1.0), torch.where(usable[..., None], torch.stack(columns, -1), 0.0)


def _is_given_the_residual(program: ProgramGraph) -> bool:
    """Whether its one part, in step, is given r / |r| with r = b - A x: so it is in two steps on a random system."""
    (part,), draw = program.parts, partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    n = program.n
    B, b, x0 = draw(n, n), draw(n), draw(n)
    known, given = {"A": B @ B.mT, "b": b, "x0": x0}, []

    def speak(A: Tensor, value: Tensor, memory: Tensor) -> dict[str, Tensor]:
        given.append(value)
        return {output: draw(n) for output in part.outputs} | {"memory": memory}

    if not {"A", "b"} <= program.inputs.keys() <= known.keys():
        return False
    inputs = {name: known[name] for name in program.inputs}
    values = program.first(inputs, {part.name: lambda A: {"memory": A}})
    for _ in range(2):
        r = b - known["A"] @ values[ANSWER]
        values = program.next(inputs, program.carried(values), {part.name: speak})
        if not torch.allclose(given[-1], r / size(r, 1)):
            return False
    return True


def initial(config: Config, program: Program) -> TrainedProgram:
    """The model of a program before training, in the sizes of a config; weights are drawn on the CPU.

    A program that cannot be traced, has no learned part, or gives one a value with a unit is refused, and so are
    constants of another size than n.
    """
    graph = trace(program, config.n)
    parts = [part.name for part in graph.parts]
    declared = [name for name, value in (vars(type(program)) | vars(program)).items() if isinstance(value, Learned)]
    if unused := [name for name in declared if name not in parts]:
        raise OptionError(
            f"{program.name} never calls its learned part {unused[0]}; call it in start or step, or omit it"
        )
    if not parts:
        raise OptionError(f"{program.name} has no learned part, so there is nothing to train; see nf.Learned")
    if taken := [name for name in parts if hasattr(nn.ModuleDict(), name)]:
        raise OptionError(
            f"{program.name}: a learned part cannot be called {taken[0]}, a name of torch's own where networks are "
            f"kept; write another, such as propose_{taken[0]} = nf.Learned(...)"
        )
    refuse_unknown_units(graph)
    return fresh(config, SavedProgram(graph.data() | {"fits others": fits_others(program, graph)}))


def fresh(config: Config, data: SavedProgram) -> TrainedProgram:
    """The model of a program before training; the weights of its networks are drawn by the seed of the config."""
    generator = torch.Generator().manual_seed(config.seed)
    parts = data.graph(config.n).parts
    return TrainedProgram(config, data, {part.name: PartNetwork.initial(part, config, generator) for part in parts})


def from_config(config: dict[str, Any], model: NLAFormer, **weights: Tensor) -> TrainedProgram:
    """The model that ``save`` wrote; weights of other shapes than the config gives are refused."""
    known = Config.from_json(config["config"], weights).validate(sources=False)
    data = SavedProgram(config["program"])
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in (*model.parameters(), *weights.values())):
        # Fewer digits save room in a file; what is computed from them is computed in float32.
        model, weights = model.float(), {name: value.float() for name, value in weights.items()}
    networks, pre, loop = {}, iter(model.pre), iter(model.loop)
    for part in data.graph(known.n).parts:
        loops = known.loop_layers if part.method == "step" else 0
        layers: Any = [list(islice(block, count)) for block, count in ((pre, known.pre_layers), (loop, loops))]
        prefix = f"{part.name}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        networks[part.name] = PartNetwork(part, known.n, NLAFormer(*layers), own)
    if unread := [*pre, *loop]:
        raise FileError(f"the file holds {len(unread)} layers more than its config names")
    found = TrainedProgram(known, data, networks)
    with torch.device("meta"):  # shapes alone
        expected = fresh(known, data)
    if others := differing(found, expected):
        raise FileError(f"the saved weights are not those of the config: {', '.join(others[:3])}")
    return found
