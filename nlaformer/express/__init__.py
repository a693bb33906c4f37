"""Operations as transformer weights: the paper's section 2."""
