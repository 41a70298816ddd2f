"""The one cache of plans: bounded by bytes, and weak in the structures that the plans are for."""

from __future__ import annotations

from gossamer.formats.memo import Memo

#: Keys hold all that a plan depends on: program, types, sizes, strides, the ``id`` of each structure, the format of the
#: result. The number of threads is not part of a plan: a call asks for it.
PLANS = Memo(1 << 29)
