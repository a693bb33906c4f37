"""Promises under attack: settings of torch, operators that are not linear, damaged matrices, kills during a save."""

import hashlib
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.linalg import hilbert
from scipy.sparse.linalg import LinearOperator

import nlaformer as nf
from nlaformer import io
from nlaformer.arrays import full_precision
from nlaformer.errors import ConvergenceError, DTypeError, FileError, OptionError, ShapeError
from nlaformer.express.accuracy import draw, reference
from nlaformer.problems import SPD
from nlaformer.solvers.result import Status
from paper.paper_form import paper_cg
from tests.systems import family

NAMES = [name for name in nf.operations() if name != "pointwise"]


# Settings of torch


@pytest.fixture
def flushed():
    """Subnormal numbers are taken to be zero, in torch and NumPy alike."""
    torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_take_a_float32_operation_beyond_its_bound(name):
    operands = draw(name, 8, "float32", seeds=(0, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        op = nf.operation(name, n=8, dtype=torch.float32)
        found, bound = op(*operands), op.error_bound(*operands)
    exact = reference(name, *operands)
    for result, wanted, most in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, exact, bound)), strict=True):
        assert (np.abs(result.astype(np.longdouble) - wanted) <= most).all()


def test_autocast_does_not_change_runs_and_iterates():
    A, b, _ = family(4, 2, 1.0)
    A, b = A.astype(np.float32), b.astype(np.float32)
    cg, model = nf.algorithm("cg", 4, dtype=torch.float32), nf.load("cg-accelerated")
    A20, b20 = (v.astype(np.float32) for v in family(20, 2, 1.0)[:2])
    program = type("Richardson", (nf.Program,), {"start": lambda self, x0: {"x": x0}, "step": _richardson})()

    def everything():
        torch_run = program.run(torch.from_numpy(A), torch.from_numpy(b), iterations=3)
        solved = nf.solve(A20, b20, model=model, rtol=1e-4)
        return cg.run(A, b, iterations=5).x, model.iterates(A20, b20), torch_run.x.numpy(), solved.x

    plain = everything()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = everything()
        assert torch.is_autocast_enabled("cpu")
    for one, other in zip(plain, cast, strict=True):
        np.testing.assert_array_equal(one, other)


def _richardson(self, A, b, x):
    return {"x": x + 0.1 * (b - A @ x)}


def test_products_in_reduced_precision_are_left_inside_a_call_and_put_back():
    products = torch.backends.mkldnn.matmul
    try:
        torch.set_float32_matmul_precision("medium")
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
        torch.set_float32_matmul_precision("highest")
        products.fp32_precision = "bf16"  # of this device alone
        with full_precision():
            assert products.fp32_precision == "ieee"
        assert products.fp32_precision == "bf16"
    finally:
        products.fp32_precision = "ieee"
        torch.set_float32_matmul_precision("highest")


def test_flushed_subnormals_change_no_operation(flushed):
    with full_precision():
        tiny = np.array([1e-310, -3e-320])
    found = nf.operation("add", n=2)(tiny, tiny)
    bound = nf.operation("add", n=2).error_bound(tiny, tiny)
    torch.set_flush_denormal(False)
    assert (np.abs(found - 2 * tiny) <= bound).all() and found[0] != 0


def test_flushed_subnormals_change_no_solve(flushed):
    A, b = np.diag([1.0, 2.0, 3.0]), np.array([1e-310, 1e-310, 1e-310])
    result = nf.solve(A, b, check="ignore")
    torch.set_flush_denormal(False)
    assert result.converged and np.linalg.norm((b - A @ result.x) * 2.0**1000) <= 1e-5 * np.linalg.norm(b * 2.0**1000)


def test_flushed_subnormals_are_flushed_again_after_a_call(flushed):
    nf.operation("add", n=1)([1.0], [2.0])
    assert torch.tensor(1e-310, dtype=torch.float64).mul(1).item() == 0.0


