"""The functions of the page compute what the library computes, on the weights that it holds.

``test_explorer_values.py`` reads the numbers where a visitor does.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import nlaformer as nf
from nlaformer.compiler.library import program
from nlaformer.explorer.catalogue import ALGORITHMS, OPERATION_SIZES, OPERATIONS, guided
from nlaformer.explorer.store import Store, rounded
from tests.explorer import SYSTEMS, largest_difference, layer_differences, system, undecided, values

RUN = """async ([name, n, inputs, iterations]) => {
  const algorithm = await explorer.openAlgorithm(name, n);
  return {
    prompt: Array.from(explorer.algorithmPrompt(algorithm, inputs).P.data),
    values: [...explorer.runAlgorithm(algorithm, inputs, iterations)],
    program: algorithm.program ? [...explorer.runProgram(algorithm.program, inputs, iterations, n)] : null,
  };
}"""


def _plain(inputs):
    return {name: value.ravel().tolist() for name, value in inputs.items()}


def test_every_layer_of_compiled_cg_equals_the_librarys_on_the_librarys_own_p(visit):
    cg, page = nf.algorithm("cg", n=8, verify=False), visit()
    for seed in range(SYSTEMS):
        for where, difference in layer_differences(page, cg, system(8, seed)).items():
            assert difference < 1e-9, (seed, *where)


SPREAD = """async ([name, n, inputs, iterations]) => {
  const { program } = await explorer.openAlgorithm(name, n);
  return explorer.spread(program, inputs, iterations, n, [...explorer.runProgram(program, inputs, iterations, n)]);
}"""


@pytest.mark.parametrize("name", ["cg", "minres", "chebyshev"])
def test_the_digits_that_the_page_draws_are_those_of_a_run(visit, name):
    n = 8
    compiled = nf.algorithm(name, n=n, verify=False)
    inputs = system(n, 0, tuple(compiled.config.kinds))
    spread = np.array(visit().evaluate(SPREAD, name, n, _plain(inputs), 5))
    digits = compiled.run(**inputs, iterations=5).digits["x"]
    drawn = -np.log10(np.maximum(spread, 1e-16))
    at_once = np.array([drawn[max(0, t - 2) : t + 1].min() for t in range(6)])  # a run counts them over three steps
    np.testing.assert_allclose(at_once, digits, atol=0.7)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_prompt_states_and_reference_of_an_algorithm_equal_the_librarys(visit, name):
    page = visit()
    for n in ALGORITHMS[name]:
        compiled = nf.algorithm(name, n=n, verify=False)
        inputs = system(n, 0, tuple(compiled.config.kinds))
        if name == "jacobi":
            inputs["A"] = inputs["A"] + np.diag(np.abs(inputs["A"]).sum(1))
        found = page.evaluate(RUN, name, n, _plain(inputs), 5)
        assert largest_difference(found["prompt"], compiled.prompt(**inputs)) == 0.0
        run, plain = (values(each.run(**inputs, iterations=5)) for each in (compiled, program(name)))
        for value, t in itertools.product(run, range(6)):
            difference = largest_difference(found["values"][t][value]["data"], run[value][t])
            assert difference < 1e-9 or difference < 3 * undecided(compiled, inputs)[value][t], (n, value, t)
            if np.isfinite(plain[value][t]).all():  # the program divides 0 by 0 once it has converged
                assert largest_difference(found["program"][t][value]["data"], plain[value][t]) < 1e-9, (n, value, t)


def test_the_compiled_guided_cg_of_the_page_gives_the_librarys_iterates(visit):
    page, compiled = visit(), guided()
    for seed in range(2):
        inputs = system(20, seed)
        found = page.evaluate(RUN, "guided-cg", 20, _plain(inputs), 5)
        x = [each["finish()"]["data"] for each in found["values"]]
        assert largest_difference(x, compiled.run(**inputs, iterations=5).x) < 1e-9


@pytest.mark.parametrize("name", OPERATIONS)
def test_prompt_result_and_reference_of_an_operation_equal_the_librarys(visit, name):
    page, rng = visit(), np.random.default_rng(1)
    script = """async ([name, n, operands]) => {
      const operation = await explorer.openOperation(name, n);
      const states = [...explorer.traceOperation(operation, operands)];
      return { prompt: Array.from(states[0].P.data), results: explorer.readResult(operation, states.at(-1).P),
        reference: explorer.operationReference(name, n, operands) };
    }"""
    for n in OPERATION_SIZES:
        op = nf.operation(name, n=n)
        shapes = [(n, n) if operand.isupper() else (n,) for operand in _operands(op)]
        given = [10.0 ** rng.integers(-3, 4) * rng.normal(size=shape) for shape in shapes]
        found = page.evaluate(script, name, n, [value.ravel().tolist() for value in given])
        results = op(*given)
        results = results if isinstance(results, tuple) else (results,)
        assert largest_difference(found["prompt"], op.prompt(*given)) == 0.0
        for result, plain, expected in zip(found["results"], found["reference"], results, strict=True):
            assert tuple(result["shape"]) == np.shape(expected)
            size = np.abs(expected).max()
            assert largest_difference(np.asarray(result["data"]) / size, expected / size) < 1e-9
            assert largest_difference(np.asarray(plain) / size, expected / size) < 1e-6


def _operands(op):
    return [operand["name"] for operand in _described(op)["operands"]]


def _described(op):
    from nlaformer.explorer.artefacts import operation

    return operation(op, Store())


def test_one_iteration_of_cg_and_a_call_of_a_learned_model_are_quick(visit):
    page, twenty = visit(), system(20, 0)
    once = """async ([inputs]) => {
      const algorithm = await explorer.openAlgorithm("cg", 8);
      return [...explorer.runAlgorithm(algorithm, inputs, 10)].length;
    }"""
    whole = """async ([A, b]) => {
      const solver = await explorer.openSolver("cg-accelerated");
      return [...explorer.runSolver(solver, A, b)].length;
    }"""
    calls = [
        (once, (_plain(system(8, 0)),), 10 * 0.1),
        (whole, (twenty["A"].ravel().tolist(), twenty["b"].tolist()), 2.0),
    ]
    for script, given, allowed in calls:
        page.evaluate(script, *given)  # weights are unpacked once
        assert page.processor_seconds(script, *given) < allowed


def test_a_store_gives_back_equal_arrays_once_and_no_markup():
    store, rng = Store(), np.random.default_rng(0)
    first = store.put(rng.normal(size=5000), "f8")
    assert store.put(torch.arange(7), "i4") == ["i4", 0, 7]
    assert store.put(np.random.default_rng(0).normal(size=5000), "f8") == first
    assert not set("<&\"'\\/") & set(store.text())


def test_rounding_keeps_the_significant_bits():
    values = torch.randn(1000, dtype=torch.float64)
    relative = ((rounded(values, 11) - values) / values).abs().max()
    assert 2.0**-13 < relative <= 2.0**-11
    assert torch.equal(rounded(rounded(values, 11), 11), rounded(values, 11))
