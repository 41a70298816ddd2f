"""Where the GPU time of a compiled call of benchmarks/llm.py goes, kernel by kernel.

    python benchmarks/llm_profile.py                      two layers, dense and sparse FP8, 128 and 2048 tokens
    python benchmarks/llm_profile.py --cases 1 64 --variants "2:4"

Microseconds of one layer, from torch's profiler; kernels with the same name are added up. What a call has once (the
last norm, embeddings, the mask) is divided by the number of layers too.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402

from benchmarks.llm import CASES, VARIANTS, Contender  # noqa: E402

CALLS = 10


def profile(contender: Contender, case: str) -> dict[str, tuple[float, float]]:
    """Microseconds and launches of each kernel, for one call."""
    if said := contender.prepare(case, "compiled"):
        raise RuntimeError(said)
    call = contender.calls[case, "compiled"]
    contender.resets[case]()
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    times: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent, count = times[event.name]
            times[event.name] = spent + event.device_time / CALLS, count + 1 / CALLS
    return dict(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--cases", nargs="*", default=["128", "2048"], choices=list(CASES))
    parser.add_argument("--variants", nargs="*", default=["dense bf16", "2:8 + 2:4 fp8"], choices=list(VARIANTS))
    arguments = parser.parse_args()
    arguments.device, arguments.tiny = "cuda", False
    for variant in arguments.variants:
        contender = Contender(variant, arguments)
        for case in arguments.cases:
            torch._dynamo.reset()
            with torch.inference_mode():
                times = profile(contender, case)
            total = sum(spent for spent, _ in times.values()) / arguments.layers
            print(f"\n{variant}, {case} tokens: {total:.1f} us a layer")
            for name, (spent, count) in sorted(times.items(), key=lambda item: -item[1][0])[:24]:
                print(f"{spent / arguments.layers:9.1f} us {count / arguments.layers:6.1f}x  {name[:150]}", flush=True)


if __name__ == "__main__":
    main()
