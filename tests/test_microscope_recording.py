"""nf.trace: what is recorded is what the model computes, by eq. (1), under names that are in the forward pass."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.errors import DTypeError, OptionError, ShapeError, UnknownNameError
from nlaformer.learn.methods import GuidedCG
from nlaformer.learn.model import initial
from nlaformer.learn.programs import initial as initial_program
from nlaformer.microscope.places import places, transformers

N = 4
SMALL = nf.recipe("quickstart", n=N, d=16, heads=2, T=3)


def solver(**options):
    """A solver with random weights; the probes of an untrained one are 0."""
    model, generator = initial(SMALL.replace(**options)), torch.Generator().manual_seed(1)
    for probe in (model.probe_x, model.probe_rd):
        probe.weight.data = torch.randn(probe.weight.shape, generator=generator)
    return model


@cache
def subject(kind: str):
    """A model and a run of it."""
    if kind == "operation":
        return nf.operation("matmul", n=N), {}
    if kind == "compiled":
        return nf.algorithm("cg", n=N, verify=False), {"iterations": 3}
    if kind == "compiled with a post block":
        return nf.algorithm("pagerank", n=N, verify=False), {"iterations": 2}
    if kind == "compiled, float32":
        return nf.algorithm("cg", n=N, verify=False, dtype="float32"), {"iterations": 3}
    if kind == "trained":
        return solver(), {}
    if kind == "trained, no shared layers":
        return solver(shared=False), {}
    if kind == "trained, prompt injected":
        return solver(inject=True, pre_layers=0, post_layers=0), {}
    program = initial_program(SMALL, GuidedCG())
    return (nf.compile(program, verify=False), {"iterations": 2}) if kind == "mixed" else (program, {"iterations": 3})


KINDS = ("operation", "compiled", "compiled, float32", "trained", "trained, no shared layers",
         "trained, prompt injected", "program", "mixed")  # fmt: skip


def systems(kind: str, count: int = 3):
    A, b, _ = nf.problems.SPD(n=N).sample(count, seed=5)
    dtype = torch.float32 if "float32" in kind else torch.float64
    return A.to(dtype), (A if kind == "operation" else b).to(dtype)


def ordinary(kind: str):
    """The result of the model's own run."""
    model, options = subject(kind)
    given = systems(kind)
    if kind == "operation":
        return model(*given)
    return model.iterates(*given, **options) if hasattr(model, "iterates") else model.run(*given, **options).x


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_run_has_the_results_of_an_ordinary_one_and_leaves_no_hook(kind: str):
    model, options = subject(kind)
    record = nf.trace(model, *systems(kind), **options)
    assert torch.equal(record.output, ordinary(kind))
    assert not any(place.point.watched for place in places(model))
    assert not any(transformer.observers for transformer in transformers(model).values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_gives_its_recorded_output_by_equation_1_in_numpy(kind: str):
    model, options = subject(kind)
    record = nf.trace(model, *(value.numpy() for value in systems(kind)), **options)
    single = record["*.input"].dtype == np.float32
    layers = 0
    for prefix, transformer in transformers(model).items():
        for name in (name for name in record if name.startswith(prefix) and name.endswith(".input")):
            where = name.removesuffix(".input")
            _check_layer(record, where, _layer(transformer, where.removeprefix(prefix)), 1e-5 if single else 1e-12)
            layers += 1
    assert layers > 0


def _layer(transformer, where: str):
    """The layer of a name such as loop[3].layer[0]."""
    block, layer = where.split(".")
    k = int(layer[6:-1])
    layers = getattr(transformer, block.split("[")[0])
    if transformer.unshared and block.startswith("loop"):
        k += int(block[5:-1]) * (len(layers) // transformer.unshared)
    return layers[k]


def _check_layer(record, where: str, layer, tolerance: float) -> None:
    """Attention and FFN in NumPy, float64, each from its recorded input, with the sum of their absolute terms."""
    wide = {part: record[f"{where}.{part}"].astype(np.float64) for part in ("input", "middle", "output")}
    weights = layer.dense()
    P, X = wide["input"], _normalized(wide["input"], layer, layer.gain_1)
    added, size = np.zeros_like(P), np.abs(P)
    for i, head in enumerate(weights["heads"]):
        W_Q, W_K, W_V = (head[name].detach().double().numpy() for name in ("W_Q", "W_K", "W_V"))
        scores = (W_K @ X).swapaxes(-1, -2) @ (W_Q @ X)  # (key, query), as in the paper
        if layer.causal:
            scores = np.where(np.tri(scores.shape[-1], k=-1) == 1, -np.inf, scores)
        S = np.exp(scores - scores.max(-2, keepdims=True))
        S = S / S.sum(-2, keepdims=True)
        seen = record.attention[where][..., i, :, :].swapaxes(-1, -2)
        assert np.abs(seen - S).max() <= tolerance * max(1.0, (np.abs(W_K @ X)).max() * np.abs(W_Q @ X).max())
        added, size = added + W_V @ X @ S, size + np.abs(W_V) @ np.abs(X) @ S
    if weights["heads"]:
        assert (np.abs(record[f"{where}.attention"] - added) <= tolerance * size).all(), where
    assert (np.abs(wide["middle"] - (P + added)) <= tolerance * size).all(), where
    U, X = wide["middle"], _normalized(wide["middle"], layer, layer.gain_2)
    if "W_1" in weights:
        W_1, b_1, W_2, b_2 = (weights[name].detach().double().numpy() for name in ("W_1", "b_1", "W_2", "b_2"))
        hidden = np.maximum(W_1 @ X + b_1[:, None], 0)
        terms = np.abs(W_1) @ np.abs(X) + np.abs(b_1)[:, None]
        assert (np.abs(record[f"{where}.ffn.hidden"] - hidden) <= tolerance * terms).all(), where
        added, size = W_2 @ hidden + b_2[:, None], np.abs(U) + np.abs(W_2) @ terms + np.abs(b_2)[:, None]
        assert (np.abs(record[f"{where}.ffn"] - added) <= tolerance * size).all(), where
        U = U + added
    assert (np.abs(wide["output"] - U) <= tolerance * (size + np.abs(U))).all(), where


def _normalized(X, layer, gain):
    if gain is None:
        return X
    rows = slice(*(layer.rows or (0, X.shape[-2])))
    eps = np.finfo(np.float32 if gain.dtype == torch.float32 else np.float64).eps
    part, result = X[..., rows, :], X.copy()
    root = np.sqrt((part**2).mean(-2, keepdims=True) + eps)
    result[..., rows, :] = part / root * gain.detach().double().numpy()[:, None]
    return result


def test_layers_follow_each_other_without_a_gap():
    model, options = subject("compiled")
    record = nf.trace(model, *systems("compiled"), **options)
    outputs, inputs = ([record[name] for name in record if name.endswith(end)] for end in (".output", ".input"))
    assert len(inputs) == len(model.model.pre) + 3 * len(model.model.loop)
    assert all(torch.equal(before, after) for before, after in zip(outputs, inputs[1:], strict=False))


def test_registers_iterates_probes_and_features_are_those_of_the_run():
    model, options = subject("compiled")
    given = systems("compiled")
    record, run = nf.trace(model, *given, **options), model.run(*given, **options)
    assert all(torch.equal(record.registers[name], value) for name, value in run.state.items())
    assert torch.equal(record.iterates, run.x)
    trained, _ = subject("trained")
    record = nf.trace(trained, *given)
    x, rd = trained(*(value.float() for value in given))
    assert record.features.shape == (3, 4, 16) and torch.equal(record.iterates, x.double())
    assert torch.equal(torch.cat([record.probes["r"], record.probes["d"]], -1), rd)
    last = [record[name][..., -1] for name in ("pre.layer[0].output", "loop[1].layer[0].output")]
    assert torch.equal(torch.stack(last, 1), record.features[:, [0, 2]])


def test_registers_are_names_like_all_others():
    for kind in ("compiled", "program", "mixed"):
        model, options = subject(kind)
        record = nf.trace(model, *systems(kind), **options)
        T = options["iterations"]
        names = {f"registers.{state}[{t}]" for state in record.registers for t in range(T + 1)}
        assert names == {name for name in record if name.startswith("registers.")}, kind
        assert torch.equal(record["registers.r[*]"], record.registers["r"])
        assert torch.equal(record["registers.r[1]"], record.registers["r"][:, 1])
        small = nf.trace(model, *systems(kind), keep="registers.r[1]", **options)
        assert small.names == ("registers.r[1]",) and torch.equal(small["registers.r[1]"], record["registers.r[1]"])
    with pytest.raises(UnknownNameError, match=r"registers\.r\[1\]"):
        small["registers.r[7]"]
    with pytest.raises(UnknownNameError, match=r"registers\.r\[2\]"):
        nf.trace(model, *systems(kind), keep="registers.r[9]", **options)


def test_leading_dimensions_and_the_kind_of_array_are_kept():
    model, options = subject("compiled")
    A, b = (value.numpy() for value in systems("compiled"))
    many = nf.trace(model, A.reshape(3, 1, N, N), np.stack([b, 2 * b], 1), **options)
    single = nf.trace(model, A[1], b[1], **options)
    name = "loop[2].layer[0].attention.weights"
    assert np.array_equal(nf.trace(model, A[1].tolist(), b[1].tolist(), **options)[name], single[name])
    assert isinstance(single[name], np.ndarray) and many[name].shape == (3, 2, *single[name].shape)
    assert np.allclose(many[name][1, 0], single[name], atol=1e-12)
    assert many["registers.r[2]"].shape == (3, 2, N) and single["registers.rho[2]"].shape == ()
    assert many["loop[*].layer[0].input"].shape == (3, 2, 3, *single["loop[0].layer[0].input"].shape)


def test_an_array_that_is_changed_leaves_the_recording_as_it_is():
    model, options = subject("compiled")
    record = nf.trace(model, *(value.numpy() for value in systems("compiled")), **options)
    record["loop[1].layer[0].output"][:] = 7.0
    assert not np.array_equal(record["loop[1].layer[1].input"], 7.0 + 0 * record["loop[1].layer[0].output"])
    assert not np.any(record["loop[1].layer[0].output"][..., -1, :] == 7.0)
    assert list(record.attention)[:2] == ["pre.layer[2]", "pre.layer[3]"]  # the first that have heads
    assert "pre.layer[2]" in record.attention and "pre.layer[0]" not in record.attention


def test_a_recording_is_read_like_a_dictionary():
    model, options = subject("compiled")
    record = nf.trace(model, *systems("compiled"), keep="loop[1]*", **options)
    assert list(dict(record)) == list(record.names) == [name for name, _ in record.items()]
    assert all(torch.equal(value, record[name]) for name, value in dict(record).items())


def test_intermediates_in_bfloat16_are_given_to_numpy_in_float32():
    model, given = solver().bfloat16(), [value.numpy() for value in systems("trained")]
    found, wide = (nf.trace(model, *arrays) for arrays in (given, systems("trained")))
    name = "loop[1].layer[0].output"
    assert found[name].dtype == np.float32 and np.array_equal(found[name], wide[name].float())


def test_a_compiled_layer_has_no_trace_of_the_points_and_the_same_result():
    layer, X = solver().blocks.loop[0], torch.ones(2, N + 1, 16)
    graphs: list[torch.fx.GraphModule] = []
    compiled = torch.compile(layer, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)
    assert torch.equal(compiled(X), layer(X)) and torch.equal(compiled(2 * X), layer(2 * X))
    (graph,) = graphs
    assert not any("point" in str(node.target).lower() or node.op == "call_module" for node in graph.graph.nodes)


def test_only_what_a_pattern_names_is_kept_and_its_memory_is_stated():
    model, options = subject("compiled")
    record = nf.trace(model, *systems("compiled"), keep=["loop[1].layer[1].ffn", "*.layer[3].output"], **options)
    assert record.names == ("pre.layer[3].output", "loop[0].layer[3].output", "loop[1].layer[1].ffn",
                            "loop[1].layer[3].output", "loop[2].layer[3].output")  # fmt: skip
    one = record["loop[1].layer[1].ffn"]
    assert record.memory == 5 * one.numel() * one.element_size()


def test_an_unknown_name_is_refused_with_those_near():
    model, options = subject("compiled")
    with pytest.raises(UnknownNameError, match=r"loop\[1\]\.layer\[0\]\.attention"):
        nf.trace(model, *systems("compiled"), keep="loop[1].layer[0].attntion", **options)
    record = nf.trace(model, *systems("compiled"), keep="loop*", **options)
    with pytest.raises(UnknownNameError, match=r"loop\[2\]"):
        record["loop[3].layer[0].attention"]
    with pytest.raises(UnknownNameError, match="rho"):
        record.registers["rh"]
    with pytest.raises(UnknownNameError):
        record[3]
    with pytest.raises(UnknownNameError, match="probe"):
        nf.trace(subject("trained")[0], *systems("trained"), keep=[]).registers["r"]
    for keep in (3, None, [3]):
        with pytest.raises(OptionError):
            nf.trace(model, *systems("compiled"), keep=keep, **options)


def test_arrays_that_a_run_does_not_take_are_refused():
    A, b = systems("compiled")
    for kind in ("compiled", "program"):
        with pytest.raises(ShapeError):
            nf.trace(subject(kind)[0], A, b, b, b)
    with pytest.raises(OptionError):
        nf.trace(subject("trained")[0], A, b, normalize="no")
    transformer = subject("operation")[0].model
    with pytest.raises(ShapeError):
        nf.trace(transformer, A)
    with pytest.raises(DTypeError):
        nf.trace(transformer, A * 1j)


def test_a_recording_beyond_the_memory_is_refused_before_it_runs(monkeypatch):
    monkeypatch.setattr("nlaformer.arrays.memory", lambda device: 1e5)
    model, options = subject("compiled")
    with pytest.raises(OptionError, match="keep="):
        nf.trace(model, *systems("compiled"), **options)
    assert len(nf.trace(model, *systems("compiled"), keep="loop[0].layer[0].input", **options)) == 1


def test_the_post_block_of_an_algorithm_is_recorded_after_every_number_of_passes():
    model = nf.compile(_Doubled(), n=2, verify=False)
    assert len(model.model.post)
    A, b = np.eye(2), np.ones(2)
    record = nf.trace(model, A, b, iterations=2, keep="post*.output")
    posts = {name.split(".")[0] for name in record}
    assert posts == {"post[0]", "post[1]", "post[2]"}


class _Doubled(nf.Program):
    def start(self, x0):
        return dict(x=x0)

    def step(self, A, b, x):
        return dict(x=x + 0.5 * (b - A @ x))

    def finish(self, A, x):
        return A @ x


def test_a_transformer_of_ones_own_is_recorded_from_p():
    op, _ = subject("operation")
    P = op.prompt(*(value.numpy() for value in systems("operation")))
    record = nf.trace(op.model, P)
    assert np.array_equal(op.read(record.output), op(*(value.numpy() for value in systems("operation"))))
    with pytest.raises(OptionError, match="load"):
        nf.trace(torch.nn.Linear(2, 2), P)


def test_a_batch_of_starts_alone_is_a_batch():
    (model, _), (A, b) = subject("program"), systems("program")
    x0 = torch.stack([torch.full((N,), k, dtype=torch.float64) for k in (0.0, 1.0, 2.0)])
    record = nf.trace(model, A[0], b[0], x0=x0, iterations=2)
    name = next(name for name in record.names if "loop[1].layer[0].input" in name)
    single = nf.trace(model, A[0], b[0], x0=x0[1], iterations=2)
    assert record[name].shape[0] == 3 and torch.allclose(record[name][1], single[name], atol=1e-5)


def test_more_names_than_can_be_told_are_refused_before_they_are_made():
    with pytest.raises(OptionError):
        nf.trace(subject("compiled")[0], *systems("compiled"), iterations=10**9)