@pytest.fixture
def elsewhere():
    """New tensors are made on a device that holds no numbers."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_a_default_device_changes_nothing(elsewhere, tmp_path):
    A, b = np.diag([1.0, 2.0, 3.0]), np.ones(3)
    nf.operation("matvec", n=3).save(tmp_path)
    np.testing.assert_allclose(nf.load(tmp_path)(A, b), A @ b, atol=1e-7)
    assert nf.algorithm("cg", 3).run(A, b, iterations=4).status is nf.RunStatus.CONVERGED
    assert nf.solve(A, b).converged and nf.solve(sp.csr_array(A), b, M="jacobi").converged
    A, b, _ = SPD(n=20).sample(2, seed=0)
    assert nf.solve(A, b, model=nf.load("cg-accelerated")).converged


# Operators that are not what they seem

SATURATING = {
    "clipped": lambda y: np.clip(y, -1.5, 1.5),
    "cut off": lambda y: np.where(np.abs(y) > 10, 0.0, y),
    "half precision": lambda y: y.astype(np.float16).astype(float),
    "bounded": lambda y: 3 * np.tanh(y),
}


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("size", [1e-300, 1e-3, 1.0, 2.0, 1e2, 1e5, 1e300])
@pytest.mark.parametrize("name", SATURATING)
def test_converged_holds_for_the_operator_as_it_treats_the_returned_x(name, size):
    A, bend = np.diag([1.0, 2.0, 3.0]), SATURATING[name]
    b = size * np.array([1.0, 0.5, 0.25])
    result = nf.solve(LinearOperator((3, 3), matvec=lambda x: bend(A @ x), dtype=float), b, check="ignore")
    true = np.linalg.norm((b - bend(A @ result.x)) / size)
    assert not result.converged or true <= 1e-5 * np.linalg.norm(b / size) * (1 + 1e-12)
    if size in (1e2, 1e5) and name != "half precision":
        assert not result.converged


def test_an_affine_operator_does_not_converge_at_zero():
    shifted = LinearOperator((2, 2), matvec=lambda x: x + 1, dtype=float)
    assert nf.solve(shifted, np.zeros(2), check="ignore").status is Status.NOT_LINEAR
    assert not nf.solve(shifted, np.full(2, 3.0), check="ignore", maxiter=0).converged


def test_an_operator_of_the_wrong_length_is_named():
    short = LinearOperator((3, 3), matvec=lambda x: np.ones(4), dtype=float)
    for b in (np.ones(3), np.ones((3, 2))):
        with pytest.raises(ShapeError, match="LinearOperator"):
            nf.solve(short, b)
    huge = LinearOperator((1, 1), matvec=lambda x: np.array([10**400], dtype=object), dtype=float)
    with pytest.raises(DTypeError, match="LinearOperator"):
        nf.solve(huge, np.ones(1))


# What is called not definite is not


@pytest.mark.parametrize("M", [None, "jacobi", "inverse"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", range(2, 7))
def test_a_definite_matrix_is_never_called_not_definite(n, dtype, M):
    A = hilbert(n).astype(dtype)
    assert np.linalg.eigvalsh(A.astype(float))[0] > 0
    given = np.linalg.inv(hilbert(n)) if M == "inverse" else M
    forms = [A, sp.csr_array(A)] + ([] if M == "jacobi" else [LinearOperator((n, n), matvec=lambda x: A @ x)])
    for form in forms:
        for b in (np.ones(n), *np.eye(n), np.arange(1, n + 1)):
            result = nf.solve(form, b.astype(dtype), M=given, rtol=1e-14, check="ignore")
            assert result.status is not Status.NOT_SPD


@pytest.mark.parametrize("entries", [(1e200, 1e-200), (1e-300, 1e300), (1.0, 5e-324), (1e308, 1.0, 1e-308)])
@pytest.mark.parametrize("method", ["cg", "pcg"])
def test_a_diagonal_of_any_range_is_never_called_not_definite(entries, method):
    A = np.diag(entries)
    for form in (A, sp.csr_array(A)):
        result = nf.solve(form, np.ones(len(A)), method=method, check="ignore")
        assert result.status is not Status.NOT_SPD


def test_an_indefinite_matrix_is_still_called_so():
    A = np.array([[1.0, 2.0], [2.0, 1.0]])
    for form in (A, sp.csr_array(A), LinearOperator((2, 2), matvec=lambda x: A @ x)):
        assert nf.cg(form, np.array([1.0, -1.0]), check="ignore").status is Status.NOT_SPD


# Errors


def test_a_convergence_error_survives_a_process_pool():
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as pool, pytest.raises(ConvergenceError) as caught:
        pool.submit(_fail_to_converge).result(timeout=120)
    assert caught.value.result.status is Status.NOT_SPD


def _fail_to_converge():
    nf.cg(-np.eye(2), np.ones(2), check="raise")


def test_every_error_can_be_pickled():
    from nlaformer import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 8
    for kind in kinds:
        error = kind("words", {"x": 1}) if kind is ConvergenceError else kind("words")
        twin = pickle.loads(pickle.dumps(error))
        assert type(twin) is kind and str(twin) == "words" and vars(twin) == vars(error)


def _damage(form, change):
    matrix = sp.diags_array([np.full(9, -1.0), np.full(10, 4.0), np.full(9, -1.0)], offsets=[-1, 0, 1]).asformat(form)
    change(matrix)
    return matrix


def _set(matrix, **parts):
    for name, part in parts.items():
        setattr(matrix, name, part)


DAMAGED = {
    "coo row": ("coo", lambda m: m.row.__setitem__(3, 10**9)),
    "coo column": ("coo", lambda m: m.col.__setitem__(3, -(10**6))),
    "coo shape": ("coo", lambda m: _set(m, _shape=(5, 5))),
    "coo short": ("coo", lambda m: _set(m, data=m.data[:-4])),
    "lil column": ("lil", lambda m: m.rows[2].__setitem__(0, 10**6)),
    "lil negative": ("lil", lambda m: m.rows[2].__setitem__(0, -(10**6))),
    "lil more indices": ("lil", lambda m: m.rows[2].append(5)),
    "lil no row": ("lil", lambda m: m.rows.__setitem__(2, None)),
    "lil words": ("lil", lambda m: m.data.__setitem__(2, ["a", "b", "c"])),
    "lil fractions": ("lil", lambda m: m.rows.__setitem__(2, [2.5, 3, 4])),
    "dok": ("dok", lambda m: m._dict.__setitem__((10**6, 0), 1.0)),
    "dok key": ("dok", lambda m: m._dict.__setitem__("a", 1.0)),
    "dia": ("dia", lambda m: _set(m, data=m.data[:1])),
    "csr": ("csr", lambda m: m.indices.__setitem__(3, 10**9)),
    "csr pointer": ("csr", lambda m: m.indptr.__setitem__(3, 10**9)),
    "csr without data": ("csr", lambda m: _set(m, data=None)),
    "csc": ("csc", lambda m: m.indices.__setitem__(3, -1)),
    "bsr": ("bsr", lambda m: m.indices.__setitem__(1, 10**6)),
}


def test_a_damaged_sparse_matrix_is_refused_and_crashes_nothing():
    """In a process of its own: a product with such a matrix may end it, and the last name printed is the culprit."""
    code = """
