"""Which cases the language-model benchmark trains: to choose by, and to report."""

from __future__ import annotations

from typing import Any

from gossamer.app.bench.lm_cases import METHODS, Case

_END: dict[str, Any] = {"until": 0.75}

_SOON: dict[str, Any] = {"start": 0.05, "until": 0.5}

CHOICE = [
    Case("dense, cosine", rate="cosine"),
    Case("GMP, soon", "GMP", "90%", _SOON, rate="cosine"),
    Case("GMP, soon, uniform", "GMP", "90%", {**_SOON, "distribution": "uniform"}, rate="cosine"),
    Case("STE, soon", "STE", "90%", {**_SOON, "schedule": "cubic"}, rate="cosine"),
    Case("SRigL", "SRigL", "", _END, rate="cosine"),
    Case("SRigL, published", "SRigL", "", {**_END, "gamma": 0.3, "min_salient": 1}, rate="cosine"),
    Case("SRigL, no ablation", "SRigL", "", {**_END, "ablation": False}, rate="cosine"),
    Case("SR-STE 2:4", "SRSTE", "2:4", rate="cosine"),
    Case("SR-STE 2:4, fixed", "SRSTE", "2:4", _END, rate="cosine"),
    Case("dense, equal weights", width=160, rate="cosine"),
    Case("Static, boost 4", "Static", "90%", rate="cosine", boost=4),
    Case("GMP, soon, distilled", "GMP", "90%", _SOON, rate="cosine", distil=0.5),
    Case("trained, GMP, distilled", "GMP", "90%", {"until": 0.5}, rate="cosine", distil=0.5, trained=True),
]

PLANS = {"choice": CHOICE, "report": METHODS}
