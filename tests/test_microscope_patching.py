"""nf.patch: what takes the place of an intermediate has the effect the arithmetic says, and leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler import library
from nlaformer.errors import OptionError, ShapeError, UnknownNameError, UnusedPatchWarning
from nlaformer.microscope.places import places, transformers
from paper.paper_form import paper_cg
from tests.test_microscope_recording import KINDS, N, ordinary, subject, systems


def run(kind: str):
    """What ``ordinary`` gives, in one piece, with every intermediate."""
    model, options = subject(kind)
    return nf.trace(model, *systems(kind), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_recorded_value_in_its_own_place_changes_no_bit(kind: str):
    model, _ = subject(kind)
    record = run(kind)
    last = {name.rpartition(".layer")[2].partition(".")[2]: name for name in record}  # one name for each part
    assert {"input", "attention.weights", "attention.heads", "attention", "middle", "output"} <= last.keys()
    for names in (*([name] for name in last.values()), list(record)):
        with nf.patch(model, {name: record[name] for name in names}):
            assert torch.equal(ordinary(kind), record.output), names


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_any_part_changes_the_result(kind: str):
    model, _ = subject(kind)
    record = run(kind)
    seen = 0
    for part in ("input", "attention.weights", "attention.heads", "attention", "middle", "ffn.hidden", "ffn", "output"):
        names = [name for name in record if name.endswith(f"].{part}") and bool(record[name].any())]
        if names:
            with nf.patch(model, {names[-1]: lambda value: 0.5 * value}):
                changed = nf.trace(model, *systems(kind), keep=names[-1], **subject(kind)[1])
            assert not torch.equal(changed[names[-1]], record[names[-1]])
            assert torch.equal(changed[names[-1]], 0.5 * record[names[-1]]), "the recording shows what was put there"
            seen += 1
    assert seen >= 6
    with nf.patch(model, {"*.attention": 0}):
        assert not torch.equal(ordinary(kind), record.output)


def test_zeroed_attention_leaves_p_as_it_is_in_both_ways_to_do_so():
    model, options = subject("compiled")
    for part in ("attention", "attention.heads"):
        with nf.patch(model, {f"loop[1].layer[0].{part}": 0}):
            record = nf.trace(model, *systems("compiled"), **options)
        assert torch.equal(record["loop[1].layer[0].middle"], record["loop[1].layer[0].input"])
        assert not torch.equal(record["loop[0].layer[0].middle"], record["loop[0].layer[0].input"])


# --- registers ---


def conjugate_gradients(A, b, iterations: int, changes):
    """Textbook CG in NumPy, with changes {t: function of the state} after t steps."""
    x, r, d = np.zeros_like(b), b.copy(), b.copy()
    state, path = {"x": x, "r": r, "d": d, "rho": r @ r}, []
    for t in range(iterations + 1):
        if t:
            x, r, d, rho = (state[name] for name in ("x", "r", "d", "rho"))
            alpha = rho / (d @ A @ d)
            x, r = x + alpha * d, r - alpha * A @ d
            state = {"x": x, "r": r, "d": r + (r @ r) / rho * d, "rho": r @ r}
        state = changes.get(t, lambda state: state)(state)
        path.append(state["x"])
    return np.stack(path)


CHANGES = {
    "r alone": lambda v: {"r": v},
    "r, ten times as large": lambda v: {"r": 10 * v},
    "all but x, a million times as large": lambda v: {"r": 1e6 * v, "d": 1e6 * v, "rho": 1e12 * (v @ v)},
    "r with its square, as one who computes rho from r": lambda v: {"r": v, "rho": v @ v},
    "d": lambda v: {"d": v},
    "x": lambda v: {"x": v},
    "all of them": lambda v: {"x": v, "r": v[::-1], "d": 2 * v, "rho": np.abs(v).sum()},
}


@pytest.mark.parametrize("which", CHANGES)
def test_a_changed_register_of_compiled_cg_gives_the_iterates_of_numpy_with_the_same_change(which: str):
    model = nf.algorithm("cg", n=8, verify=False)
    A, b, _ = (value[0].numpy() for value in nf.problems.SPD(n=8).sample(1, seed=3))
    A, b = 2.0**20 * A, 2.0**-7 * b  # the run scales them by powers of two
    v = np.random.default_rng(0).normal(size=8) * np.linalg.norm(b)
    new = CHANGES[which](v)
    with nf.patch(model, {f"registers.{name}[2]": value for name, value in new.items()}):
        found = model.run(A, b, iterations=5)
    expected = conjugate_gradients(A, b, 5, {2: lambda state: {**state, **new}})
    untouched = conjugate_gradients(A, b, 5, {})
    for t in (3, 4, 5):
        scale = np.linalg.norm(expected[t])
        assert np.linalg.norm(found.x[t] - expected[t]) <= 1e-8 * scale
        changed = t > 3 or new.keys() != {"r"}  # r enters the next x by rho, which is a state of its own
        assert (np.linalg.norm(untouched[t] - expected[t]) > 1e-3 * scale) == changed


@pytest.mark.parametrize(
    "name", ("cg", "pcg", "steepest_descent", "richardson", "chebyshev", "newton_schulz", "conjugate_residual")
)
def test_a_changed_register_has_the_effect_that_the_program_says(name: str):
    model, program = nf.algorithm(name, n=N, verify=False), library.program(name)
    given = {key: torch.as_tensor(value) for key, value in library.record(name).problems(N, 3, 1)[0].items()}
    reference = program.graph(N)
    inputs = {key: given.get(key, torch.zeros(3, N, dtype=torch.float64)) for key in reference.inputs}
    first = reference.next(inputs, reference.carried(reference.first(inputs)))
    for state in model.config.state:
        with nf.patch(model, {f"registers.{state}[1]": lambda value: 1.25 * value}):
            found = model.run(**given, iterations=2)
        expected = reference.next(inputs, reference.carried(first) | {state: 1.25 * first[state]})
        for other, value in found.state.items():
            wanted = expected[other].expand(value[:, 2].shape)
            assert (value[:, 2] - wanted).abs().max() <= 1e-8 * wanted.abs().max(), (state, other)


def test_the_recorded_register_in_its_own_place_changes_no_bit():
    for kind in ("compiled", "program", "mixed"):
        model, _ = subject(kind)
        record = run(kind)
        names = [f"registers.{state}[{t}]" for state in record.registers for t in range(record.iterates.shape[1])]
        with nf.patch(model, {name: record[name] for name in names}):
            assert torch.equal(ordinary(kind), record.output), kind


def test_a_pattern_of_registers_changes_them_after_every_step_but_where_a_name_says_otherwise():
    model, options = subject("compiled")
    with nf.patch(model, {"registers.d[*]": 0, "registers.d[0]": lambda d: d}):
        record = nf.trace(model, *systems("compiled"), **options)
    assert record["registers.d[0]"].any() and not record["registers.d[1]"].any()
    assert torch.equal(record["registers.x[3]"], record["registers.x[1]"])  # no direction after the first


def test_a_changed_state_of_a_program_with_a_learned_part_goes_on_from_there():
    model, _ = subject("program")
    A, b = systems("program")
    record = run("program")
    new = torch.flip(record.registers["r"][:, 1], (0,))
    with nf.patch(model, {"registers.r[1]": new, "registers.x[1]": lambda x: x + 1}):
        changed = model.run(A, b, iterations=2)
    inputs = {"A": A, "b": b, "x0": torch.zeros_like(b)}
    with torch.no_grad():
        first = model.next(inputs, model.program.carried(model.first(inputs)))
        states = model.program.carried(first) | {"r": new, "x": first["x"] + 1}
        after = model.next(inputs, states)
    assert torch.equal(changed.x[:, 1], first["x"] + 1)  # the answer follows its state
    assert torch.allclose(changed.x[:, 2], after["x"], rtol=1e-12)
    assert not torch.allclose(changed.x[:, 2], record.iterates[:, 2])


def test_a_changed_register_of_the_papers_form_goes_on_from_there():
    model = paper_cg(3, verify=False)
    A, b, _ = (value[0].numpy() for value in nf.problems.SPD(n=3).sample(1, seed=3))
    d = np.array([1.0, -1.0, 0.5])
    with nf.patch(model, {"registers.d[1]": d}):
        found = model.run(A, b, iterations=2)
    expected = conjugate_gradients(A, b, 2, {1: lambda state: {**state, "d": d}})
    assert np.linalg.norm(found.x[2] - expected[2]) <= 1e-5 * np.linalg.norm(expected[2])


# --- between systems ---


def test_systems_that_exchange_their_state_exchange_all_that_follows():
    order = [1, 2, 0]
    for kind, place in (("compiled", "loop[0].layer[6].output"), ("trained", "loop[0].layer[0].output")):
        model, _ = subject(kind)
        plain = ordinary(kind)
        with nf.patch(model, {place: lambda value: value[order]}):
            changed = ordinary(kind)
        assert torch.equal(changed[:, 0], plain[:, 0])
        scaled = changed if kind == "trained" else _in_units(model, changed, order)
        assert torch.allclose(scaled[:, 1:], plain[order][:, 1:], rtol=1e-12), kind


def _in_units(model, x, order):
    """A compiled run scales each system's own result back by its own powers of two."""
    powers: dict[str, torch.Tensor] = {}
    model.observers.append(powers.update)
    model.run(*systems("compiled"), iterations=0)
    model.observers.clear()
    e = powers["x"].double()
    return x * torch.exp2(e[order] - e)[:, None, None]


