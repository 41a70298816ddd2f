"""What products launch: strides that kernels can read, and errors of sizes."""

import pytest
import torch

from gossamer.kernels.vnm.products import Sizes, compacted, compacts, complain_of_sizes, lines_of, result_of


def test_lines_by_hand():
    assert lines_of(torch.zeros(3, 16), False) == 16
    assert lines_of(torch.zeros(3, 12), False) is None  # no multiple of 8
    assert lines_of(torch.zeros(3, 24)[:, :12], False) == 24
    assert lines_of(torch.zeros(1, 12), False) == 16  # there is no next line
    assert lines_of(torch.zeros(12, 8).t(), True) == 8 and lines_of(torch.zeros(12, 8).t(), False) is None


def test_memory_of_results():
    x = torch.zeros(5, 64)
    assert result_of(x, 20, False)[:2] == ((5, 20), (20, 1)) and result_of(x, 20, True)[:2] == ((5, 20), (1, 8))
    sizes = Sizes(20, 130, 0, 8, 5)
    assert sizes.steps == 2 and compacted(sizes, x)[:2] == ((5, 128), (128, 1))
    assert compacts(sizes, False) and not compacts(sizes, True) and not compacts(sizes._replace(m=4), False)


@pytest.mark.parametrize(
    "x, bias, why",
    [
        (torch.zeros(2, 9), None, "takes an input of tokens x 8 and a bias of 4, not an input of (2, 9)"),
        (torch.zeros(8), None, "not an input of (8,)"),
        (torch.zeros(2, 8), torch.zeros(5), "not an input of (2, 8) and a bias of (5,)"),
        (torch.zeros(2, 8, device="meta"), None, "expected input, weight and bias on one device, got meta, cpu"),
    ],
)
def test_complaints(x, bias, why):
    with pytest.raises(RuntimeError) as error:
        complain_of_sizes(torch.zeros(4), x, bias, 4, 8)
    assert why in str(error.value)
    complain_of_sizes(torch.zeros(4), torch.zeros(0, 8), torch.zeros(4), 4, 8)
