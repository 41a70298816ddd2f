"""Products of packed tiles by the instruction set that $GOSSAMER_ISA names; prints which one it was."""

import torch

from gossamer import native
from tests.kernels.tiles.exact import check_product

if __name__ == "__main__":
    torch.manual_seed(0)
    native.load()
    for rows, cols, tokens in ((17, 67, 5), (65, 131, 33), (130, 300, 1), (37, 71, 2), (33, 133, 3), (40, 64, 16)):
        check_product(rows, cols, tokens, 0.6)
    print(native.tiles_isa())