import numpy as np, nlaformer as nf
from tests.test_promises import DAMAGED, _damage
for name, (form, change) in DAMAGED.items():
    A = _damage(form, change)
    print(name, flush=True)
    try:
        nf.solve(A, np.ones(A.shape[0]), check="ignore")
    except nf.errors.ShapeError:
        print("refused", flush=True)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "".join(f"{name}\nrefused\n" for name in DAMAGED), found.stderr


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_damaged_sparse_tensor_is_refused():
    far, values = torch.tensor([0, 1, 10**6]), torch.ones(3, dtype=torch.float64)
    near = torch.arange(3)
    damaged = [
        torch.sparse_coo_tensor(torch.stack([far, near]), values, (3, 3), check_invariants=False),
        torch.sparse_csr_tensor(torch.arange(4), far, values, (3, 3), check_invariants=False),
        torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 10**6]), near, values, (3, 3), check_invariants=False),
    ]
    for A in damaged:
        with pytest.raises(ShapeError, match="damaged"):
            nf.solve(A, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr", "dia", "lil", "dok"])
def test_numbers_in_the_other_byte_order_are_converted(form):
    def swap(m):
        if form in ("lil", "dok"):
            m.dtype = m.dtype.newbyteorder()
        else:
            m.data = m.data.astype(m.dtype.newbyteorder())

    A, given = _damage(form, lambda m: None), _damage(form, swap)
    np.testing.assert_array_equal(nf.solve(given, np.ones(10, ">f8")).x, nf.solve(A, np.ones(10)).x)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_without_ordinary_numbers_are_refused_everywhere():
    A, b = torch.eye(20), torch.ones(20)
    odd = [
        lambda v: v.to("meta"),
        lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8),
        lambda v: v.to_mkldnn(),
        lambda v: torch.nested.nested_tensor([v, v]),
    ]
    doors = [
        nf.solve,
        nf.load("cg-accelerated").iterates,
        nf.algorithm("cg", 20, dtype=torch.float32).run,
        nf.operation("matvec", n=20, dtype=torch.float32),
    ]
    for door in doors:
        for change in odd:
            for given in ((change(A), b), (A, change(b))):
                with pytest.raises(DTypeError):
                    door(*given)


