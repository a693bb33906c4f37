"""What did it learn: recordings, interventions and probes of a model, and a battery of tests beside known algorithms.

``nf.microscope`` is the battery and this is its room, and both have one name: Python sets the attribute of a package to
a subpackage when that is first imported. So the room can be called, and passes the call on.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from nlaformer.microscope.battery import microscope

        return microscope(*args, **options)


sys.modules[__name__].__class__ = _Room
