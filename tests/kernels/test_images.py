"""Sizes of convolutions, against torch's."""

import pytest
import torch
import torch.nn.functional as F

from gossamer.kernels.images import output_places


@pytest.mark.parametrize("image", [(7, 9), (16, 5), (12, 12)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 2), (5, 3)])
@pytest.mark.parametrize(("stride", "dilation"), [((1, 1), (1, 1)), ((2, 3), (1, 2)), ((3, 1), (2, 1))])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 2, 3, 4), (4, 0, 5, 6)])
def test_as_torch(image, kernel, stride, dilation, padding):
    padded = F.pad(torch.zeros(1, 1, *image), padding)
    if any(size < d * (k - 1) + 1 for size, k, d in zip(padded.shape[2:], kernel, dilation, strict=True)):
        pytest.skip("torch refuses a kernel that is larger than the padded image")
    expected = F.conv2d(padded, torch.zeros(1, 1, *kernel), stride=stride, dilation=dilation).shape[2:]
    assert tuple(output_places(image, [*kernel, *stride, *dilation, *padding])) == tuple(expected)
