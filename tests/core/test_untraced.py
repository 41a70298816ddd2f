"""Functions that torch.compile leaves alone."""

import pytest
import torch

from gossamer.core.untraced import untraced


@untraced
def outer(x):
    return inner(x), torch.compiler.is_compiling()


def inner(x):
    return x + 1 if not torch.compiler.is_compiling() else x + 100


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_neither_it_nor_what_it_calls_is_traced(backend):
    def call(x):
        y, traced = outer(2 * x)
        return 3 * y, traced

    out, traced = torch.compile(call, backend=backend)(torch.ones(2))
    assert out.tolist() == [9, 9] and not traced
    assert torch.compile(inner, backend=backend)(torch.ones(1)).item() == 101  # others are


def test_compiling_goes_on_after_an_error():
    @untraced
    def fails():
        raise ValueError("no")

    def call(x):
        try:
            fails()
        except ValueError:
            return inner(x)

    assert torch.compile(call, backend="eager")(torch.ones(1)).item() in (2, 101)
    assert torch.compile(inner, backend="eager")(torch.ones(1)).item() == 101


def test_it_keeps_its_name_and_result():
    assert outer.__name__ == "outer" and outer(torch.ones(1))[0].item() == 2
