"""What a construction costs: the columns of the paper's Table 1, measured."""

from __future__ import annotations

from dataclasses import dataclass

from nlaformer.transformer import NLAFormer


@dataclass(frozen=True)
class Cost:
    """Size of the prompt and of the transformer; heads and FFN width are the largest over the layers.

    Examples
    --------
    >>> import nlaformer as nf
    >>> print(nf.operation("matmul", n=20).cost)
    82 rows x 21 tokens = 1,722 entries; 1 layer, 2 heads, FFN width 0
    """

    rows: int
    tokens: int
    layers: int
    heads: int
    ffn_width: int

    @property
    def entries(self) -> int:
        return self.rows * self.tokens

    @classmethod
    def of(cls, model: NLAFormer, rows: int, tokens: int, loops: int = 0) -> Cost:
        """Read the cost off a model; ``loops`` passes of the loop block count as that many layers."""
        layers = [*model.pre, *model.loop, *model.post]
        return cls(
            rows=rows,
            tokens=tokens,
            layers=len(model.pre) + loops * len(model.loop) + len(model.post),
            heads=max((layer.heads.count for layer in layers if layer.heads is not None), default=0),
            ffn_width=max((layer.ffn.width for layer in layers if layer.ffn is not None), default=0),
        )

    def __str__(self) -> str:
        def counted(number: int, noun: str) -> str:
            return f"{number} {noun}" + ("" if number == 1 else "s")

        return (
            f"{self.rows} rows x {self.tokens} tokens = {self.entries:,} entries; "
            f"{counted(self.layers, 'layer')}, {counted(self.heads, 'head')}, FFN width {self.ffn_width}"
        )
