"""Algorithms as transformers: a program as data becomes the weights of a looped NLAFormer (the paper's section 3).

How a Python class becomes data is ``nlaformer.program``. The modules here, in the order to read them:

=========  ============================================================================================================
compiling  compiling: all stages in order; weights: from a program as data to weights; progress: what it says
lower/     normal (one way to say one thing), facts (units, signs, what vanishes), scales, and a rule for each core
           primitive, in a context that the rules share; terms: the sums that values are
machine/   what the rules make: rows, instructions that say their layer, their weights and their words; schedule, emit
artefact   config, algorithm: what comes of it, and its runs; states: where they stand in P; filled: a program whose
           learned parts are filled in; verify: the user's own lines and the weights, before ``compile`` returns
library/   the programs of ``nf.algorithm``
=========  ============================================================================================================
"""
