"""The nests that conversions run, next to those that they ran before: a change of them must be meant.

A file of ``golden/`` names the formats that a tensor of a shape has and gets, and holds the nests in the order in which
they run. To write the files again, and look at the difference: ``python -m tests.compiler.convert.test_golden``; a new
case is a new file with the first lines alone.
"""

from pathlib import Path

import pytest
import torch

from gossamer.compiler.convert import tensors
from gossamer.compiler.convert.passes import Passes
from gossamer.core.join import build
from gossamer.formats import Structure, as_format
from gossamer.formats.values import placed
from tests.compiler.convert.interpreted import interpreted

FILES = sorted((Path(__file__).parent / "golden").glob("*.txt"))


def split(file: Path) -> tuple[dict[str, str], str]:
    """The first lines of a file as names and values, and the rest."""
    head, _, nests = file.read_text().partition("\n\n")
    return dict(line.split(": ", 1) for line in head.splitlines()), nests


def ran(head: dict[str, str]) -> str:
    """The nests of a conversion, as text."""
    shape, target = [int(size) for size in head["shape"].split(", ")], as_format(head["target"])
    x = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    x *= x % 3 == 1
    seen = []
    with interpreted(), pytest.MonkeyPatch.context() as patch:

        def look(passes, name, arrays, sizes):
            seen.append(str(passes.nests[name]))
            return passes.interpret(name, arrays, sizes)

        patch.setattr(Passes, "run", look)
        keys = torch.nonzero(x.view(-1)).squeeze(1)
        if head["source"] == "numbers":
            made = tensors.from_entries(keys.flip(0), x.view(-1)[keys.flip(0)], shape, target)
        elif head["source"] == "a dense tensor":
            made = tensors.from_dense(x, target)
        else:
            structure, place = Structure.from_keys(as_format(head["source"]), keys, shape)
            made = tensors.convert(placed(x.view(-1)[keys], place, structure), structure, target)
    assert torch.equal(build(*made).to_dense(), x)
    return "\n\n".join(seen) + "\n"


def test_there_are_golden_files():
    assert len(FILES) >= 8


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nests(file):
    head, nests = split(file)
    assert ran(head) == nests


if __name__ == "__main__":
    for file in FILES:
        head, _ = split(file)
        lines = [f"{name}: {value}" for name, value in head.items()]
        file.write_text("\n".join(lines) + "\n\n" + ran(head))
