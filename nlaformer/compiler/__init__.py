"""Algorithms as transformers: a Python class becomes the weights of a looped NLAFormer (the paper's section 3)."""
