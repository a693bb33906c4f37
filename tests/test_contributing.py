"""The example of CONTRIBUTING.md, put together from its own code blocks, works."""

import re
import textwrap
from pathlib import Path

import numpy as np

from nlaformer.express import theorem as operations
from nlaformer.express.construction import Options
from nlaformer.express.operation import Operation
from nlaformer.transformer import NLAFormer


def test_the_gram_matrix_of_the_guide():
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)]
    body = "n = options.n\n" + "\n".join(blocks)
    scope = dict(vars(operations))
    exec("def gram(options):\n" + textwrap.indent(body, "    "), scope)
    options = Options("gram", n=12)
    construction = scope["gram"](options)
    op = Operation(options, construction, NLAFormer(pre=construction.layers))
    A = np.random.default_rng(0).normal(size=(3, 12, 12)) * 1e4
    wanted = np.swapaxes(A, -1, -2) @ A
    assert np.linalg.norm(op(A) - wanted) <= 1e-9 * np.linalg.norm(wanted)
    assert (np.abs(op(A) - wanted) <= op.error_bound(A)).all()
