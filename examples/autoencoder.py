"""An autoencoder with sparse weights: one model, three kinds of weight.

python examples/autoencoder.py [--quick]
"""

import argparse
import warnings

import torch
from table import race, show

import gossamer as gs

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


def reconstruct(encoder: torch.Tensor, decoder: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Encode and decode a batch of columns."""
    return decoder @ torch.relu(encoder @ x)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    torch.manual_seed(0)
    wide, narrow, batch = (256, 64, 32) if quick else (4096, 1024, 128)
    encoder = gs.sparsify(torch.randn(narrow, wide) / wide**0.5, "95%", format=gs.CSR())
    decoder = gs.sparsify(torch.randn(wide, narrow) / narrow**0.5, "95%", format=gs.CSR())
    x = torch.randn(wide, batch)
    kinds = {
        "gossamer": (encoder, decoder),
        "torch.sparse": (encoder.to_torch(), decoder.to_torch()),
        "dense": (encoder.to_dense(), decoder.to_dense()),
    }
    with torch.no_grad():
        outputs = {name: reconstruct(*weights, x) for name, weights in kinds.items()}
        worst = max((outputs["dense"] - o).abs().max().item() for o in outputs.values())
        forward = race({n: lambda w=w: reconstruct(*w, x) for n, w in kinds.items()}, 0.2 if quick else 3)

    def step(weights: list[torch.Tensor]) -> float:
        for w in weights:
            w.grad = None
        loss = (reconstruct(*weights, x) - x).square().mean()
        loss.backward()
        return loss.item()

    trained = {n: [w.detach().clone().requires_grad_() for w in kinds[n]] for n in ("gossamer", "dense")}
    training = race({n: lambda w=w: step(w) for n, w in trained.items()}, 0.2 if quick else 3)
    print(f"autoencoder: {wide} -> {narrow} -> {wide}, 5 % of the weights; outputs differ by at most {worst:.1e}")
    assert worst < 1e-3
    show("forward, milliseconds (* fastest)", {f"batch of {batch}": forward})
    show("forward and backward; a sparse weight's gradient has its own pattern", {f"batch of {batch}": training})


if __name__ == "__main__":
    main()