# --- what is left behind, and what is refused ---


def test_nothing_is_left_behind_after_an_exception():
    model, _ = subject("compiled")

    def fail(value):
        raise ZeroDivisionError

    plain = ordinary("compiled")
    with (
        pytest.raises(ZeroDivisionError),
        nf.patch(model, {"loop[1].layer[0].attention": fail, "registers.r[1]": fail}),
    ):
        ordinary("compiled")
    assert not any(place.point.watched for place in places(model))
    assert not any(transformer.observers for transformer in transformers(model).values()) and not model.observers
    assert torch.equal(ordinary("compiled"), plain)


def test_an_inner_patch_changes_what_the_outer_one_has_left():
    model, options = subject("compiled")
    name = "loop[0].layer[1].ffn"
    plain = run("compiled")[name]
    with nf.patch(model, {name: lambda value: value + 1}):
        with nf.patch(model, {name: lambda value: 2 * value}):
            both = nf.trace(model, *systems("compiled"), keep=name, **options)[name]
        outer = nf.trace(model, *systems("compiled"), keep=name, **options)[name]
    assert torch.equal(both, 2 * (plain + 1)) and torch.equal(outer, plain + 1)


def test_names_that_are_not_there_are_refused_and_passes_that_do_not_come_are_said():
    model, _ = subject("compiled")
    with pytest.raises(UnknownNameError, match=r"loop\[1\]\.layer\[6\]"):
        nf.patch(model, {"loop[1].layer[7].attention": 0})
    with pytest.raises(UnknownNameError, match=r"registers\.rho"):
        nf.patch(model, {"registers.roh[1]": 0})
    with pytest.raises(OptionError, match="probe"):
        nf.patch(subject("trained")[0], {"registers.r[1]": 0})
    with pytest.raises(UnknownNameError, match=r"registers\.d\[0\]"):
        nf.patch(model, {"d": 0})
    with pytest.warns(UnusedPatchWarning) as said, nf.patch(model, {"loop[50].layer[0].attention": 0}):
        ordinary("compiled")
    assert said[0].filename == __file__


