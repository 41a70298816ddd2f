"""How near a product must be to the exact one."""

import torch
import torch.nn.functional as F

UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def assert_right(out, x, weight, bias=None, activation=None, twice=False):
    """|error| <= k u |w||x| for k sums in float32, and the rounding of the result; activations steepen little.

    ``twice``: what comes before the last step, the bias or the activation, is rounded too, as by torch's own two.
    """
    x, weight, bias = (None if t is None else t.detach().double() for t in (x, weight, bias))
    exact = F.linear(x, weight, bias)
    size = F.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())
    before = exact
    exact = exact if activation is None else activation(exact)
    kept = int((weight != 0).sum(1).max()) if weight.numel() else 0
    bound = 1.2 * (kept + 4) * 2.0**-24 * size + UNIT[out.dtype] * exact.abs() + 1e-7
    if twice:
        bound = bound + UNIT[out.dtype] * 1.2 * torch.maximum(F.linear(x, weight).abs(), before.abs())  # gelu's slope
    error = (out.detach().double() - exact).abs()
    assert out.shape == exact.shape and bool(torch.isfinite(out).all())
    assert bool((error <= bound).all()), f"error {float((error - bound).max())} above the bound at {out.shape}"
