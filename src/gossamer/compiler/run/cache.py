"""The caches of plans, weak in the structures that the plans are for, and of designs, which are for any of them."""

from __future__ import annotations

from gossamer.formats.memo import Memo

#: Keys hold all that a plan depends on: program, types, sizes, strides, the ``id`` of each structure, the format of the
#: result. The number of threads is not part of a plan: a call asks for it.
PLANS = Memo(1 << 29)

#: What is decided without a look at a pattern. Keys hold statement or expression, types, sizes, formats, statistics.
DESIGNS = Memo(1 << 24)

#: Structures of results that were computed twice, by the ``id`` of the plan: from then on it computes values alone.
RESULTS = Memo(1 << 28)
