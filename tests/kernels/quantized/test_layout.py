"""Layouts: their texts, and the GPUs that they are for."""

import pytest

from gossamer.kernels.quantized.layout import Layout, refusal


@pytest.mark.parametrize(
    "text",
    ["fp8 dense", "int8 dense", "fp8 2:4", "int8 all:2:8", "fp8 weights 64:2:16", "int4 weights all:2:100",
     "fp8 bitmap"],
)  # fmt: skip
def test_texts_are_read_back(text):
    assert str(Layout.read(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "fp8", "fp9 dense", "fp8 weights dense", "int4 2:4", "int4 dense", "fp8 64:2:4", "fp8 2:8 ", "fp8 1:4",
     "int8 bitmap", "int4 bitmap", "fp8 weights bitmap", "fp8 bitmap ", "int4 weights bitmap"],
)  # fmt: skip
def test_others_are_refused(text):
    with pytest.raises(ValueError, match="no layout"):
        Layout.read(text)


def test_gpus():
    assert Layout("fp8", "all", 8).refusal((9, 0)) is None and Layout("int8", "all", 4).refusal((9, 0)) is None
    assert "9.0" in Layout("fp8", "all", 8).refusal((10, 0))
    assert Layout("fp8").refusal((8, 9)) is None and "8.9" in Layout("fp8").refusal((8, 6))
    assert Layout("fp8", 64, 8, weights_only=True).refusal((8, 0)) is None
    assert Layout("fp8", bitmap=True).refusal((9, 0)) is None and "9.0" in Layout("fp8", bitmap=True).refusal((8, 9))
    assert refusal("int4", (7, 5)) is not None and refusal("int8", (8, 0)) is None
