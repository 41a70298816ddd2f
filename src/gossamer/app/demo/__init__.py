"""``gossamer demo``: a pretrained model, pruned, trained for a moment, packed and measured. No figure is typed in."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import gossamer as gs
from gossamer.app.demo.show import Row, plain, section, table
from gossamer.app.demo.story import PARTS, Story, example, rows, small, tell_the_story
from gossamer.progress import progress


def run(path: str | os.PathLike[str] | None = "gossamer-report.html", show_progress: bool | None = None) -> list[Row]:
    """Run the demo, and write its page."""
    torch.manual_seed(0)
    with progress("demo:", PARTS, show_progress) as tell:
        story = tell_the_story(tell)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a server gives a request one thread; and CPU time of one thread is steady
        try:
            tell("int8, and the fastest format of each layer", None, 0)
            models = {name: small(name, model) for name, model in story.models.items()}
            tell("measuring whole models, one thread", None, 1)
            found = rows(models, story)
            tell("measuring layers, for the report", None, 1)
            if path is not None:
                _report(models, found, story, Path(path))
            tell("done", None, 1)
        finally:
            torch.set_num_threads(threads)
    return found


def _report(models: dict[str, torch.nn.Module], found: list[Row], story: Story, path: Path) -> None:
    made = gs.report(
        models, None, tokens=(16,), title="gossamer demo: all-MiniLM-L6-v2", curves={"loss": story.losses},
        accuracy={row.name: row.cosine for row in found}, show_progress=False,
    )  # fmt: skip
    made.page(section(found)).save(path)


__all__ = ["Row", "example", "plain", "run", "table"]
