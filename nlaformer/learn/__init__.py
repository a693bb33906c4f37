"""Learn iterative solvers with the NLAFormer architecture: the paper's section 4."""
