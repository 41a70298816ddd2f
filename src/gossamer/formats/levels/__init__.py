"""The language of levels: every format is a stack of these.

A tensor is stored as a tree. Level 0 holds the coordinates of its first (storage) dimension, level 1 those of the
second below each of them, and so on; a **position** is a node of one level, and the positions of the last level are
where the values lie. Each kind of level is a file here, answers four questions, and knows nothing of the others:

``pack``
    sorted coordinates -> the arrays that store them, and the position of every entry;
``unpack``
    the arrays -> parent and coordinate of every position;
``check``
    are the arrays whole? Otherwise: which promise is broken;
``positions``
    how many positions the level has.

This package imports nothing of ours.

With a fifth, the constant ``walk``, the compiler (:mod:`gossamer.compiler`) walks the arrays as they are, and
``levels.walking`` checks all that it would read; without it, a stack is repacked into compressed levels first, once for
each structure. With ``store`` and ``prepare`` the compiler also writes them, when a tensor is converted; without,
``pack`` does.
"""

from gossamer.formats.levels.base import KINDS, Arrays, Level, Packed, Store, Unpacked, Walk
from gossamer.formats.levels.bitmap import Bitmap
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
    "KINDS", "LANES", "Arrays", "Bitmap", "Compressed", "Dense", "Fixed", "FixedLanes", "HalfLanes", "Lanes", "Level",
    "NearLanes", "Packed", "Pairs", "Pieces", "Singleton", "Slots", "Store", "Unpacked", "Walk", "as_level", "check",
    "level_name",
]  # fmt: skip
