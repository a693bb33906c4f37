"""The families of linear systems: the right distribution, the same for a seed everywhere, no bad options."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nlaformer import problems
from nlaformer.errors import DTypeError, FileError, OptionError, ShapeError, UnknownNameError
from nlaformer.learn.teachers import cg
from nlaformer.problems import SPD, GraphLaplacian, Poisson1D, Poisson2D, PrescribedSpectrum, RBFKernel, base

GALLERY = [SPD(8), Poisson1D(8), Poisson2D(9), RBFKernel(8), GraphLaplacian(8), PrescribedSpectrum(8)]
ids = [family.name for family in GALLERY]


class Replay:
    """Draws that were fixed by hand."""

    def __init__(self, **numbers: np.ndarray) -> None:
        self.numbers = {name: torch.as_tensor(value, dtype=torch.float64)[None] for name, value in numbers.items()}

    def uniform(self, name: str, *shape: int) -> torch.Tensor:
        assert self.numbers[name].shape == shape
        return self.numbers[name]

    normal = uniform


# The paper's family against scikit-learn --------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 20])
def test_spd_is_make_spd_matrix_when_given_its_random_numbers(n: int) -> None:
    from sklearn.datasets import make_spd_matrix

    random = np.random.RandomState(n)
    G, u = random.uniform(size=(n, n)), random.uniform(size=n)
    U = np.linalg.svd(G.T @ G)[0]
    draw = Replay(
        G=G,
        u=u[::-1].copy(),  # singular values descend, eigenvalues ascend
        sign=np.where(U.sum(0) < 0, 0.25, 0.75)[::-1].copy(),
        sigma=np.zeros(1),
        diagonal=np.zeros(n),  # exp(0) = 1 on the diagonal
    )
    A = SPD(n).matrices(draw, 1)[0].numpy() - np.eye(n)
    assert np.abs(A - make_spd_matrix(n, random_state=n)).max() < 1e-10


def scikit_learn_systems(count: int, n: int, sigma: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import make_spd_matrix

    random = np.random.RandomState(seed)
    A = np.stack([make_spd_matrix(n, random_state=random) for _ in range(count)])
    A += np.eye(n) * random.lognormal(0.0, sigma, size=(count, 1, n))
    return A, random.standard_normal((count, n))


def statistics(A: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
    """What is compared, one number (or one row, to be pooled) per system."""
    matrices, solutions = torch.tensor(A), torch.tensor(x)
    eigenvalues = np.linalg.eigvalsh(A)
    iterates = cg(matrices, (matrices @ solutions[..., None])[..., 0], 8).x
    error = ((iterates - solutions[:, None]).square().sum(-1) / solutions.square().sum(-1, keepdim=True)).numpy()
    lower = np.tril_indices(A.shape[-1], -1)
    return {
        "diagonal entries": np.diagonal(A, axis1=1, axis2=2),
        "other entries": A[:, lower[0], lower[1]],
        "spectrum": eigenvalues,
        "smallest eigenvalue": eigenvalues[:, 0],
        "largest eigenvalue": eigenvalues[:, -1],
        "condition": eigenvalues[:, -1] / eigenvalues[:, 0],
    } | {f"squared relative error of CG at t={t}": error[:, t] for t in (1, 2, 4, 8)}


def differing(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], level: float = 1e-3) -> list[str]:
    """The statistics whose Kolmogorov-Smirnov distance is too large for the number of systems.

    The entries of one matrix depend on each other, so pooled ones count as one per system, which is the cautious side.
    """
    from scipy.stats import ks_2samp

    count = len(next(iter(ours.values())))
    critical = math.sqrt(-math.log(level / len(ours) / 2) / count)
    return [name for name in ours if ks_2samp(ours[name].ravel(), theirs[name].ravel()).statistic > critical]


COUNT = 2000


@pytest.fixture(scope="module")
def scikit_learn() -> dict[str, np.ndarray]:
    return statistics(*scikit_learn_systems(COUNT, 20, 1.2, seed=7))


def test_spd_has_the_distribution_of_scikit_learn(scikit_learn: dict[str, np.ndarray]) -> None:
    A, _, x = SPD(20, 1.2).sample(COUNT, seed=7)
    assert differing(statistics(A.numpy(), x.numpy()), scikit_learn) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_spd_stream_has_the_distribution_of_scikit_learn(
    scikit_learn: dict[str, np.ndarray], dtype: torch.dtype
) -> None:
    A, _, x = SPD(20, 1.2).stream(COUNT, torch.Generator().manual_seed(7), dtype)
    assert differing(statistics(A.double().numpy(), x.double().numpy()), scikit_learn) == []


def test_the_comparison_with_scikit_learn_detects_other_distributions(
    scikit_learn: dict[str, np.ndarray],
) -> None:
    A, _, x = SPD(20, 1.4).sample(COUNT, seed=7)
    assert "condition" in differing(statistics(A.numpy(), x.numpy()), scikit_learn)
    # U (I + diag(u)) U^T, as if scikit-learn's 1.0 were an identity matrix
    random = np.random.default_rng(7)
    U = np.linalg.svd(random.random((COUNT, 20, 20)))[0]
    A = (U * (1 + random.random((COUNT, 1, 20)))) @ U.transpose(0, 2, 1)
    A += np.eye(20) * random.lognormal(0.0, 1.2, size=(COUNT, 1, 20))
    assert "largest eigenvalue" in differing(statistics(A, random.standard_normal((COUNT, 20))), scikit_learn)


def test_the_mean_errors_of_cg_on_spd_are_the_known_ones() -> None:
    count = 512
    A, b, x = SPD(20, 1.2).sample(count, seed=0)
    error = (cg(A, b, 8).x - x[:, None]).square().sum(-1) / x.square().sum(-1, keepdim=True)
    known = torch.tensor([1, 0.68, 0.32, 0.13, 0.050, 0.018, 5.7e-3, 1.8e-3, 5.1e-4], dtype=torch.float64)
    # both are means over 512 systems, and the known one is given to two digits
    tolerance = 4 * error.std(0) * math.sqrt(2 / count) + 0.05 * known
    assert ((error.mean(0) - known).abs() <= tolerance).all()


# Seeds ------------------------------------------------------------------------------------------------------------


PINNED_A = [
    [9.80473828101676, 0.10033252937081887, -0.2647520559202882],
    [0.10033252937081887, 2.009532316901064, -0.734864941218372],
    [-0.2647520559202882, -0.734864941218372, 4.14493345984928],
]
PINNED_X = [-0.43956062589617306, -1.0520686710911693, 0.7797344764937608]
PINNED_SUM = 38.03186864889813


def test_a_seed_gives_the_pinned_systems() -> None:
    A, _, x = SPD(3, (1.0, 1.4)).sample(2, seed=5)
    torch.testing.assert_close(A[1], torch.tensor(PINNED_A, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(x[1], torch.tensor(PINNED_X, dtype=torch.float64), rtol=0, atol=1e-14)
    large = SPD(20).sample(16, seed=12)
    torch.testing.assert_close(large.b.abs().sum(-1)[-1].item(), PINNED_SUM, rtol=1e-9, atol=0)


def test_another_lapack_gives_the_same_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = SPD(20).sample(200, seed=1).A

    def another_build(X: torch.Tensor) -> torch.return_types.linalg_eigh:
        """Another driver, and other signs."""
        U, values, _ = torch.linalg.svd(X)
        signs = torch.randint(2, U[:, :1].shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
        return torch.return_types.linalg_eigh((values.flip(-1), (U * signs).flip(-1)))

    monkeypatch.setattr(torch.linalg, "eigh", another_build)
    torch.testing.assert_close(SPD(20).sample(200, seed=1).A, usual, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", GALLERY, ids=ids)
def test_the_first_systems_of_a_larger_sample_are_those_of_a_smaller_one(
    family: problems.Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = family.sample(50, seed=3)
    monkeypatch.setattr(base, "_LARGEST_BATCH", 7)
    for few, many in zip(family.sample(20, seed=3), large, strict=True):
        torch.testing.assert_close(few, many[:20], rtol=1e-12, atol=1e-12)
    assert not torch.equal(family.sample(50, seed=4).x, large.x)


@pytest.mark.parametrize("family", GALLERY, ids=ids)
def test_float32_samples_are_the_same_systems_rounded(family: problems.Family) -> None:
    for single, double in zip(family.sample(5, 0, dtype=torch.float32), family.sample(5, 0), strict=True):
        assert single.dtype == torch.float32
        assert torch.equal(single, double.float())


@pytest.mark.parametrize("family", GALLERY, ids=ids)
def test_a_stream_resumes_from_the_state_of_its_generator(family: problems.Family) -> None:
    generator = torch.Generator().manual_seed(0)
    first = family.stream(4, generator)
    state = generator.get_state()
    second = family.stream(4, generator)
    assert not torch.equal(first.x, second.x)
    again = family.stream(4, torch.Generator().set_state(state))
    assert all(torch.equal(one, other) for one, other in zip(second, again, strict=True))


def test_several_sigmas_take_each_system_from_one_of_the_single_families() -> None:
    count, sigmas = 900, (0.5, 1.0, 2.0)
    mixed = SPD(4, sigmas).sample(count, seed=2)
    single = torch.stack([SPD(4, sigma).sample(count, seed=2).A for sigma in sigmas])
    from_family = (single == mixed.A).all(-1).all(-1)  # (3, count)
    assert (from_family.sum(0) == 1).all()
    share = from_family.double().mean(1)
    assert (share - 1 / 3).abs().max() < 4 * math.sqrt(2 / 9 / count)


# The gallery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", GALLERY, ids=ids)
def test_systems_are_symmetric_positive_definite_and_consistent(family: problems.Family, dtype: torch.dtype) -> None:
    for A, b, x in (
        family.sample(30, seed=0, dtype=dtype),
        family.stream(30, torch.Generator().manual_seed(0), dtype),
    ):
        assert A.shape == (30, family.n, family.n) and b.shape == x.shape == (30, family.n)
        assert A.dtype == b.dtype == x.dtype == dtype
        assert torch.equal(A, A.mT)
        assert torch.linalg.eigvalsh(A.double()).min() > 0
        assert len(A.flatten(1).unique(dim=0)) == 30
        bound = 4 * family.n * torch.finfo(dtype).eps * (A.abs().double() @ x.abs().double()[..., None])[..., 0]
        assert ((b - (A.double() @ x.double()[..., None])[..., 0]).abs() <= bound).all()


@pytest.mark.parametrize("name", problems.families()[:-1])
def test_every_named_family_makes_systems_of_one_unknown(name: str) -> None:
    family = problems.family(name, n=1)
    assert family.sample(3, seed=0).A.shape == (3, 1, 1)
    assert family.sample(0, seed=0).A.shape == (0, 1, 1)
    assert problems.family(family.name, **family.options) == family
    assert len({family, problems.family(name, n=1)}) == 1


def test_poisson_matrices_hold_the_coefficients_of_their_edges() -> None:
    a = np.array([0.5, 1.0, 2.0, 4.0])
    A = Poisson1D(3).matrices(Replay(edges=np.log(a)), 1)[0]
    expected = [[1.5, -1, 0], [-1, 3, -2], [0, -2, 6]]
    torch.testing.assert_close(A, torch.tensor(expected, dtype=torch.float64))


def test_poisson_2d_with_a_constant_coefficient_is_the_kronecker_sum() -> None:
    line = Poisson1D(4, 0.0).sample(1, 0).A[0]
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.equal(Poisson2D(16, 0.0).sample(1, 0).A[0], torch.kron(line, eye) + torch.kron(eye, line))


def test_the_rbf_kernel_equals_scikit_learns() -> None:
    from sklearn.metrics.pairwise import rbf_kernel

    points = np.random.default_rng(0).random((10, 3))
    A = RBFKernel(10, dimension=3, length=0.5, ridge=0.25).matrices(Replay(points=points), 1)[0].numpy()
    np.testing.assert_allclose(A, rbf_kernel(points, gamma=1 / (2 * 0.5**2)) + 0.25 * np.eye(10), atol=1e-14)


def test_the_graph_has_the_expected_degree() -> None:
    count, n, degree = 500, 21, 5.0
    A = GraphLaplacian(n, degree, shift=1.0).sample(count, seed=0).A
    edges = (A.diagonal(dim1=1, dim2=2) - 1).sum(-1) / 2
    possible, p = n * (n - 1) / 2, degree / (n - 1)
    assert abs(edges.mean().item() - possible * p) < 4 * math.sqrt(possible * p * (1 - p) / count)
    assert set(A.flatten().unique().tolist()) <= {-1.0, -0.0, *(1.0 + k for k in range(n))} | {0.0}


@pytest.mark.parametrize("cond", [1.0, 1e3, 1e10])
def test_the_spectrum_is_as_prescribed(cond: float) -> None:
    eigenvalues = torch.linalg.eigvalsh(PrescribedSpectrum(12, cond=cond).sample(20, seed=0).A)
    expected = torch.logspace(0, math.log10(cond), 12, dtype=torch.float64).expand(20, -1)
    torch.testing.assert_close(eigenvalues, expected, rtol=1e-12, atol=100 * 2e-16 * cond)


def test_eigenvectors_are_uniformly_distributed() -> None:
    from scipy.stats import beta, kstest

    count, n = 2000, 6
    A = PrescribedSpectrum(n, eigenvalues=(0, 0, 0, 0, 0, 1)).sample(count, seed=0).A  # v v^T
    critical = math.sqrt(-math.log(1e-3 / n / 2) / 2 / count)
    for i in range(n):  # a squared component of a uniform unit vector
        assert kstest(A[:, i, i].numpy(), beta(0.5, (n - 1) / 2).cdf).statistic < critical


# Bad options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "complaints"),
    [
        ("spd", {"n": 0, "sigma": (1.0, -1.0)}, ["not 0", "sigma must be"]),
        ("spd", {"n": 2.5}, ["not 2.5"]),
        ("spd", {"n": True, "sigma": "1.2"}, ["not True", "not '1.2'"]),
        ("spd", {"sigma": ()}, ["sigma must be"]),
        ("spd", {"sigma": math.nan, "m": 3}, ["sigma must be", "'m'"]),
        ("poisson-1d", {"n": -1, "sigma": math.inf}, ["n must be", "sigma must be"]),
        ("poisson-2d", {"n": 24, "sigma": -1}, ["sigma must be", "16 or 25"]),
        ("poisson-2d", {"n": "many"}, ["not 'many'"]),
        ("rbf", {"length": 0, "ridge": -1, "dimension": 0}, ["length must", "ridge must", "dimension must"]),
        ("graph-laplacian", {"shift": 0, "degree": None}, ["shift must", "degree must"]),
        ("spectrum", {"cond": 0.5}, ["cond must be"]),
        ("spectrum", {"n": 3, "cond": 10, "eigenvalues": (1, 2)}, ["cond and eigenvalues", "n = 3"]),
        ("spectrum", {"eigenvalues": "all"}, ["eigenvalues must be"]),
        ("spd", {"n": 3, "sigma": 10**400}, ["sigma must be"]),
        ("spd", {"n": -(10**5000), "sigma": b"1"}, ["not a value of type int", "not b'1'"]),
        ("poisson-2d", {"n": 10**5000 + 1}, ["n must be"]),
        ("spectrum", {"n": np.array([1, 2]), "eigenvalues": (1, 2)}, ["n must be"]),
        ("matrix-market", {"path": 3}, ["path must be"]),
        ("matrix-market", {}, ["path must be"]),
    ],
)
def test_all_bad_options_are_named_at_once(name: str, options: dict, complaints: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        problems.family(name, **options)
    assert all(complaint in str(caught.value) for complaint in complaints)
    assert max(1, str(caught.value).count("\n")) == len(complaints)


def test_a_family_class_refuses_bad_options_like_its_name() -> None:
    with pytest.raises(OptionError, match=r"(?s)n must be.*sigma must be"):
        SPD(n=0, sigma=(-1.0,))


def test_options_take_numbers_of_numpy_and_torch() -> None:
    for make in (np.array, torch.tensor):
        assert problems.family("spd", n=make(3), sigma=make([1.0, 1.5])) == SPD(3, (1.0, 1.5))
        assert problems.family("poisson-2d", n=make(4), sigma=make(0.5)) == problems.Poisson2D(4, 0.5)
        spectrum = problems.family("spectrum", n=make(2), eigenvalues=make([1.0, 2.0]))
        assert spectrum == problems.PrescribedSpectrum(2, eigenvalues=(1.0, 2.0))
        assert problems.family("spectrum", n=2, cond=make(10.0)).options["cond"] == 10.0
        A, wanted = SPD(2).sample(make(3), seed=make(1)).A, SPD(2).sample(3, seed=1, device=None, dtype=None).A
        assert torch.equal(A, wanted) and A.dtype == torch.float64


def test_an_unknown_family_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="'poisson-2d'"):
        problems.family("poisson2d")
    with pytest.raises(UnknownNameError, match=r"\[\]"):
        problems.family([])  # type: ignore[arg-type]


def test_bad_counts_and_seeds_are_refused() -> None:
    for n, count in ((10**11, 1), (2, 10**15), (10**5000, 1)):
        with pytest.raises(OptionError, match="memory"):
            SPD(n).sample(count, seed=0)
    with pytest.raises(OptionError, match=r"(?s)count must be.*seed must be.*dtype must be"):
        SPD(2).sample(-1, seed=-1, dtype=torch.int32)
    for device in ("cuda:99", "privateuseone"):
        with pytest.raises(OptionError, match=f"device '{device}'"):
            SPD(2).sample(2, seed=0, device=device)
    with pytest.raises(OptionError, match=r"(?s)count must be.*generator must be.*dtype must be"):
        SPD(2).stream(1.5, 0, torch.bfloat16)  # type: ignore[arg-type]


# Matrix Market files ----------------------------------------------------------------------------------------------

HEADER = "%%MatrixMarket matrix "
A = [[4.0, 1.0], [1.0, 3.0]]


@pytest.mark.parametrize(
    "text",
    [
        "coordinate real general\n% a comment\n2 2 4\n1 1 4\n1 2 1\n2 1 1\n2 2 3\n",
        "coordinate real symmetric\n2 2 3\n1 1 4.0\n2 1 1e0\n2 2 3\n",
        "coordinate integer symmetric\n2 2 3\n1 1 4\n2 1 1\n2 2 3\n",
        "array real general\n2 2\n4\n1\n1\n3\n",
        "array real symmetric\n2 2\n4\n1\n3\n",
    ],
)
def test_matrix_market_files_are_read(tmp_path, text: str) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(HEADER + text)
    family = problems.from_matrix_market(path)
    matrices, b, x = family.sample(3, seed=0)
    assert family.n == 2 and matrices.tolist() == [A, A, A]
    torch.testing.assert_close(b, x @ torch.tensor(A, dtype=torch.float64))
    assert family == problems.family("matrix-market", path=str(path))
    assert family.stream(2, torch.Generator()).A.dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", FileError, "Matrix Market"),
        ("hello\n", FileError, "Matrix Market"),
        (HEADER + "coordinate real symmetric\n2 2 3\n1 1 4\n2 1 1\n", FileError, "Matrix Market"),
        (HEADER + "coordinate real symmetric\n2 2 1\n1 3 4\n", FileError, "Matrix Market"),
        (HEADER + "coordinate real general\n2 2 1\n1 one 4\n", FileError, "Matrix Market"),
        (HEADER + "coordinate real general\n2 2 1\n1 1 four\n", FileError, "Matrix Market"),
        (HEADER + "coordinate real general\n-2 2 1\n1 1 4\n", FileError, "Matrix Market"),
        (HEADER + "coordinate real lopsided\n2 2 1\n1 1 4\n", FileError, "Matrix Market"),
        (HEADER + "coordinate real general\n", FileError, "Matrix Market"),
        (HEADER + "coordinate real skew-symmetric\n2 2 1\n1 1 4\n", FileError, "diagonal"),
        (HEADER + "coordinate real symmetric\n2 2 2\n1 2 4\n2 1 4\n", FileError, "triangle"),
        (HEADER + "coordinate real symmetric\n2 3 1\n1 1 4\n", FileError, "2 x 3"),
        (HEADER + "coordinate real general\n2 2 1\n1.5 1 4\n", FileError, "1 to 2"),
        (HEADER + "array pattern general\n1 1\n1\n", FileError, "pattern"),
        (HEADER + "array real general\n99999999999 99999999999\n1\n", FileError, "Matrix Market"),
        (HEADER + "coordinate complex general\n1 1 1\n1 1 4 2\n", DTypeError, "complex"),
        (HEADER + "array real general\n2 1\n1\n2\n", ShapeError, "2 x 1"),
        (HEADER + "coordinate real general\n99999 99999 1\n1 1 4\n", ShapeError, "99999 x 99999"),
    ],
)
def test_malformed_matrix_market_files_are_refused(tmp_path, text: str, error: type[Exception], message: str) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(text)
    with pytest.raises(error, match=message) as caught:
        problems.from_matrix_market(path)
    assert "A.mtx" in str(caught.value)


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("kind", ["coordinate", "array", "pattern"])
def test_matrix_market_files_written_by_scipy_are_read_back_exactly(tmp_path, kind: str, symmetry: str) -> None:
    from scipy.io import mmwrite
    from scipy.sparse import coo_array

    B = np.random.default_rng(0).standard_normal((6, 6))
    B = {"general": B[:4], "symmetric": B + B.T, "skew-symmetric": B - B.T}[symmetry]
    if kind != "array":
        B = coo_array(np.where(np.abs(B) > 0.5, B, 0))
    mmwrite(tmp_path / "B.mtx", B, symmetry=symmetry, field="pattern" if kind == "pattern" else None)
    read = problems.read_matrix_market(tmp_path / "B.mtx")
    dense, expected = (M if isinstance(M, np.ndarray) else M.toarray() for M in (read, B))
    if kind == "pattern":  # ones below the diagonal, and above it what the symmetry makes of them
        above = -1.0 if symmetry == "skew-symmetric" else 1.0
        expected = (expected != 0) * np.where(np.tri(*expected.shape, dtype=bool), 1.0, above)
    assert np.array_equal(dense, expected)


def test_missing_matrix_market_files_and_folders_are_refused(tmp_path) -> None:
    for path in (tmp_path / "missing.mtx", tmp_path):
        with pytest.raises(FileError, match=path.name):
            problems.from_matrix_market(path)


def test_damaged_matrix_market_files_raise_our_own_errors_only(tmp_path) -> None:
    text = (HEADER + "coordinate real symmetric\n3 3 4\n1 1 4\n2 1 -1.5e0\n2 2 3\n3 3 2\n").encode()
    random = np.random.default_rng(0)
    path = tmp_path / "A.mtx"
    refused = 0
    for _ in range(400):
        damaged = bytearray(text[: random.integers(1, len(text) + 1)])
        for _ in range(random.integers(3)):
            damaged[random.integers(len(damaged))] = random.integers(256)
        path.write_bytes(damaged)
        try:
            problems.from_matrix_market(path)
        except (FileError, DTypeError, ShapeError):
            refused += 1
    assert refused > 200


def test_rotations_on_cuda_are_those_of_the_cpu() -> None:
    from nlaformer.problems.random_matrices import orthonormal

    G = torch.randn(64, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    Q, R = torch.linalg.qr(G)
    expected = Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    torch.testing.assert_close(orthonormal(G), expected, rtol=0, atol=1e-12)
