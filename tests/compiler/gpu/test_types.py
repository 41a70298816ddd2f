"""Types of values: each has a name in nests, and half precision is summed in single precision."""

import torch

from gossamer.compiler.gpu.types import VALUES


def test_types_of_sums():
    for dtype, (name, sums) in VALUES.items():
        assert sums == (torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype)
        assert name == {
            "float32": "float",
            "float64": "double",
            "float16": "half",
            "int32": "int",
            "int64": "long",
        }.get(str(dtype)[6:], "bfloat16")