def test_what_only_scipy_takes_is_said_to_be_so():
    A, b = np.eye(2), np.ones(2)
    with pytest.raises(OptionError, match="SciPy"):
        nf.solve(A, b, x0="Mb")
    for given in (A * 1j, sp.csr_array(A * 1j), sp.lil_array(A * 1j), torch.eye(2).to(torch.complex64)):
        with pytest.raises(DTypeError, match="scipy"):
            nf.solve(given, b)
    with pytest.raises(DTypeError, match="scipy"):
        nf.solve(A, b * 1j)


# Saves that are cut short


class _Killed(BaseException):
    """Stands for a kill: nothing catches it on the way."""


def _calls(monkeypatch, names, at, error):
    """Raise an error at the at-th call of any of some functions of os, before it does anything; -1 counts them."""
    count = [0]

    def guard(function):
        def guarded(*arguments, **options):
            count[0] += 1
            if count[0] - 1 == at:
                raise error
            return function(*arguments, **options)

        return guarded

    for name in names:
        monkeypatch.setattr(os, name, guard(getattr(os, name)))
    return count


OS_CALLS = ("replace", "fsync", "unlink", "mkdir")


@pytest.mark.parametrize("error", [_Killed(), OSError(28, "No space left on device")], ids=["killed", "full disk"])
def test_a_save_that_is_cut_short_leaves_one_whole_artefact(error, tmp_path, monkeypatch):
    """At each call of the system; then a save after it is cut short too, and the last one succeeds."""
    old, new, third = (nf.operation(name, n=1) for name in ("add", "subtract", "multiply"))
    results = {4.0: old, 2.0: new, 3.0: third}
    with monkeypatch.context() as patch:
        count = _calls(patch, OS_CALLS, -1, error)
        old.save(tmp_path / "count")
        new.save(tmp_path / "count")
    assert count[0] >= 6
    for first in range(count[0]):
        for second in (0, 1, 2, 3, 4):
            folder = tmp_path / f"{first}-{second}"
            old.save(folder)
            for at, op in ((first, new), (second, third)):
                with monkeypatch.context() as patch:
                    _calls(patch, OS_CALLS, at, error)
                    with suppress(_Killed, FileError):
                        op.save(folder)
                loaded = nf.load(folder)
                assert loaded.name == results[round(loaded([3.0], [1.0])[0])].name
                assert io.fingerprint(folder) == hashlib.sha256(_bytes_of(loaded, tmp_path)).hexdigest()
            old.save(folder)
            assert nf.load(folder).name == "add"


