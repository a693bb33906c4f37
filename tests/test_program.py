"""The room program/: what a program computes as data is what its own lines compute on NumPy's arrays."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import record
from nlaformer.compiler.verify import Lines
from nlaformer.errors import CompileError, FileError, ShapeError
from nlaformer.learn.methods import METHODS
from nlaformer.program import primitives
from nlaformer.program.core import core
from nlaformer.program.data import ANSWER, ProgramGraph
from nlaformer.program.earlier import read_earlier
from nlaformer.program.expression import Expression
from nlaformer.program.ir import Graph, reachable
from nlaformer.program.primitives import CORE, PRIMITIVES, apply
from nlaformer.program.sizes import fits_others, resized
from tests import expressions, refused, textbook
from tests.systems import mixed_signs

# --- how far two computations are apart ---


def tensors_of(given, graph):
    return {name: torch.as_tensor(value) for name, value in given.items() if name in graph.inputs}


def answers(graph, given, iterations=0):
    return [values[ANSWER].numpy() for values in graph.iterate(tensors_of(given, graph), iterations)]


def in_json(graph):
    return ProgramGraph.read(json.loads(json.dumps(graph.data())))


def assert_computes(graph, given, wanted, iterations=0):
    """The graph, what JSON keeps of it, and its core, which may lose digits."""
    for made, tolerance in ((graph, 1e-11), (in_json(graph), 1e-11), (core(graph)[0], 1e-8)):
        found = np.array(answers(made, given, iterations))
        assert found.shape == np.shape(wanted)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def message_of(program, n=4):
    with pytest.raises(CompileError) as refusal:
        program.graph(n)
    return str(refusal.value)


# --- what is taken ---


@pytest.mark.parametrize("name", nf.algorithms())
def test_a_library_program_computes_what_its_lines_do_on_numpys_arrays(name):
    entry, n = record(name), 5
    program = entry.program()
    graph = program.graph(n)
    given = tensors_of({"x0": np.zeros((3, n))} | entry.problems(n, 3, 11)[0], graph)
    wanted = Lines.of(program, graph, {name: value.numpy() for name, value in given.items()}, 2)
    known = torch.arange(3) < wanted.lost[:, None]
    assert known[:, :2].all()
    for made, tolerance in ((graph, 1e-11), (in_json(graph), 1e-11), (core(graph)[0], 1e-8)):
        for t, found in enumerate(made.iterate(given, 2)):
            for state, value in wanted.values.items():
                lines = value[known[:, t], t]
                difference = found[state][known[:, t]] - lines
                assert (difference.abs() <= tolerance * value[:, : t + 1].nan_to_num().abs().max()).all(), state


TABLE = {**expressions.UFUNCS, **expressions.FUNCTIONS_OF_NUMPY, **expressions.ARITHMETIC} | {
    lines.__name__: lines for lines in (*expressions.CHANGED, *expressions.FILLED)
}


@pytest.mark.parametrize("name", TABLE)
def test_lines_compute_what_numpy_does(name):
    A, b = mixed_signs(expressions.N)
    wanted = TABLE[name](A.copy(), b.copy(), 0.5 * b + 0.25)
    assert_computes(expressions.program_of(TABLE[name]).graph(expressions.N), dict(A=A, b=b), [wanted])


@pytest.mark.parametrize("name", expressions.IN_TORCH)
def test_lines_compute_what_torch_does(name):
    A, b = map(torch.tensor, mixed_signs(expressions.N))
    graph = expressions.program_of(expressions.IN_TORCH[name]).graph(expressions.N)
    assert graph.uses_torch
    assert_computes(graph, dict(A=A, b=b), [expressions.IN_TORCH[name](A, b, 0.5 * b + 0.25).numpy()])


@pytest.mark.parametrize("kind", textbook.PROGRAMS)
def test_a_textbook_program_computes_what_numpy_does(kind):
    rng, n, program = np.random.default_rng(0), 4, kind()
    M = rng.standard_normal((n, n))
    given = {"A": M @ M.T / n + np.eye(n), "b": rng.standard_normal(n), "x0": np.full(n, 0.5)}
    assert_computes(program.graph(n), given, textbook.on_arrays(program, given, 4), 4)


def sizes_beside_each_other(A, b, x):
    H, e = np.zeros((3, 2)), np.array([1.0, 0.0])
    for i, j in itertools.product(range(3), range(2)):
        H[i, j] = A[i] @ A[j]
    return H @ e @ H @ np.linalg.norm(H, axis=0, keepdims=True).T * x


def masked(A, b, x):
    y = x.copy()
    y[x > b] = 0.5
    y[((x < 0) & (b < 1)) | ~(x <= 2)] = -2.0
    return y * (x != b) + np.any(x > b) * b + np.all(x > -9) * x


def softmax_of_rows(A, b, x):
    W = np.exp(A - A.max(axis=1, keepdims=True))
    return W / W.sum(axis=1, keepdims=True) @ x


def read_after_write(A, b, x):
    column, corner = A[:, [1]], A[1:3, 1:3]
    A[:, 1] = b
    corner += np.eye(2)
    np.fill_diagonal(A, x)
    A.T[0] = x[::-1]
    return A @ x + column[:, 0] + np.diagonal(corner) @ [1.0, 2.0]


NEW = {
    "np.where": lambda A, b, x: np.where(x > b / 2, x, A @ x) + np.where(A > 0, A, 0.0) @ b,
    "np.where, broadcast": lambda A, b, x: np.where(x[:, None] > b[None, :], A, b) @ x,
    "np.where of a known condition": lambda A, b, x: np.where(np.arange(5) > 2, x, b) + np.where([True] * 5, 1.0, x),
    "np.where of what has no value": lambda A, b, x: np.where(x > 0.2, np.log(np.maximum(x, 1e-300)), 0.0),
    "new axes": lambda A, b, x: (x[:, None] * A + b[None, :] / (1 + x[:, np.newaxis] ** 2)) @ x,
    "outer differences": lambda A, b, x: np.abs(x[:, None] - b).sum(axis=1) + np.subtract.outer(x, b)[0],
    "kept axes": lambda A, b, x: (A - A.mean(axis=1, keepdims=True)) @ x + (A / np.sum(A, 0, keepdims=True))[0],
    "waves": lambda A, b, x: np.sin(3 * x) + np.cos(40 * b) + np.sin(A) @ x + np.tan(x / 2) + np.cos(b - x),
    "arctan": lambda A, b, x: np.arctan(3 * x) + np.arctan(50 * b) + np.arctan(1e-9 * b),
    "comparisons": lambda A, b, x: (x > 0) * b + (x >= b) + (b == b) * (x != 0.25) - 1.0 * (x < b[0]) * (x <= x),
    "three dimensions": lambda A, b, x: np.moveaxis(np.stack([A, A.T, 2 * A]), 0, -1)[:, :, 1] @ x,
    "blocks": lambda A, b, x: np.block([[A[:2, :2], np.zeros((2, 3))], [A[2:, :]]]) @ x,
    "paddings": lambda A, b, x: np.pad(x[1:-1], 1) + np.pad(b[:4], (0, 1), mode="edge") + np.insert(b[1:], 2, x[0]),
    "splits": lambda A, b, x: np.concatenate([*np.split(x[:4], 2)[::-1], b[:1]]) + np.broadcast_to(b[0], 5),
    "turned": lambda A, b, x: (np.rot90(A) + np.fliplr(A) + np.flipud(A.T) + np.swapaxes(A, 0, 1)) @ x,
    "convolutions": lambda A, b, x: np.convolve(x, b[:3], "same") + np.convolve(x[:3], [1.0, 2.0, 0.5]),
    "products of entries": lambda A, b, x: np.prod(x) * b + np.cumprod(x) + np.prod(A, axis=0) + np.cumsum(A, 1)[:, 2],
    "Kronecker products": lambda A, b, x: np.kron(A[:2, :2], A[1:3, 1:3])[0, 1] * x + np.kron(x[:1], b),
    "signs": lambda A, b, x: np.copysign(b, x) + np.heaviside(x - x[0], 0.25) + np.ptp(x) * b,
    "other differences": lambda A, b, x: np.append(np.diff(x, 2), b[:2]) + np.diff(A, axis=0)[1],
    "constants of other sizes": lambda A, b, x: A[:, :3] @ np.array([1.0, 2.0, 3.0]) + np.ones((5, 2)) @ x[:2],
    "constants that NumPy computes with": lambda A, b, x: np.linalg.inv(2.0 * np.eye(5)) @ x + float(np.ones(3)[1]),
} | {f.__name__: f for f in (sizes_beside_each_other, masked, softmax_of_rows, read_after_write)}


@pytest.mark.parametrize("name", NEW)
def test_what_is_newly_taken_computes_what_numpy_does(name):
    A, b = mixed_signs(expressions.N)
    wanted = np.asarray(NEW[name](A.copy(), b.copy(), 0.5 * b + 0.25), dtype=float)
    assert_computes(expressions.program_of(NEW[name]).graph(expressions.N), dict(A=A, b=b), [wanted])


@pytest.mark.parametrize("name", ["np.where", "new axes", "waves", "masked", "sizes_beside_each_other"])
def test_what_is_newly_taken_compiles_and_is_saved_with_its_checks(name, tmp_path):
    A, b = mixed_signs(expressions.N)
    algorithm = nf.compile(expressions.program_of(NEW[name]), n=expressions.N)
    algorithm.save(tmp_path / "saved")
    run, again = (each.run(A, b, iterations=0) for each in (algorithm, nf.load(tmp_path / "saved")))
    wanted = NEW[name](A.copy(), b.copy(), 0.5 * b + 0.25)
    np.testing.assert_allclose(run.x[0], wanted, rtol=1e-8, atol=1e-9)
    assert np.array_equal(run.x, again.x) and run.status == again.status != nf.RunStatus.INACCURATE


def test_states_may_have_other_sizes():
    class Pairs(nf.Program):
        def start(self, b):
            return dict(x=b, Q=np.zeros((3, 2)), last=b[:2])

        def step(self, x, Q, last):
            Q[:, 0], Q[:, 1] = x[:3], x[1:4]
            return dict(x=np.append(Q @ last, x[0]), Q=Q, last=last[::-1] + Q[0])

    graph = Pairs().graph(4)
    assert graph.step["Q"].shape == (3, 2)
    given = {"b": np.random.default_rng(0).standard_normal(4)}
    program = Pairs()
    state, wanted = program.start(given["b"]), [given["b"]]
    for _ in range(3):
        state = program.step(**{name: np.array(value) for name, value in state.items()})
        wanted.append(state["x"])
    assert_computes(graph, given, np.array(wanted), 3)


@pytest.mark.parametrize("name", METHODS)
def test_a_program_with_learned_parts_is_made_anew_for_another_size(name):
    n, program = 6, METHODS[name]()
    assert fits_others(program, program.graph(9))
    graph, other_size = program.graph(n), resized(program.graph(9), n)
    assert in_json(graph).data() == graph.data()
    rng = np.random.default_rng(0)
    M = rng.standard_normal((2, n, n))
    drawn = {"A": M @ M.mT + np.eye(n), "b": rng.standard_normal((2, n)), "x0": rng.standard_normal((2, n))}
    for other in graph.inputs.keys() - drawn.keys():
        drawn[other] = rng.standard_normal((2, *graph.inputs[other].shape))

    def filled(part):
        said = {output: rng.standard_normal((2, n) if kind == "vector" else 2) for output, kind in part.outputs.items()}
        return lambda *given: {k: torch.tensor(v) for k, v in said.items()} | {"memory": given[0][..., 0]}

    parts, inputs = {part.name: filled(part) for part in graph.parts}, tensors_of(drawn, graph)
    found, wanted = graph.first(inputs, parts), other_size.first(inputs, parts)
    for _ in range(3):
        for state in wanted:
            torch.testing.assert_close(found[state], wanted[state], rtol=1e-12, atol=1e-14)
        found = graph.next(inputs, graph.carried(found), parts)
        wanted = other_size.next(inputs, other_size.carried(wanted), parts)
    assert len(graph.promises) == len(other_size.promises)


class Shares(nf.Program):
    """What it computes with its size, or takes from a place that only one size has, is not for another."""

    def __init__(self, share):
        self.share = share

    def start(self, A, b):
        return dict(x=self.share(A, b) * b)

    def step(self, x):
        return dict(x=x)


@pytest.mark.parametrize(
    ("share", "fits"),
    [
        (lambda A, b: np.sum(b) + np.sum(np.tril(A, -1)) + A.T[0, 0] + b[-1] + b[1], True),
        (lambda A, b: np.roll(b, 2) + b[::-1] + np.diag(A) + np.triu(A)[0], True),
        (lambda A, b: np.mean(b), False),
        (lambda A, b: 1 / len(b), False),
        (lambda A, b: np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), False),
        (lambda A, b: b[np.array([0, 2, 1, 5, 4, 3])], False),
    ],
)
def test_what_is_made_anew_for_another_size_is_what_its_lines_give_there(share, fits):
    program = Shares(share)
    assert fits_others(program, program.graph(6)) == fits
    if fits:
        A, b = mixed_signs(9)
        assert_computes(resized(program.graph(6), 9), dict(A=A, b=b), [share(A, b) * b])


# The first and the last iterate that version 0.3 computed on one system, by model and size.
BUNDLED = json.loads(Path(__file__).with_name("bundled_iterates.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_program_gives_the_iterates_of_version_0_3(name):
    model, n = nf.load(name.partition("/")[0]), int(name.partition("/")[2])
    A, b, _ = nf.problems.SPD(n=n).sample(1, seed=1)
    run = model.run(A.double(), b.double())
    np.testing.assert_allclose(run.x[0, [1, -1]], BUNDLED[name], rtol=1e-12, atol=1e-12)
    assert in_json(model.graph(n)).data() == model.graph(n).data()


# --- what is refused ---


def shown(x):
    print(f"{nf.norm(x):.2e}", x)
    return x


TAKEN_NOW = ("convolve two", "a root")  # by this front end, and refused for the weights
SWITCHES = {"if": "np.where(u > v, s, t)", "if two may be equal": "u > v + 1e-9"}


@pytest.mark.parametrize("name", [name for name in refused.FOLLOWED if name not in TAKEN_NOW])
def test_a_refusal_says_what_to_write_instead(name):
    written, advice, _ = refused.FOLLOWED[name]
    message = message_of(refused.program_of(written), refused.N)
    assert SWITCHES.get(name, advice) in message and "refused.py, line " in message


@pytest.mark.parametrize("name", refused.WRITTEN)
def test_advice_that_is_followed_computes_the_same(name):
    A, b = mixed_signs(refused.N)
    followed = refused.WRITTEN[name][2]
    graph = refused.program_of(followed).graph(refused.N)
    assert_computes(graph, dict(A=A, b=b), [followed(A.copy(), b.copy(), b.copy())])


REFUSED = {
    "a decision": (lambda A, b, x: x if x @ x > 1 else b, "a decision that depends on the data"),
    "a while": (lambda A, b, x: refused.halved(x), "a decision that depends on the data"),
    "an and": (lambda A, b, x: (x[0] > 0 and b) * x, "a decision that depends on the data"),
    "a chain": (lambda A, b, x: x * (0 < x[0] < 1), "a decision that depends on the data"),
    "a key": (lambda A, b, x: {1.0: x}[x[0]], "a traced value as a key"),
    "text": (lambda A, b, x: x if str(x[0]).startswith("-") else b, "a decision by the text of a traced value"),
    "an index": (lambda A, b, x: x[x[0]], "an index that depends on the data"),
    "a mask as an index": (lambda A, b, x: x[x > 0].sum() * b, "write np.where(v > 0, v, 0)"),
    "argmin of a list": (lambda A, b, x: A[np.argmin([x[0], b[1]])], "e @ A is that row"),
    "a number": (lambda A, b, x: float(x[0]) * b, "Omit float(...)"),
    "solve": (lambda A, b, x: np.linalg.solve(A, x), "cgnr"),
    "scipy": (lambda A, b, x: refused.scipy.linalg.expm(A) @ x, "matrix_exponential"),
    "complex numbers": (lambda A, b, x: x * 1j, "constants are real numbers"),
    "an infinite constant": (lambda A, b, x: x * np.inf, "constants must be finite"),
    "division by zero": (lambda A, b, x: x / np.zeros(4), "a division by zero"),
    "shapes": (lambda A, b, x: x[1:] + b, "shape"),
    "a product of scalars": (lambda A, b, x: (x @ b) @ x, "write * for it"),
    "a diagonal in place": (lambda A, b, x: np.diag(A).__iadd__(x), "read-only"),
    "an array of numbers": (lambda A, b, x: refused.with_sum(np.arange(4.0), x), "np.array(w)"),
    "another option": (lambda A, b, x: np.sum(x, where=np.arange(4) > 1) * x, "what can be is np.sum("),
    "an unknown method": (lambda A, b, x: x.nonzero(), ".nonzero"),
    "rounding": (lambda A, b, x: np.floor(x), "no value of the weights jumps"),
    "a type": (lambda A, b, x: x.astype(int), "floating-point throughout"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_is_refused_with_its_line(name):
    written, words = REFUSED[name]
    message = message_of(refused.program_of(written))
    assert words in message and ("test_program.py, line " in message or "refused.py, line " in message)


def test_a_refusal_that_the_program_catches_is_reported():
    def caught(A, b, x):
        try:
            return x * float(x[0])
        except Exception:
            return x

    assert "Omit float(...)" in message_of(refused.program_of(caught))


def test_what_a_program_prints_is_no_decision(capsys):
    refused.program_of(lambda A, b, x: shown(x)).graph(4)
    assert "sqrt" in capsys.readouterr().out


class NamedOtherwise(nf.Program):
    def start(self, b):
        return dict(X=b)

    def step(self, X):
        return dict(X=0.5 * X)


class WithoutAttribute(nf.Program):
    def start(self, b):
        return dict(x=b)

    def step(self, x):
        return dict(x=self.tau * x)


seen = [0]


class Counting(nf.Program):
    def start(self, b):
        return dict(x=b)

    def step(self, x):
        seen.append(1)
        return dict(x=x / len(seen))


class Unlike(nf.Program):
    def start(self, b):
        return dict(x=b, s=b[0])

    def step(self, x, s):
        return dict(x=x, s=s * x)


class ChangesItsInput(nf.Program):
    def start(self, b):
        return dict(x=b.copy())

    def step(self, b, x):
        b += x
        return dict(x=x + b)


class AsksForMore(nf.Program):
    def start(self, b):
        return dict(x=b)

    def step(self, x, y):
        return dict(x=x + y)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NamedOtherwise, "write def finish(self, X): return X"),
        (WithoutAttribute, "Write tau = ... in the class"),
        (Counting, "(seen)"),
        (Unlike, "the state 's' is a scalar in start and a vector of shape (4,) in step"),
        (ChangesItsInput, "b = b.copy() first"),
        (AsksForMore, "step asks for 'y'; it may ask for b, x"),
    ],
)
def test_a_program_that_is_no_iteration_is_told_why(kind, words):
    message = message_of(kind())
    assert words in message and "test_program.py, line " in message


# --- the graph ---


def test_equal_expressions_are_one_node():
    graph = Graph()
    b = graph.input("b", (3,))
    assert apply(graph, "exp", b) is apply(graph, "exp", b)
    assert graph.constant([1.0, 2.0]) is graph.constant([1, 2])
    assert graph.constant(0.5) is not graph.constant([0.5])


def test_a_move_of_moves_is_one_move_of_what_is_used():
    graph = Graph()
    A, b = graph.input("A", (3, 3)), graph.input("b", (3,))
    transposed = graph.move((A,), np.arange(9).reshape(3, 3).T)
    assert graph.move((transposed,), np.arange(9).reshape(3, 3).T) is A
    with_row = graph.move((A, b), [[9, 10, 11], [3, 4, 5], [6, 7, 8]])
    assert graph.move((with_row,), [0, 1, 2]) is b
    assert graph.move((with_row,), [3, 4, 5]).args == (A,)
    assert graph.move((graph.constant([0.0, 2.0]), b), [0, 2]).args == (b,)


def test_what_is_written_and_read_again_is_the_same_node():
    class Fills(nf.Program):
        def start(self, A, b):
            L = np.zeros_like(A)
            L[1, 2] = b[0] * b[1]
            L[0] = b
            return dict(x=L[1, 2] * L[0], y=b[0] * b[1] * b)

        def step(self, x, y):
            return dict(x=x, y=y)

    graph = Fills().graph(4)
    assert graph.start["x"] is graph.start["y"]


def test_nodes_know_the_line_that_makes_them():
    lines = {str(node.line) for node in reachable(record("cg").program().graph(3).step.values())}
    assert any(line.startswith("krylov.py, line ") and line.endswith("q = A @ d") for line in lines)


def test_the_core_has_primitives_with_weights_alone():
    for name in ("np.where", "waves", "arctan", "masked", "softmax_of_rows"):
        made, images = core(expressions.program_of(NEW[name]).graph(expressions.N))
        assert {node.op for node in reachable([made.answer])} <= set(CORE)
        assert images


@pytest.mark.parametrize(
    "forge",
    [
        lambda data: data.pop("step"),
        lambda data: data["nodes"].append(["eval", [], None, [], 0]),
        lambda data: data["nodes"].append(["add", [0, 99], None, [3], 0]),
        lambda data: data["nodes"].append(["add", [0], None, [3], 0]),
        lambda data: data["nodes"].append(["move", [0], [99], [1], 0]),
        lambda data: data["nodes"].append(["sum", [0], "all", [], 0]),
        lambda data: data["nodes"].append(["exp", [0], None, [7], 0]),
        lambda data: data.update(answer="x"),
        lambda data: data.update(nodes=None),
        lambda data: data.update(parts=[{"name": "p"}]),
    ],
)
def test_forged_data_is_no_program(forge):
    old = nf.load("guided-cg").data.saved
    with pytest.raises(FileError):
        read_earlier(old | {"step": {"nodes": [["eval", [], None, "vector"]], "outputs": {"x": 0}}}, 3)
    with pytest.raises(FileError):
        read_earlier({key: value for key, value in old.items() if key != "finish"}, 3)
    data = json.loads(json.dumps(record("cg").program().graph(3).data()))
    forge(data)
    with pytest.raises(FileError):
        ProgramGraph.read(data)


# --- the records ---

RNG = np.random.default_rng(4)
FUNCTIONS = {name: primitive for name, primitive in PRIMITIVES.items() if primitive.numpy}


def arguments_of(primitive):
    low, high = (max(bound, -2.0) if k == 0 else min(bound, 2.0) for k, bound in enumerate(primitive.domain))
    return [RNG.uniform(low + 0.01, high, (5, 5)) for _ in range(primitive.arity)]


def program_that_calls(function, names):
    """A program of these matrices whose state is what the function makes of them."""
    space = {"call": function, "nf": nf}
    source = f"""class Once(nf.Program):
    inputs = {dict.fromkeys(names, "matrix")}
    residual = None
    def start(self, {", ".join(names)}):
        return dict(x=call({", ".join(names)}))
    def step(self, x):
        return dict(x=x)
