"""The schemas that a C++ program defines are those of the Python package."""

from __future__ import annotations

import ctypes

import pytest
import torch

from gossamer import native


def test_the_same_as_in_python() -> None:
    if not native.load():
        pytest.skip(native.why_not())
    schema = ctypes.CDLL(str(native.path())).gossamer_schema
    schema.restype = ctypes.c_char_p
    found = []
    while (text := schema(len(found))) is not None:
        found.append(text.decode())
    for text in found:
        operator = getattr(torch.ops.gossamer, text.partition("(")[0]).default
        assert str(operator._schema) == f"gossamer::{text}"
    names = {text.partition("(")[0] for text in found}
    assert {"int8_linear", "int8_linear_ranged", "rows_forward", "rows_int8", "blocks_forward"} <= names
