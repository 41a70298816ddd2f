"""The history: density, churn, ablated neurons and exploration of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.train.layers import Layer

#: What is told of a layer over the updates, with the words for a plot's axis.
CURVES = {
    "density": "share of the weights that are kept",
    "churn": "share of the kept weights that were exchanged",
    "ablated": "share of the neurons that have no inputs",
    "explored": "share of the positions that were kept at some time",
}


class History:
    """Figures of the layers over the updates; all of it goes into a state dict."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.seen: dict[str, Tensor] = {layer.name: to_bits(layer.mask) for layer in layers}
        self.churn: dict[str, float] = dict.fromkeys(self.seen, 0.0)
        self.rows: list[dict[str, Any]] = []

    def record(self, step: int, layers: Sequence[Layer], masks: Sequence[Tensor | None]) -> None:
        """Remember an update, before it is made."""
        for layer, mask in zip(layers, masks, strict=True):
            if mask is None:
                continue
            each = mask.sum(1, dtype=torch.int32)
            kept, active = int(each.sum()), int(torch.count_nonzero(each))
            self.churn[layer.name] = int(torch.count_nonzero(mask > layer.mask)) / max(kept, 1)
            self.seen[layer.name] |= to_bits(mask)
            row = {"step": step, "layer": layer.name, "kept": kept, "churn": self.churn[layer.name]}
            self.rows.append({**row, "active": active, "explored": self.explored(layer)})

    def explored(self, layer: Layer) -> float:
        """Share of all positions that have ever been kept."""
        return count_bits(self.seen[layer.name]) / layer.size

    def figures(self, layers: Sequence[Layer]) -> dict[str, Any]:
        """Where all layers stand."""
        out, kept, size = {}, 0, 0
        for layer in layers:
            each = torch.count_nonzero(layer.mask, dim=1)
            nnz, active = int(each.sum()), int((each > 0).sum())
            kept, size = kept + nnz, size + layer.size
            out[layer.name] = {
                "density": nnz / layer.size,
                "churn": self.churn[layer.name],
                "neurons": layer.outputs,
                "ablated": layer.outputs - active,
                "fan_in": int(each.max()),
                "explored": self.explored(layer),
            }
        updates = len({row["step"] for row in self.rows})
        return {"updates": updates, "kept": kept, "density": kept / max(size, 1), "layers": out}

    def curves(self, layers: Sequence[Layer]) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Lines to draw: ``{what: {layer: {"step": [...], "value": [...]}}}``, for each of :data:`CURVES`."""
        of = {layer.name: layer for layer in layers}
        out: dict[str, dict[str, dict[str, list[float]]]] = {what: {} for what in CURVES}
        for row in self.rows:
            layer = of[row["layer"]]
            density, ablated = row["kept"] / layer.size, 1 - row["active"] / max(layer.outputs, 1)
            for what, share in zip(CURVES, (density, row["churn"], ablated, row["explored"]), strict=True):
                line = out[what].setdefault(layer.name, {"step": [], "value": []})
                line["step"].append(row["step"])
                line["value"].append(share)
        return out

    def write(self, writer: Any, log: dict[str, Any]) -> None:
        """Send the figures to TensorBoard."""
        writer.add_scalar("sparsity/density", log["density"], log["step"])
        for name, figures in log["layers"].items():
            for what in CURVES:
                writer.add_scalar(f"sparsity/{what}/{name}", figures[what], log["step"])

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "seen": {n: m.clone() for n, m in self.seen.items()},
            "churn": dict(self.churn),
            "rows": list(self.rows),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from there."""
        self.seen = {n: state["seen"][n].to(bits.device).clone() for n, bits in self.seen.items()}
        self.churn, self.rows = dict(state["churn"]), list(state["rows"])


def to_bits(mask: Tensor) -> Tensor:
    """Pack eight positions into a byte, so that the mask of explored positions takes less memory than the kept weights.

    Examples
    --------
    >>> import torch
    >>> to_bits(torch.tensor([True, False, True, False, False, False, False, False, True]))
    tensor([5, 1], dtype=torch.uint8)
    """
    flat = mask.reshape(-1).view(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    out = flat[:, 0].clone()
    for bit in range(1, 8):
        out |= flat[:, bit] << bit
    return out


def count_bits(bits: Tensor) -> int:
    """How many positions are True.

    Examples
    --------
    >>> import torch
    >>> count_bits(torch.tensor([5, 1], dtype=torch.uint8))
    3
    """
    if not len(bits):
        return 0
    counts = torch.bincount(bits, minlength=256)
    ones = torch.tensor([number.bit_count() for number in range(256)], device=bits.device)
    return int((counts * ones).sum())
