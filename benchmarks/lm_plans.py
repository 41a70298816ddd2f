"""Which cases the language-model benchmark trains: to choose by, and to report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from gossamer.app.bench.lm_cases import METHODS, Case
from gossamer.scores import Gradient

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
    Case("SRigL, gamma 0.95", "SRigL", "", {**_END, "gamma": 0.95}),
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

#: What a net is trained against: smaller dense ones, each with the learning rate that suits it.
KEY = [
    Case("dense"),
    Case("dense, equal weights, boost 3", width=160, boost=3),
    Case("dense, equal weights of 75%, boost 2", width=256, boost=2),
    Case("Static, boost 4", "Static", "90%", boost=4),
    Case("Static all:2:8, boost 2.3", "Static", "all:2:8", boost=2.3),
    Case("SR-STE 2:4", "SRSTE", "2:4"),
]

#: All other methods and patterns, and dense nets of equal inference time.
OTHERS = [
    Case("trained, GMP, distilled", "GMP", "90%", {"until": 0.5}, distil=0.5, trained=True),
    Case("trained, GMP all:2:8, distilled", "GMP", "all:2:8", {"until": 0.5}, distil=0.5, trained=True),
    Case("GMP", "GMP", "90%", _LATE),
    Case("SRigL, gamma 0.95", "SRigL", "", {**_END, "gamma": 0.95}),
    Case("SRigL, no ablation", "SRigL", "", {**_END, "ablation": False}),
    Case("SET, boost 4", "SET", "90%", _END, boost=4),
    Case("Top-KAST, boost 4", "TopKAST", "90%", _END, boost=4),
    Case("Movement", "Movement", "90%", _END),
    Case("HardConcrete", "HardConcrete", "90%", _END),
    Case("AC/DC", "ACDC", "90%", _END),
    Case("SR-STE 2:4, transposable", "SRSTE", "2:4", {"transposable": True, "refresh": 40}),
    Case("Static fan-in, boost 4", "Static", "fan-in 90%", boost=4),
    Case("Static block 4x4, boost 4", "Static", "block 4x4 90%", boost=4),
    Case("Static 75%, boost 2.3", "Static", "75%", boost=2.3),
    Case("Static 95%, boost 6", "Static", "95%", boost=6),
    Case("dense, boost 2", boost=2),
    Case("dense, width 192, boost 3", width=192, boost=3),
    Case("dense, width 224, boost 3", width=224, boost=3),
]

#: Those of them that an earlier run did not finish.
UNFINISHED = (
    "Top-KAST, boost 4", "Movement", "HardConcrete", "SR-STE 2:4, transposable", "Static block 4x4, boost 4",
    "Static 75%, boost 2.3", "Static 95%, boost 6", "dense, width 192, boost 3", "dense, width 224, boost 3",
)  # fmt: skip

#: Three times as long: does exchanging weights pay, and does the recipe stay ahead of the smaller net?
LONG = [Case("RigL", "RigL", "90%", _END), Case("Static", "Static", "90%")]
LONG_BEST = [
    Case("Static, boost 4", "Static", "90%", boost=4),
    Case("dense, equal weights, boost 3", width=160, boost=3),
]

#: SRigL by what it ablates, on the text that choices are made by.
ABLATION = [
    Case("SRigL, gamma 0.95", "SRigL", "", {**_END, "gamma": 0.95}),
    Case("SRigL, gamma 0.3", "SRigL", "", {**_END, "gamma": 0.3}),
    Case("SRigL, no ablation", "SRigL", "", {**_END, "ablation": False}),
]


#: RigL that exchanges fewer weights: chosen on one text, reported on the other.
EXCHANGE = [
    Case("Static", "Static", "90%"),
    Case("RigL, fraction 0.1", "RigL", "90%", {**_END, "fraction": 0.1}),
    Case("RigL, fraction 0.1, mean of 8 steps", "RigL", "90%", {**_END, "fraction": 0.1, "growth": 8}),
]

#: What learns from the trained dense net: the same net pruned, and smaller ones of as many weights or as fast.
_HALF: dict[str, Any] = {"until": 0.5}
TAUGHT = [
    Case("trained, GMP, distilled", "GMP", "90%", _HALF, distil=0.5, trained=True),
    Case("dense, equal weights, boost 3, distilled", width=160, boost=3, distil=0.5),
]
TAUGHT_28 = [
    Case("trained, GMP all:2:8, distilled", "GMP", "all:2:8", _HALF, distil=0.5, trained=True),
    Case("dense, equal weights of 75%, boost 2, distilled", width=256, boost=2, distil=0.5),
]
TAUGHT_AS_FAST = [
    Case("dense, width 192, boost 3, distilled", width=192, boost=3, distil=0.5),
    Case("dense, width 224, boost 3, distilled", width=224, boost=3, distil=0.5),
]
TAUGHT_FOLLOWED = [
    Case("trained, GMP, following, distilled", "GMP", "90%", _HALF, follow=0.6, distil=0.5, trained=True)
]
SMALL = [
    Case("dense, equal weights, boost 3", width=160, boost=3),
    Case("dense, width 192, boost 3", width=192, boost=3),
    Case("dense, width 224, boost 3", width=224, boost=3),
    Case("dense, equal weights of 75%, boost 2", width=256, boost=2),
]

#: Gradual pruning with a learning rate that follows the density: when does it end, and how far does it go up?
GRADUAL = {
    "early": Case("GMP, following, 0 to 30 %", "GMP", "90%", {"until": 0.3}, follow=0.6),
    "half": Case("GMP, following, 5 to 50 %", "GMP", "90%", _SOON, follow=0.6),
    "late": Case("GMP, following, 15 to 75 %", "GMP", "90%", _LATE, follow=0.6),
    "less": Case("GMP, following by 0.4, 5 to 50 %", "GMP", "90%", _SOON, follow=0.4),
    "later": Case("GMP, following, 20 to 85 %", "GMP", "90%", {"start": 0.2, "until": 0.85}, follow=0.6),
    "late, blocks": Case("GMP 4x4 blocks, following, 15 to 75 %", "GMP", "block 4x4 90%", _LATE, follow=0.6),
}
GRADUAL_28 = {
    name: replace(case, name=case.name.replace("GMP", "GMP all:2:8 by groups"), how="all:2:8")
    for name, case in GRADUAL.items()
}

#: Exchanging weights, with the learning rate of the recipe.
EXCHANGE_BOOSTED = [
    Case("Static, boost 4", "Static", "90%", boost=4),
    Case("RigL, fraction 0.1, boost 4", "RigL", "90%", {**_END, "fraction": 0.1}, boost=4),
]
EXCHANGE_DEFAULT = [Case("RigL, boost 4", "RigL", "90%", _END, boost=4)]


_EVEN = Gradient(even=True)


def _tried(name: str, how: str = "90%", method: str = "RigL", **options: Any) -> Case:
    return Case(f"{name}, boost 4", method, how, {**_END, **options}, boost=4)


#: Which weights to exchange, how many and how often: 1,500 steps, to choose by.
EXCHANGE_TRIED = [
    Case("Static, boost 4", "Static", "90%", boost=4),
    _tried("RigL"),
    _tried("RigL, fraction 0.1", fraction=0.1),
    _tried("RigL, every 300", every=300),
    _tried("RigL, every 25, fraction 0.05", every=25, fraction=0.05),
    _tried("RigL, until 40 %", until=0.4),
    _tried("SET", method="SET"),
    _tried("SET, fraction 0.1", method="SET", fraction=0.1),
    _tried("RigL, even gradients", growth=_EVEN),
    _tried("RigL, even gradients, fraction 0.1", growth=_EVEN, fraction=0.1),
    _tried("RigL, even gradients, until 40 %", growth=_EVEN, until=0.4),
    _tried("RigL, fan-in, fraction 0.1", "fan-in 90%", fraction=0.1),
]


#: n:m, and all rows sharing columns: fixed masks, or gradual pruning, group by group; 1,500 steps, to choose by.
SHARED_TRIED = [
    Case("Static all:2:8, boost 4", "Static", "all:2:8", boost=4),
    Case("GMP all:2:8 by groups, following, 15 to 75 %", "GMP", "all:2:8", _LATE, follow=0.6),
    Case("GMP all:2:8 by groups, following by 0.9, 15 to 75 %", "GMP", "all:2:8", _LATE, follow=0.9),
    Case("GMP 2:8 by groups, following, 15 to 75 %", "GMP", "2:8", _LATE, follow=0.6),
    Case("GMP 2:4 by groups, following, 15 to 75 %", "GMP", "2:4", _LATE, follow=0.6),
    Case("SR-STE 2:4, boost 1.5", "SRSTE", "2:4", boost=1.5),
]
#: The same for as long as dense nets of equal inference time.
SHARED_LONG = [
    Case("GMP all:2:8 by groups, following, 15 to 75 %", "GMP", "all:2:8", _LATE, follow=0.6),
    Case("Static all:2:8, boost 2.3", "Static", "all:2:8", boost=2.3),
]


def _followed(how: str, power: float) -> Case:
    name = "GMP" if how.endswith("%") else f"GMP {how} by groups"
    by = "" if power == 0.6 else f" by {power}"
    return Case(f"{name}, following{by}, 15 to 75 %", "GMP", how, _LATE, follow=power)


#: How far the learning rate follows the density: 1,500 steps, to choose by; and for longer.
FOLLOWED = [_followed("90%", 0.9), _followed("90%", 1.2), _followed("all:2:8", 1.2), _followed("2:4", 1.2)]
FOLLOWED_LONG = [_followed("90%", 0.9), _followed("all:2:8", 0.9)]

#: How even the gradients are by which weights grow, and how many; new weights start with their neighbours' squares.
EXCHANGE_SQUARES = {
    "plain": _tried("RigL"),
    "less": EXCHANGE_TRIED[2],
    "half even": _tried("RigL, half-even gradients", growth=Gradient(even=0.5)),
    "half even, less": _tried("RigL, half-even gradients, fraction 0.1", growth=Gradient(even=0.5), fraction=0.1),
    "even, less": EXCHANGE_TRIED[9],
}
#: Dense nets with other learning rates: is the usual one fair to them?
RATES = [Case("dense, boost 2", boost=2), Case("dense, boost 4", boost=4),
         Case("dense, equal weights, boost 6", width=160, boost=6)]  # fmt: skip

#: Methods that train all weights, with settings that suit this net.
ALL_WEIGHTS = [
    Case("Top-KAST, boost 4", "TopKAST", "90%", _END, boost=4),
    Case("trained, Movement, distilled", "Movement", "90%", _HALF, distil=0.5, trained=True),
    Case("HardConcrete, price 3e-6", "HardConcrete", "", {"price": 3e-6, "lr": 1e4, **_END}),
    Case("HardConcrete, price 1e-5", "HardConcrete", "", {"price": 1e-5, "lr": 1e4, **_END}),
]
#: Methods that select for the whole model in few launches, or by themselves.
SELECTED = [
    ALL_WEIGHTS[0], Case("HardConcrete", "HardConcrete", "90%", _END), Case("SR-STE all:2:8", "SRSTE", "all:2:8"),
    Case("AC/DC", "ACDC", "90%", _END), Case("Top-KAST", "TopKAST", "90%", _END),
]  # fmt: skip


class Plan(NamedTuple):
    """Cases, how long and how often they are trained, and for how long their teacher was (0: as long as they are)."""

    cases: list[Case]
    steps: int = 1500
    seeds: int = 1
    teacher: int = 0


PLANS = {
    "choice": Plan(CHOICE), "report": Plan(REPORT), "all": Plan(METHODS), "key": Plan(KEY, seeds=3),
    "others": Plan(OTHERS), "ablation": Plan(ABLATION, seeds=3), "long": Plan(LONG, 4500, 3),
    "long, best": Plan(LONG_BEST, 4500), "dense": Plan([Case("dense")], seeds=3),
    "exchange": Plan(EXCHANGE, 4500), "exchange, chosen": Plan(EXCHANGE[1:2], 4500, 3),
    "taught": Plan(TAUGHT, 3000, 3, teacher=1500), "srigl": Plan(ABLATION[:2], seeds=3),
    "unfinished": Plan([case for case in OTHERS if case.name in UNFINISHED]),
    "taught 28": Plan(TAUGHT_28, 3000, 3, teacher=1500),
    "taught, as fast": Plan(TAUGHT_AS_FAST, 3000, 3, teacher=1500),
    "taught, following": Plan(TAUGHT_FOLLOWED, 3000, 3, teacher=1500), "small": Plan(SMALL, 4500, 3),
    "small, two": Plan([SMALL[0], SMALL[3]], 4500, 3), "small, others": Plan(SMALL[1:3], 4500, 3),
    "small, equal": Plan(SMALL[:1], seeds=3), "small, 28": Plan(SMALL[3:], seeds=3),
    "small, as 90%": Plan(SMALL[1:2], 4500, 3), "dense, long": Plan([Case("dense")], 4500),
    "exchange, boosted": Plan(EXCHANGE_BOOSTED, 4500, 3), "exchange, default": Plan(EXCHANGE_DEFAULT, 4500, 3),
    "all weights": Plan(ALL_WEIGHTS), "selected": Plan(SELECTED), "exchange, tried": Plan(EXCHANGE_TRIED),
    "shared, tried": Plan(SHARED_TRIED), "shared, long": Plan(SHARED_LONG, 4500, 3),
    "followed": Plan(FOLLOWED), "followed, long": Plan(FOLLOWED_LONG, 4500, 3),
    "followed, chosen": Plan([_followed("90%", 0.9), _followed("all:2:8", 0.9)], seeds=3),
    **{f"rigl {name}": Plan([case], 4500, 3) for name, case in EXCHANGE_SQUARES.items()},
    "recipe, long": Plan(FOLLOWED[1:2], 4500, 3), "recipe 28, long": Plan(FOLLOWED[2:3], 4500, 3),
    "recipe 24, long": Plan(FOLLOWED[3:], 4500, 3), "rates": Plan(RATES), "dense, twice": Plan(RATES[:1], 4500, 3),
    "sr-ste, long": Plan([Case("SR-STE 2:4", "SRSTE", "2:4")], 4500, 3),
    "exchange, even": Plan(EXCHANGE_TRIED[9:10], 4500, 3), "static, long": Plan(EXCHANGE_TRIED[:1], 4500, 3),
    "long, constant": Plan([replace(case, rate="constant") for case in LONG], 4500, 3),
    "sr-ste": Plan([Case("SR-STE 2:4", "SRSTE", "2:4")], seeds=3),
    "static": Plan(EXCHANGE_BOOSTED[:1], seeds=3), "gradual": Plan(list(GRADUAL.values())),
    **{f"gradual {name}": Plan([case], seeds=3) for name, case in GRADUAL.items()},
    **{f"gradual {name}, long": Plan([case], 4500, 3) for name, case in GRADUAL.items()},
    **{f"gradual {name} 28": Plan([case], seeds=3) for name, case in GRADUAL_28.items()},
    "static 28": Plan([Case("Static all:2:8, boost 2.3", "Static", "all:2:8", boost=2.3)], seeds=3),
}  # fmt: skip