"""
    exec(source, space)
    return space["Once"]()


CALLED = [(each, called) for each in FUNCTIONS for called in PRIMITIVES[each].numpy if hasattr(np, called)]


@pytest.mark.parametrize(("name", "called"), [pair for pair in CALLED if not pair[1].startswith(("bitwise", "invert"))])
def test_a_primitive_is_traced_evaluated_in_batches_enclosed_and_rewritten(name, called):
    primitive = PRIMITIVES[name]
    names, function = ("u", "v")[: primitive.arity], getattr(np, called)
    given = dict(zip(names, arguments_of(primitive), strict=True))
    graph = program_that_calls(function, names).graph(5)
    wanted = np.asarray(function(*given.values()), dtype=float)
    assert_computes(graph, given, [wanted])
    both = {k: np.stack([v, v]) for k, v in given.items()}
    np.testing.assert_allclose(answers(graph, both)[0], np.stack([wanted, wanted]), rtol=1e-11, atol=1e-11)
    value, error = graph.first_values.enclosed(tensors_of(given, graph), "x")
    assert error.shape == value.shape and bool((error >= 0).all() and torch.isfinite(error).all())


@pytest.mark.parametrize("name", [name for name, each in PRIMITIVES.items() if each.evaluate and each.numpy])
def test_the_bound_of_a_primitive_holds_for_arguments_that_are_off(name):
    primitive, graph = PRIMITIVES[name], Graph()
    args = arguments_of(primitive)
    nodes = [graph.input(f"v{k}", value.shape) for k, value in enumerate(args)]
    node = apply(graph, name, *nodes)
    exact = [torch.tensor(value) for value in args]
    off = [value * (1 + 1e-9 * torch.tensor(RNG.uniform(-1, 1, value.shape))) for value in exact]
    errors = [(there - here).abs() for there, here in zip(off, exact, strict=True)]
    value, truth = (primitive.evaluate(node, *values) for values in (off, exact))
    bound = primitive.enclose(node, off, errors, value) + 1e-14 * (1 + truth.abs())  # the truth is rounded, too
    assert bool(((value - truth).abs() <= bound).all())


def test_terms_are_what_a_rounding_is_relative_to():
    graph = Graph()
    u, v = graph.input("u", (2,)), graph.input("v", (2,))
    given = {"u": torch.tensor([3.0, 4.0]), "v": torch.tensor([-3.0, 1.0])}
    cases = {
        apply(graph, "add", u, v): [6.0, 5.0],
        apply(graph, "matmul", u, v): 13.0,
        apply(graph, "relu", apply(graph, "add", u, v)): [6.0, 5.0],
        apply(graph, "maximum", u, v): [3.0, 4.0],
        apply(graph, "exp", v): [np.exp(-3.0), np.exp(1.0)],
        graph.move((apply(graph, "add", u, v),), [1]): [5.0],
    }
    for node, wanted in cases.items():
        expression = Expression({"x": node})
        results = expression.results(given)
        terms = expression.terms(expression.numbers[node], results)
        np.testing.assert_allclose(terms.numpy(), wanted, rtol=1e-6)


def test_a_new_function_needs_its_record_alone(monkeypatch):
    assert "np.deg2rad" in message_of(refused.program_of(lambda A, b, x: np.deg2rad(x)))
    primitives.primitive("deg2rad", numpy=("deg2rad",), rewrite=lambda v: v * (np.pi / 180), text="degrees as radians")
    A, b = mixed_signs(4)
    graph = refused.program_of(lambda A, b, x: np.deg2rad(x)).graph(4)
    monkeypatch.delitem(primitives.PRIMITIVES, "deg2rad")
    monkeypatch.delitem(primitives.BY_NAME, "deg2rad")
    assert_computes(graph, dict(A=A, b=b), [np.deg2rad(b)])


# --- what a user tries first ---


class Squares(nf.Program):
    """A program without a state x, that takes A alone."""

    def start(self, A):
        return dict(X=A)

    def step(self, X):
        return dict(X=X @ X)

    def finish(self, X):
        return X


def test_a_state_that_is_asked_of_the_run_itself_is_found_in_its_states():
    run = Squares().run(np.eye(3))
    with pytest.raises(AttributeError, match=r"run\.x.*run\.state\['X'\]"):
        _ = run.X
    assert not hasattr(run, "Y")


def test_a_system_that_a_program_does_not_take_is_refused_before_it_is_compiled(monkeypatch):
    monkeypatch.setattr("nlaformer.compiler.compiling.weights_of", None)
    with pytest.raises(ShapeError, match="takes A; verify has b"):
        nf.compile(Squares(), n=3, verify=dict(A=np.eye(3), b=np.ones(3)))


def test_the_smallest_of_a_list_is_refused_as_what_it_is():
    class Picks(nf.Program):
        def start(self, b):
            return dict(x=b)

        def step(self, x):
            return dict(x=np.argmin([x[0], x[1]]) * x)

    assert "np.argmin" in message_of(Picks())
