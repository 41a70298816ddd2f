"""The language of levels: every format is a stack of these.

A tensor is stored as a tree. Level 0 has the coordinates of its first (storage) dimension, level 1 those of the second
dimension for each of them, and so on. A **position** is a node of one level, and the values are at the positions of the
last level. Each kind of level is one file here with four methods, and is independent of the others:

``pack``
    sorted coordinates -> the arrays that store them, and the position of every entry;
``unpack``
    the arrays -> parent and coordinate of every position;
``check``
    are the arrays valid? Otherwise an error names the broken rule;
``positions``
    how many positions the level has.

This package imports nothing else of gossamer.

If a level also has the constant ``walk``, the compiler (:mod:`gossamer.compiler`) reads the arrays directly, and
``levels.walking`` checks everything that it would read. Without it, a stack is converted to compressed levels first,
once for each structure. With ``store`` and ``prepare`` the compiler also writes the arrays when a tensor is converted;
without them, ``pack`` does.
"""

from gossamer.formats.levels.base import KINDS, Arrays, Level, Packed, Store, Unpacked, Walk
from gossamer.formats.levels.bitmap import Bitmap
from gossamer.formats.levels.bits import Bits
from gossamer.formats.levels.compressed import Compressed
from gossamer.formats.levels.dense import Dense
from gossamer.formats.levels.fixed import Fixed
from gossamer.formats.levels.fixed_lanes import FixedLanes
from gossamer.formats.levels.half_lanes import HalfLanes
from gossamer.formats.levels.lanes import LANES, Lanes
from gossamer.formats.levels.names import as_level, level_name
from gossamer.formats.levels.near_lanes import NearLanes
from gossamer.formats.levels.pairs import Pairs
from gossamer.formats.levels.pieces import Pieces
from gossamer.formats.levels.singleton import Singleton
from gossamer.formats.levels.slots import Slots
from gossamer.formats.levels.walking import check

__all__ = [
    "KINDS", "LANES", "Arrays", "Bitmap", "Bits", "Compressed", "Dense", "Fixed", "FixedLanes", "HalfLanes", "Lanes",
    "Level", "NearLanes", "Packed", "Pairs", "Pieces", "Singleton", "Slots", "Store", "Unpacked", "Walk", "as_level",
    "check", "level_name",
]  # fmt: skip
