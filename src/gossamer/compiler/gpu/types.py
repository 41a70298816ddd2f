"""Types of values that GPU kernels compute with."""

from __future__ import annotations

import torch

#: Types of values: what they are called in a nest, and the type of sums.
VALUES = {
    torch.float16: ("half", torch.float32), torch.bfloat16: ("bfloat16", torch.float32),
    torch.float32: ("float", torch.float32), torch.float64: ("double", torch.float64),
    torch.int32: ("int", torch.int32), torch.int64: ("long", torch.int64),
}  # fmt: skip
