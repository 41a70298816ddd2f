"""A convolution with a sparse kernel as one einsum, with its gradients.

python examples/sparse_convolution.py [--quick]
"""

import argparse

import torch
from table import race, show

import gossamer as gs

CONVOLUTION = "o c p q, b c y+p x+q -> b o y x"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)
    channels, size = (8, 16) if quick else (64, 32)
    weight = gs.sparsify(torch.randn(channels, channels, 3, 3), "95%", format=gs.CSF())
    x = torch.randn(2, channels, size, size)
    kernels = {"gossamer": weight, "dense": weight.to_dense()}

    def convolve(name: str, kernel: torch.Tensor) -> torch.Tensor:
        return gs.einsum(CONVOLUTION, kernel, x) if name == "gossamer" else torch.nn.functional.conv2d(x, kernel)

    def gradient(name: str) -> torch.Tensor:
        kernel = kernels[name].detach().requires_grad_()
        convolve(name, kernel).square().sum().backward()
        return kernel.grad.to_dense() * weight.mask() if name == "gossamer" else kernel.grad * weight.mask()

    worst = (convolve("gossamer", weight) - convolve("dense", kernels["dense"])).abs().max().item()
    slope = ((gradient("gossamer") - gradient("dense")).abs().max() / gradient("dense").abs().max()).item()
    print(f"{channels} channels, {weight.nnz:,} weights; outputs differ by {worst:.1e}, gradients by {slope:.1e}")
    assert worst < 1e-3 and slope < 1e-3
    with torch.no_grad():
        forward = race({name: lambda n=name: convolve(n, kernels[n]) for name in kernels}, 0.2 if quick else 3)
    show("milliseconds (* fastest)", {"forward": forward})


if __name__ == "__main__":
    main()
