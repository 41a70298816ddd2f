"""Products of every layout by the instruction set that $GOSSAMER_ISA names; prints which one it was."""

import torch

from gossamer import native
from tests.kernels.int8.exact import LAYOUTS, check_bits, check_convolution

if __name__ == "__main__":
    torch.manual_seed(0)
    native.load()
    for layout in LAYOUTS:
        for rows, cols, tokens in ((17, 67, 5), (65, 131, 33), (130, 300, 1), (37, 71, 2), (33, 133, 3)):
            check_bits(layout, rows, cols, tokens)
    check_convolution()
    print(native.int8_isa())
