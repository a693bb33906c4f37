"""Algorithms as transformers: a Python class becomes the weights of a looped NLAFormer (the paper's section 3).

The modules, in the order to read them:

=========  ============================================================================================================
tracing    language (what a user writes), learned (parts of it left open); graph, values, functions, calls: what its
           lines compute; text: what a value prints as; places, refusals: where a line cannot be compiled, and what to
           write instead; entries, fresh, pieces: indices, arrays made by a method, arrays of other sizes; hidden: what
           it remembers beside its states; trace: all of it together; graphs: what program/ traces, through lower/
running    expression (the one evaluator), reference (a program as data), inputs, result (``Program.run``)
compiling  compiling: all stages in order
           analyse: rewrites, analysis
           select: terms, instructions, vanishing, scaling, nodes, moves, products, select; filled: a part's network
           schedule: schedule
           emit: rows, emit, emit_exact, emit_logarithms; filled again
           config, algorithm: what comes of it, and its runs; states: where they stand
lower/     a second back end, which replaces select, schedule and emit: facts, scales, a rule for each core primitive of
           ``nlaformer.program``, in a context that the rules share; compiling takes it where it is told to
machine/   what it makes: rows, instructions that say their layer, their weights and their words, schedule, emit
judging    judge: the rule; status: how a run ended, and why; verify: the user's own lines and the weights, before
           ``compile`` returns
library/   the programs of ``nf.algorithm``
=========  ============================================================================================================

The selector is one class in six files, each a subclass of the one before: Builder (instructions), Scaling, Nodes,
Moves, Products, _Selector (select). They share what is private. The value of a node with the op "dot" is made by the
method ``_dot``, wherever it is; other private methods are helpers.
"""

from nlaformer.compiler import language as language  # gives every Program its run
