"""The sizes of a convolution's result, for the fake functions of operators."""

from __future__ import annotations

from collections.abc import Sequence


def output_places(image: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the height and width of the result for images of a height and width.

    Parameters
    ----------
    image
        Height and width of an image.
    sizes
        Of the kernel, the stride and the dilation, each down and across; then the padding: left, right, top, bottom.

    Examples
    --------
    >>> output_places((32, 32), [3, 3, 2, 2, 1, 1, 1, 1, 1, 1])
    [16, 16]
    """
    kernel, stride, dilation, padding = sizes[:2], sizes[2:4], sizes[4:6], (sizes[8:10], sizes[6:8])
    return [
        (size + sum(pad) - d * (k - 1) - 1) // s + 1
        for size, k, s, d, pad in zip(image, kernel, stride, dilation, padding, strict=True)
    ]
