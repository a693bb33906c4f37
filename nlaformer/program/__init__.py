"""An algorithm as data: what a user's class computes, and everything that needs no transformer.

=========  ============================================================================================================
language   what a user writes: language (Program and its functions), learned (parts that are left open), inputs
tracing    trace: the methods run once on arrays (arrays, views and writes) that note what is done with them; numpy and
           functions: what NumPy's and torch's names mean; creation: np.zeros and its like while a method runs;
           hidden: what a program remembers beside its states; refusals, source, text: what is said, and of which line
graph      ir: nodes with shapes, and moves; primitives: one record each, of what is known of it: tensors (its value),
           rounding, enclose, facts (units, signs), rewrites (in terms of others); core: a program in those with weights
data       data: a program as a graph, as JSON, and its iteration; expression: values on batches; sizes: for another n;
           earlier: files of version 0.3
running    run: what a run takes and returns; judge: the rule; status: how it ended; lines: beside the user's own
=========  ============================================================================================================
"""
