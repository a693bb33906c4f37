"""Algorithms as transformers: a Python class becomes the weights of a looped NLAFormer (the paper's section 3).

The modules, in the order to read them:

=========  ============================================================================================================
tracing    language (what a user writes), learned (parts of it left open); graph, values, functions, calls: what its
           lines compute; places, refusals: where a line cannot be compiled, and what to
           write instead; entries, fresh, pieces: indices, arrays made by a method, arrays of other sizes; hidden: what
           it remembers beside its states; trace: all of it together
running    expression (the one evaluator), reference (a program as data), inputs, result (``Program.run``)
compiling  compiling: all stages in order; progress: what it says; rewrites, analysis: what may be compiled; filled: a
           part's network; weights: from a program as data; terms: values as sums; config, algorithm: what comes of it,
           and its runs; states
lower/     a rule for each core primitive of ``nlaformer.program``, in a context that the rules share; normal: one way
           to say one thing; facts, scales: what is known before
machine/   what the rules make: rows, instructions that say their layer, their weights and their words; schedule, emit
judging    judge: the rule; status: how a run ended, and why; verify: the user's own lines and the weights, before
           ``compile`` returns
library/   the programs of ``nf.algorithm``
=========  ============================================================================================================
"""

from nlaformer.compiler import language as language  # gives every Program its run