def test_a_patch_can_be_used_again_and_within_itself():
    model, options = subject("compiled")
    name = "loop[0].layer[1].ffn"
    plain = run("compiled")
    twice = nf.patch(model, {name: lambda value: 2 * value})
    for _ in range(2):
        with twice:
            assert torch.equal(nf.trace(model, *systems("compiled"), keep=name, **options)[name], 2 * plain[name])
    with twice, twice:
        assert torch.equal(nf.trace(model, *systems("compiled"), keep=name, **options)[name], 4 * plain[name])
    assert torch.equal(ordinary("compiled"), plain.output)


def test_values_of_another_shape_and_functions_without_a_result_are_refused():
    model, _ = subject("compiled")
    for wrong in (np.zeros((2, 2)), np.zeros((4, model.layout.rows, N + 1)), lambda value: value[..., :-1]):
        with pytest.raises(ShapeError), nf.patch(model, {"loop[1].layer[0].attention": wrong}):
            ordinary("compiled")
    with pytest.raises(OptionError), nf.patch(model, {"loop[1].layer[0].attention": lambda value: None}):
        ordinary("compiled")
    with pytest.raises(nf.errors.DomainError), nf.patch(model, {"registers.rho[1]": -1.0}):
        ordinary("compiled")
    for changes in (None, [0.0], {3: 0.0}, {"loop[1].layer[0].attention": lambda value, hook: value}):
        with pytest.raises(OptionError):
            nf.patch(model, changes)


@pytest.mark.parametrize("kind", ["compiled", "program"])
def test_a_function_may_run_the_model_itself(kind: str):
    model, _ = subject(kind)
    A, b = systems(kind)
    plain, seen = model.run(A, b, iterations=3).x, []

    def run_inside(value: torch.Tensor) -> torch.Tensor:
        seen.append(model.run(A, 3 * b, iterations=1).x)
        return value

    first = next(name for name in nf.trace(model, A, b, iterations=3).names if "loop[1].layer[0].input" in name)
    for changes in ({first: run_inside}, {"registers.x[1]": run_inside}):
        with nf.patch(model, {"registers.x[2]": lambda x: 2 * x}):
            doubled = model.run(A, b, iterations=3).x
            with nf.patch(model, changes):
                assert torch.equal(model.run(A, b, iterations=3).x, doubled) and not torch.equal(doubled, plain)
    assert len(seen) == 2 and all(torch.equal(each, model.run(A, 3 * b, iterations=1).x) for each in seen)
