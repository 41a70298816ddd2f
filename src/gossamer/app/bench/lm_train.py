"""Training of one case of the language-model benchmark, and its validation."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.app.bench.lm_cases import Case
from gossamer.app.bench.lm_model import GPT, Text, weights_of
from gossamer.methods.distill import distill_logits


@dataclass(frozen=True)
class Setting:
    """What all cases share: the size of the net, of a batch, and the number of steps."""

    steps: int = 1500
    batch: int = 64
    context: int = 256
    layers: int = 6
    lr: float = 1e-3
    device: str = "cuda"
    #: Validations in the course of a training.
    looks: int = 6
    #: Compile the blocks, forward and backward.
    compiled: bool = False

    def net(self, width: int) -> GPT:
        """Make a net of some width."""
        return GPT(width, self.layers, self.context).to(self.device)

    def autocast(self) -> Any:
        """bfloat16 on a GPU; float32 on a CPU."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu")


class Batches:
    """Random windows of a text, on a device; the same ones for every case with a seed."""

    def __init__(self, text: Tensor, setting: Setting, seed: int) -> None:
        self.text, self.setting = text.to(setting.device), setting
        self.rng = torch.Generator(setting.device).manual_seed(seed)
        self.inside = torch.arange(setting.context + 1, device=setting.device)

    def __call__(self) -> Tensor:
        """Draw the next batch: tokens, one more than the context."""
        most = len(self.text) - len(self.inside)
        start = torch.randint(most, (self.setting.batch,), generator=self.rng, device=self.text.device)
        return self.text[start[:, None] + self.inside].long()


@torch.no_grad()
def bits(model: nn.Module, held: Tensor, setting: Setting) -> float:
    """Return bits per byte over the validation text, in windows without a common context."""
    model.eval()
    step = setting.context
    windows = held[: (len(held) - 1) // step * step + 1].to(setting.device).unfold(0, step + 1, step).long()
    total = torch.zeros((), device=setting.device, dtype=torch.float64)
    for part in windows.split(256):
        with setting.autocast(), torch.compiler.set_stance("force_eager"):  # or each size of a batch is compiled
            logits = model(part[:, :-1])
        total += F.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
    model.train()
    return float(total) / (len(windows) * step) / math.log(2)


def optimizer_of(model: nn.Module, case: Case, setting: Setting) -> torch.optim.Optimizer:
    """Return AdamW; the linear layers are a group of their own."""
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    known = set(map(id, linear))
    rest = [p for p in model.parameters() if id(p) not in known]
    groups = [{"params": rest, "boost": 1.0}, {"params": linear, "boost": case.boost}]
    return torch.optim.AdamW(groups, lr=setting.lr, fused=setting.device != "cpu")


class Trainer:
    """A case in training: one call is one step.

    Parameters
    ----------
    case, setting, text
        What is trained, and on what.
    seed
        Of first weights and batches.
    dense
        State of the trained dense net, for cases that learn from it.
    """

    def __init__(self, case: Case, setting: Setting, text: Text, seed: int, dense: dict[str, Any] | None) -> None:
        torch.manual_seed(seed)
        self.case, self.setting = case, setting
        self.model = setting.net(case.width)
        taught = case.width if dense is None else dense["bytes.weight"].shape[1]  # the teacher may be larger
        self.teacher = setting.net(taught).eval() if case.distil else None
        if dense is not None:
            for net in (self.teacher, self.model if case.trained else None):
                if net is not None:
                    net.load_state_dict(dense)
        self.optimizer = optimizer_of(self.model, case, setting)
        self.method = case.made(self.model, self.optimizer, setting.steps)
        self.rate, self.step = case.schedule(setting.steps), 0
        self.batches = Batches(text.train, setting, seed)
        if setting.compiled:
            for net in (self.model, self.teacher):
                for block in () if net is None else net.blocks:
                    block.compile(dynamic=False)

    def __call__(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.setting.lr * group["boost"] * self.rate(self.step)
        batch = self.batches()
        with self.setting.autocast():
            logits = self.model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        if self.teacher is not None:
            with torch.no_grad(), self.setting.autocast():
                target = self.teacher(batch[:, :-1])
            loss = torch.lerp(loss, distill_logits(logits.float(), target.float(), 1.0), self.case.distil)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.method is not None:
            self.method.step()
            if self.case.follow and self.method.due(self.method.steps):
                self.optimizer.param_groups[1]["boost"] = self.method.log()["density"] ** -self.case.follow
        self.step += 1


def train(
    case: Case, setting: Setting, text: Text, seed: int = 0, dense: dict[str, Any] | None = None,
    end: float = math.inf,
) -> tuple[dict[str, Any], nn.Module]:  # fmt: skip
    """Train a case; return its results and its model.

    Parameters
    ----------
    case, setting, text, seed, dense
        See :class:`Trainer`.
    end
        Stop at this time (``time.time()``), and say at which step; or soon, if the steps can't be done by then.
    """
    trainer, began = Trainer(case, setting, text, seed, dense), time.time()
    curve: list[tuple[int, float]] = []
    every, pace = max(setting.steps // setting.looks, 1), Pace(setting.steps, end)
    while trainer.step < setting.steps and pace(trainer.step):
        trainer()
        if trainer.step % every == 0 and trainer.step < setting.steps:
            curve.append((trainer.step, round(bits(trainer.model, text.held, setting), 4)))
    curve.append((trainer.step, round(bits(trainer.model, text.held, setting), 4)))
    found = {
        "name": case.name, "seed": seed, "steps": trainer.step, "bits": curve[-1][1],
        "weights": weights_of(trainer.model), "seconds": round(time.time() - began, 1), "curve": curve,
    }  # fmt: skip
    if trainer.method is not None:
        trainer.method.close()
    if text.choice is not None:
        found["bits to choose by"] = round(bits(trainer.model, text.choice, setting), 4)
    return found, trainer.model


class Pace:
    """Decides whether a training continues: one that is stopped later can't be compared with others.

    Parameters
    ----------
    steps, end
        How many steps are wanted, and by when.
    """

    def __init__(self, steps: int, end: float) -> None:
        self.steps, self.end, self.first = steps, end, (0, 0.0)

    def __call__(self, step: int) -> bool:
        """Can the steps be done in time? Judged once, after a tenth of them (at least 150), from the pace since the
        50th: before, other trainings that begin at the same time are compiling."""
        now = time.time()
        if step == 50:
            self.first = step, now
        if step == max(150, self.steps // 10):
            each = (now - self.first[1]) / (step - self.first[0])
            return (
                now + 0.9 * each * (self.steps - step) < self.end
            )  # others will end before, and leave more of the GPU
        return now < self.end
