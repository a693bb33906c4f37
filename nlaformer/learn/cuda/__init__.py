"""The fused training step on CUDA, behind one name; a reader may skip this folder.

``fused_engine`` gives an engine with the interface of ``learn.engine``. It is in ``fused.py``; ``unrolled.py`` has the
passes through the layers. The kernels are in ``products.py``, ``attention.py``, ``ends.py`` and ``update.py``, each
with the same in plain torch; ``launch.py`` says how they run.
"""

from nlaformer.learn.cuda.fused import fused_engine

__all__ = ["fused_engine"]
