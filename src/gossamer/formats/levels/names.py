"""The names of levels: what ``Format("dense", "compressed")`` understands."""

from __future__ import annotations

from gossamer.formats.levels.base import Level
from gossamer.formats.levels.bitmap import Bitmap
from gossamer.formats.levels.compressed import Compressed
from gossamer.formats.levels.dense import Dense
from gossamer.formats.levels.fixed import Fixed
from gossamer.formats.levels.singleton import Singleton

NAMES: dict[str, Level] = {
    "dense": Dense(),
    "bitmap": Bitmap(),
    "compressed": Compressed(),
    "compressed-nonunique": Compressed(unique=False),
    "singleton": Singleton(),
    "fixed": Fixed(),
}


def as_level(level: str | Level) -> Level:
    """Turn a name such as ``"compressed"`` into its level.

    Examples
    --------
    >>> as_level("compressed")
    Compressed(unique=True)
    >>> as_level("squeezed")
    Traceback (most recent call last):
        ...
    ValueError: unknown level 'squeezed'; known are dense, bitmap, compressed, compressed-nonunique, singleton, fixed
    """
    if isinstance(level, Level):
        return level
    if not isinstance(level, str) or level not in NAMES:
        raise ValueError(f"unknown level {level!r}; known are {', '.join(NAMES)}")
    return NAMES[level]


def level_name(level: Level) -> str | Level:
    """Return the name that :func:`as_level` understands, or the level itself if it has none.

    Examples
    --------
    >>> level_name(Compressed()), level_name(Fixed(3))
    ('compressed', Fixed(width=3))
    """
    return next((name for name, known in NAMES.items() if known == level), level)
