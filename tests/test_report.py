"""Pictures: what they are drawn from is right, and they are files one can look at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import nlaformer as nf
from nlaformer.cli.operations import build, draw_prompts, file_name
from nlaformer.errors import FileError, OptionError
from nlaformer.express import accuracy
from nlaformer.express.operation import Operation
from nlaformer.learn.model import initial
from nlaformer.report.figure import save
from paper.__main__ import main
from paper.diagrams import layer_figure, probe_figure, structure_figure
from paper.shapes import layer_shape, named_model, named_solver, structure_of

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("name", ["add", "column_shift", "matmul", "divide", "pointwise"])
def test_P_is_drawn_before_between_and_after_the_layers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[np.ndarray] = []
    show = Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda axis, X, **k: (drawn.append(X), show(axis, X, **k))[1])
    op = build(name, 3)
    operands = [operand[0] for operand in accuracy.draw(name, 3)]
    assert draw_prompts(op, operands, tmp_path / "P.png").read_bytes().startswith(PNG)
    assert len(drawn) == op.cost.layers + 1
    P = torch.as_tensor(op.prompt(*operands))
    shown = [row for name in op.layout.names if name != "exponent" for row in op.layout[name]]
    for image, wanted in ((drawn[0], P), (drawn[-1], op.model(P))):
        assert np.array_equal(image[shown], wanted.detach().numpy()[shown])


@pytest.mark.parametrize("name", ["add", "matmul", "matrix_transpose"])
def test_a_layer_is_drawn_with_or_without_heads_and_ffn(name: str, tmp_path: Path):
    assert save(_layer(build(name, 20)), tmp_path / "layer.png").read_bytes().startswith(PNG)


def test_the_diagram_names_the_shapes_of_the_layer():
    op = build("matrix_transpose", 20)
    words = _words(_layer(op))
    assert words.count(f"{op.cost.rows} x {op.cost.tokens}") == 5  # P, W_V P, mixed values, W_2, TF(P)
    assert f"{op.cost.ffn_width} x {op.cost.tokens}" in words
    assert not any("RMS" in word for word in words)


def test_the_diagrams_of_a_trained_model_name_its_shapes():
    model = initial(nf.recipe("quickstart", heads=2, ffn=96, loop_layers=3, post_layers=0))
    words = _words(structure_figure(structure_of(model), "quickstart"))
    assert {"a: 8 rows", "b: 1 row", "9 x 9", "64 x 9\n+ positions", "8 passes, the same weights"} <= set(words)
    assert "3 layers\n2 heads\nFFN width 96" in words and "NLAF$^t$, t = 1, ..., 8" in words
    assert not any("post" in word for word in words)
    words = _words(probe_figure(structure_of(model), 8, model.probe_rd.shape[0], "quickstart"))
    assert words.count("8 x 64") == words.count("16 x 64") == 3 and "$t = T$ = 8,  64 x 9" in words
    layer = layer_shape(model.blocks.loop[0])
    assert any("RMS" in word for word in _words(layer_figure(layer, 64, 9, "a layer")))


def test_the_diagram_of_a_compiled_algorithm_has_the_layers_of_its_cost(tmp_path: Path):
    cg = nf.algorithm("cg", n=4, verify=False)
    words = _words(structure_figure(structure_of(cg), "cg"))
    assert any(word.startswith(f"{cg.cost.loop.layers} layers\n") for word in words)
    with pytest.raises(OptionError, match="not a trained model"):
        named_solver(str(cg.save(tmp_path / "cg")))
    with pytest.raises(OptionError, match="no blocks"):
        named_model(str(build("add", 3).save(tmp_path / "add")))


def _layer(op: Operation) -> Figure:
    return layer_figure(layer_shape(op.model.pre[0]), op.layout.rows, op.layout.tokens, "a layer")


def _words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_picture_that_cannot_be_written_is_our_error(tmp_path: Path):
    picture = _layer(build("add", 3))
    with pytest.raises(FileError, match=r"PNG"):
        save(picture, tmp_path / "layer.jpg")
    (tmp_path / "file").write_text("in the way")
    for folder in ("file", "missing"):
        with pytest.raises(FileError, match="there is no folder"):
            save(picture, tmp_path / folder / "layer.png")
    assert not (tmp_path / "missing").exists()


def test_the_exponent_has_no_colour_but_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """2^40 as a colour would be off the scale, and nobody would know."""
    drawn: list[tuple[np.ndarray, float]] = []
    words: list[str] = []
    show, text = Axes.imshow, Axes.text
    monkeypatch.setattr(Axes, "imshow", lambda axis, X, **k: (drawn.append((X, k["vmax"])), show(axis, X, **k))[1])
    monkeypatch.setattr(Axes, "text", lambda axis, x, y, s, **k: (words.append(s), text(axis, x, y, s, **k))[1])
    op = build("matmul", 3)
    A, B = (operand[0] * 2.0**20 for operand in accuracy.draw("matmul", 3))
    draw_prompts(op, [A, B], tmp_path / "P.png")
    exponent = int(op.layout.read(torch.as_tensor(op.prompt(A, B)), "exponent", slice(0, 1)))
    assert abs(exponent) > 30 and words == [str(exponent)] * 2
    for image, largest in drawn:
        assert np.abs(image).max() <= largest < 10


def test_pictures_of_different_operations_have_different_names():
    names = {
        file_name(build("matmul", n, dtype, order=order, scheme=scheme))
        for n in (3, 4)
        for order, scheme in ((1, "antisymmetric"), (2, "antisymmetric"), (1, "paper"))
        for dtype in ("float64", "float32")
    }
    assert len(names) == 12 and "matmul-n3.png" in names


@pytest.mark.parametrize("given", [["layer"], ["structure"], ["probes", "cg-joint"], ["convergence", "--n", "3"]])
def test_the_command_diagram_writes_a_small_picture_and_names_it(given: list[str], tmp_path: Path, capsys):
    assert main(["diagram", *given, "--out", str(tmp_path / "drawn.png")]) == 0
    assert (tmp_path / "drawn.png").stat().st_size < 200_000 and "drawn.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["layer", "--out", "missing/layer.png"], "missing"),
        (["layer", "--n", "9" * 20], "1024"),
        (["layer", "--out", "layer.pdf"], "PNG"),
        (["layer", "--operation", "transpose"], "matrix_transpose"),
        (["layer", "cg-joint"], "cg-joint"),
        (["structure", "cg-acelerated"], "cg-accelerated"),
    ],
)
def test_a_mistake_in_the_command_diagram_is_one_line_and_code_2(given: list[str], says: str, capsys):
    assert main(["diagram", *given]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1
