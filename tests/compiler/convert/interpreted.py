"""Conversions by the interpreter of nests: what they mean, without a C compiler."""

import contextlib

import pytest

from gossamer.compiler.convert import restack
from gossamer.compiler.convert.passes import Passes


@contextlib.contextmanager
def interpreted():
    """Let the interpreter run every nest of a conversion, of tensors of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Passes, "run", Passes.interpret)
        patch.setattr(restack, "available", lambda: True)
        patch.setattr(restack, "LEAST", 0)
        yield