def _bytes_of(op, folder):
    return (op.save(folder / "fresh") / "model.safetensors").read_bytes()


def test_a_killed_process_leaves_one_whole_artefact(tmp_path):
    code = """
import os, sys, nlaformer as nf
left, real = int(sys.argv[1]), os.replace
def replace(*paths):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), 9)
    real(*paths)
os.replace = replace
nf.operation("subtract", n=1).save(sys.argv[2])
"""
    folder, names = nf.operation("add", n=1).save(tmp_path / "op"), []
    for renames in range(5):
        subprocess.run([sys.executable, "-c", code, str(renames), str(folder)])
        names.append(nf.load(folder).name)
    assert names == ["add", "add", "subtract", "subtract", "subtract"]
    assert [path.name for path in sorted(folder.iterdir()) if not path.name.endswith(".tmp")] == [
        "config.json",
        "model.safetensors",
    ]


# Names, sizes and terminals


LONG = "a" * 300


def test_a_name_too_long_for_a_file_is_an_error_of_ours(tmp_path, monkeypatch):
    from nlaformer.console import output_folder
    from nlaformer.problems.matrix_market import read_matrix_market
    from nlaformer.solvers.files import check_output

    monkeypatch.chdir(tmp_path)
    doors = [
        lambda: nf.load(LONG),
        lambda: nf.load(f"x/{LONG}"),
        lambda: nf.operation("add", n=1).save(LONG),
        lambda: nf.train(nf.recipe("quickstart"), out=LONG),
        lambda: output_folder(Path(LONG)),
        lambda: read_matrix_market(LONG),
        lambda: nf.recipe("quickstart", start=LONG) and nf.train(nf.recipe("quickstart", start=LONG), out="run"),
    ]
    for door in doors:
        with pytest.raises(FileError):
            door()
    check_output(Path(f"{LONG}.npy"), (".npy",))  # raises nothing of its own: writing says what is wrong
    with pytest.raises(FileError):
        io.replace_file(Path(f"{LONG}.npy"), b"")


def test_a_name_just_short_enough_for_a_file_can_be_written(tmp_path):
    path = tmp_path / ("a" * 240)
    io.replace_file(path, b"content")
    assert path.read_bytes() == b"content"


def test_what_is_no_path_is_refused_by_the_reader_of_matrices():
    from nlaformer.problems.matrix_market import read_matrix_market

    for path in (None, 3.5, "a\0b"):
        with pytest.raises(FileError):
            read_matrix_market(path)


def test_unsigned_whole_numbers_are_taken():
    model, b = nf.load("cg-accelerated"), np.ones(20)
    A = np.eye(20) + np.diag(np.arange(20))
    wanted = model.iterates(A, b, normalize=False)
    for kind in (np.uint8, np.uint16, np.uint32, np.uint64):
        np.testing.assert_array_equal(model.iterates(A.astype(kind), b, normalize=False), wanted)
        assert model.iterates(A, b.astype(kind), normalize=False).shape == wanted.shape
        assert nf.solve(A.astype(kind), b.astype(kind)).converged
        assert nf.operation("add", n=2)(np.array([1, 2], kind), np.array([3, 4], kind)).tolist() == [4, 6]


def test_what_does_not_fit_the_memory_is_refused():
    model, systems = nf.load("cg-accelerated"), SPD(n=20)
    A, b, _ = systems.sample(1, seed=0)
    for door in (
        lambda: model.iterates(A, b, iterations=10**12),
        lambda: paper_cg(10**6),
        lambda: systems.stream(10**13, torch.Generator()),
        lambda: systems.sample(10**13, seed=0),
    ):
        with pytest.raises(OptionError, match="memory"):
            door()


