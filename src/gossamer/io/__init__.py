"""Saving and loading: safetensors, checked, complete or not at all, one tensor at a time."""

from gossamer.io.compressed import Compressed
from gossamer.io.container import BadFile
from gossamer.io.load import load
from gossamer.io.read import File
from gossamer.io.rows import Saved, inspect
from gossamer.io.write import save

__all__ = ["BadFile", "Compressed", "File", "Saved", "inspect", "load", "save"]
