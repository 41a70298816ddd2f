"""One launch of each kind of product, for Nsight Compute: what docs/explanation/gpu.md says of bounds is read from it.

ncu --set full --clock-control none --profile-from-start off python benchmarks/gpu_profile.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.gpu import weights
from gossamer.kernels.transpose import feature_major


def main() -> None:
    """Launch each once before the profile begins, and once in it."""
    calls = []
    for m in (4, 8, 16, 100):
        x = feature_major(torch.randn(4096, 4096, device="cuda").half())
        calls.append((x, weights(4096, 4096, 512, m)[1]))
    for m, tokens in ((4, 16), (16, 1), (16, 16)):
        calls.append((torch.randn(tokens, 4096, device="cuda").half(), weights(14336, 4096, "all", m)[1]))
    with torch.no_grad():
        for x, weight in calls:
            F.linear(x, weight)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        for x, weight in calls:
            F.linear(x, weight)
            torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
