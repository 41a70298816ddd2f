"""Which cases the language-model benchmark trains: to choose by, and to report."""

from __future__ import annotations

from typing import Any

from gossamer.app.bench.lm_cases import METHODS, Case

_END: dict[str, Any] = {"until": 0.75}
_LATE: dict[str, Any] = {"start": 0.15, "until": 0.75}
_SOON: dict[str, Any] = {"start": 0.05, "until": 0.5}
_PUBLISHED: dict[str, Any] = {**_END, "gamma": 0.3, "min_salient": 1}

#: What was compared on the King James Bible, to choose a recipe and defaults.
CHOICE = [
    Case("dense"),
    Case("dense, equal weights", width=160),
    Case("GMP, boost 2", "GMP", "90%", _LATE, boost=2),
    Case("GMP", "GMP", "90%", _LATE),
    Case("GMP, later", "GMP", "90%", {"start": 0.25, "until": 0.9}),
    Case("GMP, sooner", "GMP", "90%", _SOON),
    Case("GMP, sooner, uniform", "GMP", "90%", {**_SOON, "distribution": "uniform"}),
    Case("GMP, sooner, distilled", "GMP", "90%", _SOON, distil=0.5),
    Case("trained, GMP, distilled", "GMP", "90%", {"until": 0.5}, distil=0.5, trained=True),
    Case("STE, sooner", "STE", "90%", {**_SOON, "schedule": "cubic"}),
    Case("Static, boost 4", "Static", "90%", boost=4),
    Case("SRigL", "SRigL", "", _END),
    Case("SRigL, published", "SRigL", "", _PUBLISHED),
    Case("SRigL, no ablation", "SRigL", "", {**_END, "ablation": False}),
    Case("SR-STE 2:4", "SRSTE", "2:4"),
    Case("SR-STE 2:4, fixed", "SRSTE", "2:4", _END),
]

#: The figures of the docs, on the American Standard Version.
REPORT = [
    Case("dense"),
    Case("SR-STE 2:4", "SRSTE", "2:4"),
    Case("Static", "Static", "90%"),
    Case("Static, boost 4", "Static", "90%", boost=4),
    Case("RigL, boost 4", "RigL", "90%", _END, boost=4),
    Case("Static all:2:8, boost 2.3", "Static", "all:2:8", boost=2.3),
    Case("dense, equal weights of 75%", width=256),
    Case("dense, equal weights", width=160),
    Case("dense, equal weights, boost 3", width=160, boost=3),
    Case("trained, GMP, distilled", "GMP", "90%", {"until": 0.5}, distil=0.5, trained=True),
]

PLANS = {"choice": CHOICE, "report": REPORT, "all": METHODS}
