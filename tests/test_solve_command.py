"""nlaformer solve: files in, an answer with its certificate out; one line for whatever is wrong with a file."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import nlaformer as nf
from nlaformer import problems
from nlaformer.problems import read_matrix_market
from tests.command import run_command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run ``nlaformer solve`` in this process and a folder of its own: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        code, said = run_command(monkeypatch, capsys, "solve", *arguments)
        return code, *said

    return command


def system(n: int = 6, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    A, b, _ = problems.SPD(n=n).sample(1, seed)
    return A[0].numpy(), b[0].numpy()


def market(A: np.ndarray) -> str:
    lines = [f"{i + 1} {j + 1} {A[i, j]!r}" for i, j in zip(*np.nonzero(A), strict=True)]
    head = f"%%MatrixMarket matrix coordinate real general\n{A.shape[0]} {A.shape[1]} {len(lines)}\n"
    return (head + "\n".join(lines) + "\n").replace("np.float64(", "").replace(")", "")


def write_system(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """A and b in files A.kind and b.kind of the present folder."""
    A, b = system()
    if kind == "mtx":
        Path("A.mtx").write_text(market(A))
        rows = "\n".join(map(str, b.tolist()))
        Path("b.mtx").write_text(f"%%MatrixMarket matrix array real general\n{len(b)} 1\n{rows}\n")
    elif kind == "npy":
        np.save("A.npy", A)
        np.save("b.npy", b)
    else:
        sp.save_npz("A.npz", sp.csc_array(A))
        np.savez("b.npz", b=b, other=np.zeros(3))
    return A, b


def meets(A: np.ndarray, b: np.ndarray, x: np.ndarray, rtol: float) -> bool:
    return bool(np.linalg.norm(b - A @ x) <= rtol * np.linalg.norm(b))


@pytest.mark.parametrize("kind", ["mtx", "npy", "npz"])
@pytest.mark.parametrize("out", ["x.npy", "x.mtx"])
def test_files_of_every_kind_are_solved_and_x_is_written(run, kind: str, out: str):
    A, b = write_system(kind)
    code, said, err = run(f"A.{kind}", f"b.{kind}", "--rtol", "1e-10", "--out", out)
    x = np.load(out) if out.endswith("npy") else read_matrix_market(out)[:, 0]
    assert (code, err) == (0, "") and x.shape == (6,)
    assert meets(A, b, x, 1e-10)
    assert "converged" in said and "certificate" in said and out in said
    assert max(len(line) for line in said.splitlines()) <= 80 and "\x1b" not in said


def test_an_archive_may_hold_both_A_and_b(run):
    A, b = system()
    np.savez("system.npz", A=A, b=b)
    for named in (["system.npz"], ["system.npz", "system.npz"]):
        code, said, _ = run(*named, "--json", "--out", "x.npy")
        found = json.loads(said)
        assert code == 0 and found["b"] == "system.npz" and found["iterations"] == nf.solve(A, b).iterations
        assert meets(A, b, np.load("x.npy"), 1e-5)


def test_without_b_a_random_one_is_drawn_from_the_seed(run):
    A, _ = write_system("npy")
    code, said, _ = run("A.npy", "--seed", "5", "--out", "x.npy")
    assert code == 0 and "seed 5" in said
    assert meets(A, np.random.default_rng(5).standard_normal(6), np.load("x.npy"), 1e-5)


def test_a_right_hand_side_may_be_sparse(run):
    A, _ = write_system("npy")
    unit = np.zeros((6, 4))
    unit[2, 1] = 1.0
    sp.save_npz("b.npz", sp.csr_array(unit))
    assert run("A.npy", "b.npz", "--out", "x.npy")[0] == 0
    assert np.allclose(np.load("x.npy"), np.linalg.inv(A) @ unit, atol=1e-4)


def test_json_has_the_fields_of_the_result(run):
    A, b = write_system("npy")
    code, said, _ = run("A.npy", "b.npy", "--json", "--rtol", "1e-8", "--M", "jacobi")
    found, own = json.loads(said), nf.pcg(A, b, rtol=1e-8)
    assert code == 0 and found["converged"] and found["status"] == "CONVERGED" and found["info"] == 0
    assert (found["iterations"], found["matvecs"], found["n"]) == (own.iterations, own.matvecs, 6)
    assert found["residual_norm"] == own.residual_norm <= found["residual_bound"] <= found["tolerance"]
    assert len(found["residuals"]) == own.iterations + 1 and found["model"] is None


def test_batches_and_columns_are_read_from_files(run):
    A, b, _ = problems.SPD(n=5).sample(3, 2)
    np.save("A.npy", A.numpy())
    np.save("b.npy", b.numpy())
    code, said, _ = run("A.npy", "b.npy", "--json", "--out", "x.npy")
    found = json.loads(said)
    assert code == 0 and found["status"] == ["CONVERGED"] * 3 and np.load("x.npy").shape == (3, 5)
    np.save("one.npy", A[0].numpy())
    np.save("columns.npy", b.numpy().T)
    assert run("one.npy", "columns.npy", "--out", "x.mtx")[0] == 0
    assert read_matrix_market("x.mtx").shape == (5, 3)


def test_a_model_halves_the_products_and_is_counted(run):
    A, b, _ = problems.SPD(n=20).sample(1, 4)
    np.save("A.npy", A[0].numpy())
    np.save("b.npy", b[0].numpy())
    code, said, _ = run("A.npy", "b.npy", "--model", "pcg-accelerated", "--rtol", "1e-6", "--json")
    found = json.loads(said)
    assert code == 0 and found["model"]["accepted"] >= 1 and found["model_seconds"] > 0
    assert found["matvecs"] <= nf.cg(A[0], b[0], rtol=1e-6).iterations / 2


def test_the_plot_of_a_large_system_compares_auto_only(run):
    sp.save_npz("A.npz", sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(200, 200)).tocsr())
    assert run("A.npz", "--model", "cg-accelerated", "--plot", "r.svg")[0] == 0
    assert _counted("r.svg").keys() == {"auto", "CG", "PCG"}


def test_systems_that_are_not_symmetric_or_not_square_are_solved_and_drawn(run):
    rng = np.random.default_rng(0)
    for shape, name in (((6, 6), "GMRES"), ((9, 4), "CGLS")):
        np.save("A.npy", rng.standard_normal(shape))
        code, said, _ = run("A.npy", "--rtol", "1e-8", "--out", "x.npy", "--plot", "r.svg", "--json")
        found = json.loads(said)
        assert code == 0 and name in found["method"] and np.load("x.npy").shape == (shape[1],)
        assert name in _counted("r.svg")


def test_no_convergence_is_exit_code_1_with_the_status(run):
    write_system("npy")
    code, said, _ = run("A.npy", "b.npy", "--method", "cg", "--maxiter", "1", "--rtol", "1e-12", "--json")
    assert code == 1 and json.loads(said)["status"] == "MAXITER" and json.loads(said)["info"] == 1
    np.save("A.npy", -system()[0])
    code, said, _ = run("A.npy", "b.npy", "--method", "cg", "--json")
    assert code == 1 and json.loads(said)["status"] == "NOT_SPD" and json.loads(said)["info"] == -1


@pytest.mark.parametrize("name", ["r.svg", "r.png"])
def test_the_plot_is_the_same_file_in_every_run(run, name: str):
    write_system("mtx")
    contents = []
    for _ in range(2):
        code, said, _ = run("A.mtx", "b.mtx", "--plot", name, "--rtol", "1e-10")
        assert code == 0 and name in said
        contents.append(Path(name).read_bytes())
    assert contents[0] == contents[1]
    if name == "r.svg":
        A, b = system()
        assert _counted(name) == {"CG": nf.cg(A, b, rtol=1e-10).iterations,
                                  "PCG": nf.pcg(A, b, M="jacobi", rtol=1e-10).iterations}  # fmt: skip


def _counted(plot: str) -> dict[str, int]:
    """The methods that a plot shows, and how many iterations it says they took to the tolerance."""
    labels = re.findall(r">([^<]+): (\d+)</text>", Path(plot).read_text())
    return {name: int(count) for names, count in labels for name in names.split(", ")}


def test_the_plot_shows_the_methods_of_a_model(run):
    np.save("A.npy", problems.SPD(n=20).sample(1, 4).A[0].numpy())
    assert run("A.npy", "--model", "cg-accelerated", "--plot", "r.svg")[0] == 0
    assert _counted("r.svg").keys() == {"CG", "PCG", "warm-start", "refine", "flexible", "auto"}


# --- unusable files ----------------------------------------------------------------------------------------------


def npy(array: np.ndarray, **options: bool) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def archive_of_text() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("A.txt", "1 0\n0 1\n")
    return buffer.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def sparse(**changes: np.ndarray) -> bytes:
    parts = {"indices": np.arange(3), "indptr": np.arange(4), "data": np.ones(3), "shape": np.array([3, 3])}
    return npz(format=np.array(b"csr"), **(parts | changes))


def claims_too_much() -> bytes:
    """The header of an array of eight terabytes, without its numbers."""
    head = npy(np.eye(10))[:128]
    return head.replace(b"(10, 10), }" + b" " * 10, b"(1000000, 1000000), }")


GARBAGE = np.random.default_rng(0).bytes(500)
HEAD = b"%%MatrixMarket matrix coordinate real symmetric\n"
DAMAGED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "empty mtx": ("A.mtx", lambda: b"", "Matrix Market"),
    "empty npy": ("A.npy", lambda: b"", "damaged"),
    "empty npz": ("A.npz", lambda: b"", "damaged"),
    "garbage mtx": ("A.mtx", lambda: GARBAGE, "Matrix Market"),
    "garbage npy": ("A.npy", lambda: GARBAGE, "damaged"),
    "garbage npz": ("A.npz", lambda: GARBAGE, "damaged"),
    "truncated mtx": ("A.mtx", lambda: HEAD + b"2 2 3\n1 1 4\n2 1 1\n", "6"),
    "truncated npy": ("A.npy", lambda: npy(np.eye(9))[:-40], "damaged"),
    "truncated npz": ("A.npz", lambda: npz(A=np.eye(9))[:-40], "damaged"),
    "broken entry": ("A.mtx", lambda: HEAD + b"2 2 2\n1 1 4\n2 2 3e", "Matrix Market"),
    "wrong header": ("A.mtx", lambda: b"%%MatrixMarket tensor\n2 2\n", "%%MatrixMarket"),
    "wrong header npy": ("A.npy", lambda: npy(np.eye(3)).replace(b"descr", b"desrc"), "damaged"),
    "claims too much": ("A.npy", claims_too_much, "damaged"),
    "few entries": ("A.mtx", lambda: HEAD + b"9999999999 9999999999 1\n1 1 4\n", "9,999,999,999"),
    "few entries npz": ("A.npz", lambda: sparse(shape=np.array([10**10, 10**10])), "damaged"),
    "index outside": ("A.mtx", lambda: HEAD + b"2 2 2\n1 1 4\n3 3 4\n", "row index"),
    "index outside npz": ("A.npz", lambda: sparse(indices=np.array([0, 1, 10**9])), "damaged"),
    "negative index npz": ("A.npz", lambda: sparse(indices=np.array([0, 1, -7])), "damaged"),
    "unknown format npz": ("A.npz", lambda: npz(format=np.array(b"abc"), data=np.ones(3)), "damaged"),
    "pickled": ("A.npy", lambda: npy(np.array([{}, 1], dtype=object), allow_pickle=True), "damaged"),
    "pickled npz": ("A.npz", lambda: npz(A=np.array([{}, 1], dtype=object)), "damaged"),
    "text": ("A.npy", lambda: npy(np.array([["a", "b"], ["c", "d"]])), "U1"),
    "nan": ("A.npy", lambda: npy(np.array([[1.0, 0.0], [0.0, np.nan]])), "1 of 4"),
    "infinity mtx": ("A.mtx", lambda: HEAD + b"2 2 2\n1 1 4\n2 2 inf\n", "NaN"),
    "nan npz": ("A.npz", lambda: sparse(data=np.array([1.0, np.nan, 1.0])), "NaN"),
    "complex": ("A.npy", lambda: npy(np.eye(2) * 1j), "complex"),
    "complex mtx": ("A.mtx", lambda: HEAD.replace(b"real", b"complex") + b"1 1 1\n1 1 4 1\n", "complex"),
    "complex npz": ("A.npz", lambda: sparse(data=np.ones(3) * 1j), "complex"),
    "a vector": ("A.npy", lambda: npy(np.ones(3)), "(3,)"),
    "a number": ("A.npy", lambda: npy(np.ones(())), "()"),
    "no unknowns": ("A.npy", lambda: npy(np.ones((0, 0))), "(0, 0)"),
    "no array": ("A.npz", archive_of_text, "A.npz"),
    "several arrays": ("A.npz", lambda: npz(K=np.eye(2), L=np.eye(2)), "K, L"),
    "an archive called npy": ("A.npy", lambda: npz(A=np.eye(2)), "damaged"),
    "another kind": ("A.txt", lambda: b"1 0\n0 1\n", ".mtx, .npy, .npz"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_an_unusable_matrix_file_is_one_line_and_exit_code_2(run, case: str):
    name, content, says = DAMAGED[case]
    Path(name).write_bytes(content())
    code, out, err = run(name)
    assert (code, out) == (2, "")
    assert name in err and says in err and len(err.splitlines()) == 1 and "Traceback" not in err


@pytest.mark.parametrize("case", ["garbage npz", "truncated npy", "index outside npz"])
def test_an_unusable_right_hand_side_is_one_line_and_exit_code_2(run, case: str):
    name, content, says = DAMAGED[case]
    np.save("matrix.npy", np.eye(3))
    Path(name).write_bytes(content())
    code, _, err = run("matrix.npy", name)
    assert code == 2 and says in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("b", "says"), [(np.ones(5), "(5,)"), (np.ones((5, 6)), "(5, 6)"), (np.ones((2, 3, 6)), "(2, 3, 6)"), (1.0, "()")]
)
def test_a_right_hand_side_of_another_size_is_refused(run, b: np.ndarray, says: str):
    np.save("A.npy", np.eye(6))
    np.save("b.npy", b)
    code, _, err = run("A.npy", "b.npy")
    assert code == 2 and says in err and "6" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.npy"], "No such file"),
        (["missing.npz"], "No such file"),
        (["missing.mtx"], "No such file"),
        (["."], "ends in"),
        (["A.npy", "--method", "flexibel"], "'flexible'"),
        (["A.npy", "--method", "refine"], "model"),
        (["A.npy", "--model", "cg-accelarated"], "'cg-accelerated'"),
        (["A.npy", "--rtol", "-1"], "rtol"),
        (["A.npy", "--maxiter", "-1"], "maxiter"),
        (["A.npy", "--M", "jacoby"], "jacobi"),
        (["A.npy", "--M", "missing.npy"], "No such file"),
        (["A.npy", "--out", "x.txt"], ".npy or .mtx"),
        (["A.npy", "--out", "missing/x.npy"], "missing"),
        (["A.npy", "--out", "./A.npy"], "A.npy"),
        (["A.npy", "--plot", "plot.pdf"], ".svg or .png"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(run, arguments: list[str], says: str):
    write_system("npy")
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert says in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--method", "flexible"], ["--method", "cg", "--M", "jacobi"]])
def test_options_that_contradict_each_other_are_refused_without_python_syntax(run, arguments: list[str]):
    write_system("npy")
    code, _, err = run("A.npy", *arguments)
    assert code == 2 and arguments[1] in err and "=" not in err


def test_programs_with_learned_parts_are_models_and_preconditioners_of_the_command(run):
    from nlaformer.learn.methods import GuidedCG, LearnedPCG
    from nlaformer.learn.programs import initial

    np.save("A.npy", system(6)[0])
    config = nf.recipe("quickstart", n=6, d=8, heads=2)
    for name, program in (("guided", GuidedCG()), ("learned", LearnedPCG())):
        initial(config, program).save(name)
    nf.algorithm("cg", n=6).save("compiled")
    for options in (("--model", "guided"), ("--M", "learned"), ("--model", "compiled")):
        code, said, _ = run("A.npy", *options, "--json", "--plot", "r.svg")
        found = json.loads(said)
        assert code == 0 and found["model"]["applications"] > 0, options
    assert run("A.npy", "--M", "guided")[0] == 2 and run("A.npy", "--model", "guided", "--method", "refine")[0] == 2


def test_an_operation_is_refused_as_a_model(run):
    write_system("npy")
    nf.operation("matvec", n=6).save("matvec")
    code, _, err = run("A.npy", "--model", "matvec")
    assert code == 2 and "matvec" in err and "operation" in err and len(err.splitlines()) == 1


def test_more_right_hand_sides_than_memory_holds_are_refused(run):
    np.save("A.npy", np.eye(3))
    Path("b.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n3 9000000000000000 3\n1 1 1\n2 1 1\n3 1 1\n"
    )
    code, out, err = run("A.npy", "b.mtx")
    assert (code, out) == (2, "") and "9,000,000,000,000,000" in err and len(err.splitlines()) == 1


def test_an_answer_that_cannot_be_written_is_still_printed(run):
    np.save("A.npy", np.stack([np.eye(3)] * 2))
    np.save("b.npy", np.ones((2, 3, 2)))
    code, out, err = run("A.npy", "b.npy", "--json", "--out", "x.mtx")
    assert code == 2 and ".npy" in err and json.loads(out)["converged"]


def test_huge_numbers_are_solved_without_a_warning(run, recwarn: pytest.WarningsRecorder):
    np.save("A.npy", np.eye(3) * 1e300)
    np.save("b.npy", np.full(3, 1e300))
    assert run("A.npy", "b.npy")[0] == 0
    assert not recwarn.list


def test_a_preconditioner_is_read_from_a_file(run):
    A, _ = write_system("npy")
    np.save("diagonal.npy", 1 / np.diag(A))
    np.save("inverse.npy", np.linalg.inv(A))
    by_file, by_name = (json.loads(run("A.npy", "--json", "--M", M)[1]) for M in ("diagonal.npy", "jacobi"))
    assert by_file["iterations"] == by_name["iterations"]
    assert json.loads(run("A.npy", "--json", "--M", "inverse.npy")[1])["iterations"] == 1


def test_an_interrupt_is_exit_code_130(run, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    write_system("npy")
    monkeypatch.setattr(nf, "solve", interrupted, raising=False)
    code, out, _ = run("A.npy", "b.npy", "--out", "x.npy")
    assert code == 130 and not Path("x.npy").exists() and out == ""


def test_an_interrupt_within_the_iteration_is_exit_code_130_with_the_best_x(run, monkeypatch: pytest.MonkeyPatch):
    A, b = write_system("npy")
    solve = nf.solve

    def interrupted(*arguments: object, **more: object) -> object:
        def stop(x: np.ndarray) -> None:
            steps.append(x)
            if len(steps) == 3:
                raise KeyboardInterrupt

        steps: list[np.ndarray] = []
        return solve(*arguments, **(more | {"method": "cg", "callback": stop}))

    monkeypatch.setattr(nf, "solve", interrupted, raising=False)
    code, out, _ = run("A.npy", "b.npy", "--rtol", "1e-12", "--json", "--out", "x.npy", "--plot", "r.svg")
    assert code == 130 and json.loads(out)["status"] == "INTERRUPTED" and not Path("r.svg").exists()
    assert 0 < np.linalg.norm(b - A @ np.load("x.npy")) < np.linalg.norm(b)


def test_damaged_archives_do_not_crash_the_process(tmp_path: Path):
    """Bytes of a good file changed at random: an answer, or one line, never a traceback or a signal."""
    rng = np.random.default_rng(3)
    A, _ = system(4)
    sp.save_npz(tmp_path / "good.npz", sp.csr_array(A), compressed=False)
    good = (tmp_path / "good.npz").read_bytes()
    assert zipfile.is_zipfile(tmp_path / "good.npz")
    for k in range(40):
        bad = bytearray(good)
        for place in rng.integers(0, len(bad), 3):
            bad[place] = rng.integers(256)
        (tmp_path / f"{k}.npz").write_bytes(bad)
    code = (
        "import sys\nfrom pathlib import Path\nfrom nlaformer.errors import NLAFormerError\n"
        "import nlaformer as nf\nfrom nlaformer.solvers.files import read_system\n"
        "for path in sorted(Path(sys.argv[1]).glob('*.npz')):\n"
        "    try:\n        nf.solve(*read_system(path, None), check='ignore')\n"
        "    except NLAFormerError:\n        pass\n"
    )
    root = Path(nf.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=root, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_examples_of_docs_solve_run():
    guide = (Path(__file__).parents[1] / "docs" / "solve.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    assert len(blocks) == 14
    said: list[str] = []
    scope: dict = {"print": lambda *values: said.append(" ".join(map(str, values)))}
    exec(compile("\n".join(blocks), "docs/solve.md", "exec"), scope)
    assert scope["result"].model.accepted > 0
    assert said[0].startswith("status    converged") and "not symmetric positive definite" in said[1]
