"""Saving and loading: safetensors, checked, whole or not at all, one tensor at a time."""

from gossamer.io.container import BadFile
from gossamer.io.load import load
from gossamer.io.read import File
from gossamer.io.rows import Saved, inspect
from gossamer.io.write import save

__all__ = ["BadFile", "File", "Saved", "inspect", "load", "save"]
