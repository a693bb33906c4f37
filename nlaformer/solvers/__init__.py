"""nf.solve: systems in, answers with a certificate out, with or without a model; CG and PCG, which also teach."""
