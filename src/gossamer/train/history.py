"""What happened: density, churn, ablated neurons and exploration of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.train.layers import Layer


class History:
    """Figures of the layers over the updates; all of it goes into a state dict."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.seen: dict[str, Tensor] = {layer.name: layer.mask.clone() for layer in layers}
        self.churn: dict[str, float] = dict.fromkeys(self.seen, 0.0)
        self.rows: list[dict[str, Any]] = []

    def record(self, step: int, layers: Sequence[Layer], masks: Sequence[Tensor | None]) -> None:
        """Remember an update, before it is made."""
        for layer, mask in zip(layers, masks, strict=True):
            if mask is None:
                continue
            each = torch.count_nonzero(mask, dim=1)
            kept, active = int(each.sum()), int(torch.count_nonzero(each))
            self.churn[layer.name] = int(torch.count_nonzero(mask > layer.mask)) / max(kept, 1)
            self.seen[layer.name] |= mask
            row = {"step": step, "layer": layer.name, "kept": kept, "churn": self.churn[layer.name]}
            self.rows.append({**row, "active": active, "explored": self.explored(layer)})

    def explored(self, layer: Layer) -> float:
        """Share of all positions that were kept at some time."""
        return int(torch.count_nonzero(self.seen[layer.name])) / layer.size

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
                "neurons": layer.neurons,
                "ablated": layer.neurons - active,
                "fan_in": int(each.max()),
                "explored": self.explored(layer),
            }
        updates = len({row["step"] for row in self.rows})
        return {"updates": updates, "kept": kept, "density": kept / max(size, 1), "layers": out}

    def write(self, writer: Any, log: dict[str, Any]) -> None:
        """Hand the figures to TensorBoard."""
        writer.add_scalar("sparsity/density", log["density"], log["step"])
        for name, figures in log["layers"].items():
            for what in ("density", "churn", "ablated", "explored"):
                writer.add_scalar(f"sparsity/{what}/{name}", figures[what], log["step"])

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "seen": {n: m.clone() for n, m in self.seen.items()},
            "churn": dict(self.churn),
            "rows": list(self.rows),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.seen = {n: state["seen"][n].to(mask.device).clone() for n, mask in self.seen.items()}
        self.churn, self.rows = dict(state["churn"]), list(state["rows"])
