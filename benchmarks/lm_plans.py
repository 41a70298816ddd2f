"""Which cases the language-model benchmark trains: to choose by, and to report."""

from __future__ import annotations

from typing import Any

from gossamer.app.bench.lm_cases import METHODS, Case

_END: dict[str, Any] = {"until": 0.75}
_LATE: dict[str, Any] = {"start": 0.15, "until": 0.75}

CHOICE = [
    Case("dense, cosine", rate="cosine"),
    Case("dense"),
    Case("GMP, cosine", "GMP", "90%", _LATE, rate="cosine"),
    Case("GMP, cosine, later", "GMP", "90%", {"start": 0.25, "until": 0.9}, rate="cosine"),
    Case("STE, cosine", "STE", "90%", {**_LATE, "schedule": "cubic"}, rate="cosine"),
    Case("GMP, cosine, boost 2", "GMP", "90%", _LATE, rate="cosine", boost=2),
    Case("GMP", "GMP", "90%", _END),
    Case("SRigL", "SRigL", "", _END),
    Case("SRigL, published", "SRigL", "", {**_END, "gamma": 0.3, "min_salient": 1}),
    Case("SRigL, no ablation", "SRigL", "", {**_END, "ablation": False}),
    Case("SR-STE 2:4", "SRSTE", "2:4"),
    Case("SR-STE 2:4, cosine, fixed", "SRSTE", "2:4", _END, rate="cosine"),
    Case("Static", "Static", "90%"),
    Case("Static, boost 4", "Static", "90%", boost=4),
    Case("RigL", "RigL", "90%", _END),
    Case("RigL, boost 4", "RigL", "90%", _END, boost=4),
    Case("dense, width 160", width=160),
    Case("dense, width 160, cosine", width=160, rate="cosine"),
    Case("trained, GMP, distilled", "GMP", "90%", {"until": 0.5}, rate="cosine", distil=0.5, trained=True),
    Case("GMP, cosine, distilled", "GMP", "90%", _LATE, rate="cosine", distil=0.5),
]

PLANS = {"choice": CHOICE, "report": METHODS}
