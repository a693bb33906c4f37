"""Random programs: each is right in every value, or refused, or its run says what is wrong."""

import pytest

from benchmarks import fuzz_compiler
from benchmarks.fuzz_programs import RULES, Generator

PROGRAMS, PARTS = 200, 8


@pytest.mark.parametrize("part", range(PARTS))
def test_no_random_program_is_wrong_in_silence(part):
    count = fuzz_compiler.run(PROGRAMS // PARTS, part * PROGRAMS // PARTS)
    assert not count.failures
    assert count.numbers["right"] >= count.numbers["runs"] // 4  # neither refused nor given up


def test_every_operation_of_the_language_is_drawn():
    drawn = {name for seed in range(PROGRAMS) for name in Generator(seed).draw().operations}
    assert drawn == {rule.name for rule in RULES}


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
