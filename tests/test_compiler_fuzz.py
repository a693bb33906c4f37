"""Random programs: each is right in every value, or refused, or its run says what is wrong."""

import ast
from pathlib import Path

import numpy as np
import pytest

import nlaformer as nf
from benchmarks import fuzz_compiler
from benchmarks.fuzz_programs import Generator
from benchmarks.fuzz_rules import RULES
from nlaformer.program.arrays import Array
from nlaformer.program.creation import NAMES
from nlaformer.program.functions import FUNCTIONS
from nlaformer.program.numpy import MOVES
from nlaformer.program.primitives import BY_NAME

PROGRAMS, PARTS = 200, 8


@pytest.mark.parametrize("part", range(PARTS))
def test_no_random_program_is_wrong_in_silence(part):
    count = fuzz_compiler.run(PROGRAMS // PARTS, part * PROGRAMS // PARTS)
    assert not count.failures
    assert count.numbers["right"] >= count.numbers["runs"] // 4  # neither refused nor given up


def test_as_many_programs_as_there_are_rules_have_all_of_them():
    drawn = {name for seed in range(len(RULES)) for name in Generator(seed).draw().operations}
    assert drawn == {rule.name for rule in RULES} and len(RULES) <= PROGRAMS


LANGUAGE = {*BY_NAME, *FUNCTIONS, *MOVES}
METHODS = {name for name in LANGUAGE if callable(getattr(np.ndarray, name, None))}


def test_every_operator_and_index_of_the_language_is_drawn_and_nothing_else():
    """The operators of a traced array, the arrays that a method makes, the indices of the table in docs/compile.md."""
    drawn = set().union(*(_operations(Generator(seed).draw().source) for seed in range(len(RULES))))
    names = {name for name in drawn if isinstance(name, str)}
    ours = {name for name in names if hasattr(nf, name)} | {"promise", "T", "shape", "size", "ndim", "inf", "linalg"}
    assert names - ours - LANGUAGE - {*NAMES} - {name.partition(".")[2] for name in LANGUAGE} == set()
    assert set(NAMES) - drawn == set()
    assert _operators() - drawn == set()
    assert _documented() - drawn == set()


def _operators():
    """Python's operators that a traced value has, also in place."""
    names = {"Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "MatMult": "matmul", "Pow": "pow"}
    forms = {"BinOp": "__{}__", "AugAssign": "__i{}__"}
    return {
        (form, symbol)
        for symbol, name in names.items()
        for form, method in forms.items()
        if hasattr(Array, method.format(name))
    } | {("UnaryOp", "USub"), ("For", "Name")}


def _documented():
    """The indices in the table of the language, read, and written where it says so."""
    rows = [
        line for line in (Path(__file__).parents[1] / "docs" / "compile.md").read_text().splitlines() if "|" in line
    ]
    table = rows[rows.index("| in NumPy | what is taken | cost in layers |") :]
    found = set()
    for row in table[: next(k for k, row in enumerate(table) if row.startswith("| not taken"))]:
        for text in row.split("|")[2].split("`")[1::2]:
            try:
                indices = {name for name in _operations(text) if name[0] in ("Load", "Change")}
            except SyntaxError:
                continue  # a list of operators
            found |= indices | {("Store", *index[1:]) for index in indices if "written" in row.split("|")[2]}
    assert len(found) > 10
    return found


def _operations(source):
    """Functions and methods of a text by name, operators and loops by type, indices by the kinds of their parts."""
    found, tree = set(), ast.parse(source)
    if isinstance(tree.body[0], ast.ClassDef):  # the methods that are compiled
        tree.body = [method for method in tree.body[0].body if not getattr(method, "name", "").startswith("terms_of")]
    changed = {node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.AugAssign, ast.UnaryOp)):
            found.add((type(node).__name__, type(node.op).__name__))
        elif isinstance(node, (ast.For, ast.comprehension)):
            found.add(("For", "Name"))
        elif isinstance(node, ast.Attribute):
            library, _, name = ast.unparse(node).partition(".")
            if library in ("np", "nf", "special") and "(" not in name:
                found.add("promise" if (library, name) == ("nf", "positive") else name)
            elif node.attr in METHODS or node.attr in ("shape", "size", "ndim"):
                found.add(node.attr)
        elif isinstance(node, ast.Subscript):
            use = "Change" if node in changed else type(node.ctx).__name__
            found.add((use, *_index(node)))
    return found


def _index(node):
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [_kind_of_part(part) for part in parts]


def _kind_of_part(part):
    if isinstance(part, ast.Slice):
        return "order" if part.step else "slice" if part.lower or part.upper else "all"
    return "list" if isinstance(part, (ast.List, ast.Call)) else "entry"


def test_the_judge_of_the_fuzz_sees_a_wrong_value():
    for seed in range(20):
        generator = Generator(seed)
        written = generator.draw()
        count = fuzz_compiler.Count()
        algorithm = fuzz_compiler._compiled(seed, written, "float64", count)
        if algorithm is None or "sign" in written.operations:
            continue
        given = fuzz_compiler._systems(generator.rng, written.inputs, "float64")[0]
        (one,) = fuzz_compiler._run(algorithm, {name: value[None] for name, value in given.items()})
        if one.status in (fuzz_compiler.nf.RunStatus.FINISHED, fuzz_compiler.nf.RunStatus.STAGNATED):
            assert not fuzz_compiler.Judge(written, given, one, "float64").first_wrong()
            one.state["x"][3] += 0.1
            assert "x" in fuzz_compiler.Judge(written, given, one, "float64").first_wrong()
            return
    raise AssertionError("no program of twenty ran")