def test_a_recipe_is_named_once():
    with pytest.raises(OptionError, match="recipe"):
        nf.recipe("quickstart", recipe="cg-joint")


def _shell(command, **environment):
    """A line of the shell in the checkout: its exit code, and what it wrote."""
    root = Path(nf.__file__).parent.parent
    done = subprocess.run(
        ["bash", "-c", command.replace("python", sys.executable)],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)} | environment,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("python -m nlaformer info >&-", 0),
        ("python -m nlaformer info >&- 2>&-", 0),
        ("python -m nlaformer load-nothing 2>&-", 2),
        ("python -m nlaformer evaluate nothing 2>&-", 2),
        ("python -m nlaformer info > /dev/full", 2),
        ("python -m paper list >&-", 0),
        ("python -m paper list > /dev/full", 2),
        ("set -o pipefail; python -m paper list | true", 0),
        ("set -o pipefail; python -m benchmarks | true", 0),
        ("python -m paper run no-such-name", 2),
        ("python -m nlaformer train quickstart --out ''", 2),
        ("python -m nlaformer sweep quickstart --vary seed=1,2 --out ''", 2),
    ],
)
def test_a_closed_or_full_output_and_a_bad_name_leave_no_traceback(command, code, tmp_path):
    found, out, err = _shell(command)
    assert (found, out) == (code, "") and "Traceback" not in err


@pytest.mark.parametrize("columns", ["0", "1", "-3", "x", "100000"])
def test_any_width_of_a_terminal_is_taken(columns):
    code, out, err = _shell("python -m nlaformer info && python -m nlaformer algorithms --help", COLUMNS=columns)
    assert (code, err) == (0, "") and "torch" in out


def test_benchmarks_are_listed_by_name():
    code, out, _ = _shell("python -m benchmarks")
    assert code == 0 and all(name in out for name in ("operations", "algorithms", "solve", "train_step"))


def test_a_misspelt_training_run_is_told_from_a_table():
    from paper import plan

    name = next(iter(plan.exploratory()))
    code, _, err = _shell(f"python -m paper run {name}x")
    assert code == 2 and repr(name) in err


def test_a_dtype_may_be_given_by_its_name():
    assert nf.operation("add", n=1, dtype="float32").dtype is torch.float32
    assert nf.algorithm("cg", 2, dtype="float32", verify=False).dtype is torch.float32
    assert paper_cg(2, dtype="float32", verify=False).dtype is torch.float32
    for door in (lambda: nf.operation("add", n=1, dtype="float"), lambda: nf.algorithm("cg", 2, dtype="half")):
        with pytest.raises(OptionError, match="dtype"):
            door()


@pytest.mark.parametrize("beyond", [2**31, 2**32, -(2**32), 2**62])
def test_offsets_of_diagonals_are_not_cut_to_32_bits(beyond):
    matrix = sp.dia_array((np.array([[4.0, 4.0, 4.0], [1.0, 1.0, 1.0]]), [0, 1]), shape=(3, 3))
    matrix.offsets = matrix.offsets.astype(np.int64) + np.array([0, beyond])
    assert np.allclose(nf.solve(matrix, np.full(3, 4.0)).x, 1.0)  # the second diagonal lies outside


def test_masked_entries_of_a_sparse_matrix_are_refused():
    matrix = sp.csr_array(np.eye(3))
    matrix.data = np.ma.array(matrix.data, mask=[True, False, False])
    with pytest.raises(nf.errors.DTypeError, match="masked"):
        nf.solve(matrix, np.ones(3))


@pytest.mark.parametrize("dtype", ["float32", "torch.float32", np.dtype("float32"), torch.float32])
def test_a_precision_is_named_alike_everywhere(dtype):
    for made in (nf.operation("add", n=2, dtype=dtype), nf.algorithm("richardson", n=2, dtype=dtype, verify=False)):
        assert made.dtype == torch.float32
