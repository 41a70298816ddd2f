"""Memory for results: zeros where they are asked for, whoever writes them."""

import pytest
import torch

from gossamer.compiler.convert import memory
from gossamer.compiler.convert.memory import _MAPPED, _PAGE, fresh


@pytest.mark.parametrize("size", [0, 3, _PAGE, 3 * _PAGE + 5, _MAPPED - 1, _MAPPED + 4096])
def test_zeros(size):
    for _ in range(2):
        out = fresh(size, torch.uint8, zero=True)
        assert out.shape == (size,) and not bool(out.any())
        out.fill_(7)  # the next one must not see it


def test_what_the_system_gives_is_an_ordinary_tensor():
    out = fresh((_MAPPED // 8, 2), torch.float32, zero=True)
    out[5, 1] = 2
    assert out.shape == (_MAPPED // 8, 2) and out.is_contiguous() and float(out.sum()) == 2
    assert torch.equal(out.clone(), out) and out.requires_grad_().is_leaf


@pytest.mark.parametrize("keeps", [True, False], ids=["memory that keeps what it holds", "no such call"])
def test_zeros_are_written_where_the_system_does_not_give_them(keeps, monkeypatch):
    monkeypatch.setattr(memory, "_advise", (lambda: lambda *args: 0) if keeps else lambda: None)
    assert not bool(fresh(_MAPPED + 4096, torch.uint8, zero=True).any())
