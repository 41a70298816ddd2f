"""Which packed formats support a pattern, and how long each takes on this machine."""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor

from gossamer import native
from gossamer.formats import BSR, Condensed, Dense, Format, PackedCSR, PackedNear, PackedNM, PackedTiles, as_format
from gossamer.models.pack import gpu as pack_gpu
from gossamer.models.pack import truth
from gossamer.models.pack.passes import far_away, in_the_key
from gossamer.models.pack.turns import in_turns
from gossamer.ops.sparsify import apply_mask
from gossamer.patterns import recognise

#: Of measuring, for each format and number of tokens, at least.
SECONDS = 0.03
_MARGIN = 1.03
#: How often each number of tokens is multiplied; None if each counts alike.
Counts = Sequence[float] | None
_MUCH = 0.4  # density above which columns are delta-encoded: fewer bytes, and as fast from 16 tokens on


@dataclass(frozen=True)
class Timing:
    """Seconds of a format for each number of tokens, and the weight in it (None until it is needed)."""

    times: tuple[float, ...]
    weight: Tensor | None = None
    clear: bool = True
    """False: other programs disturbed the measurement, or it gave a gain that is not possible."""

    def seconds(self, counts: Counts) -> float:
        """Return what formats are compared by: the sum of that many calls of each, or, for None, the geometric mean.

        The examples of a model are calls of it, so their times add up. Without any there are numbers of tokens of which
        each may come: a sum would judge by the largest alone.

        Examples
        --------
        >>> Timing((1e-6, 1e-4)).seconds((10, 1)), round(Timing((1e-6, 1e-4)).seconds(None), 9)
        (0.00011, 1e-05)
        """
        if counts is None:
            return math.exp(sum(map(math.log, self.times)) / len(self.times))
        return sum(count * seconds for count, seconds in zip(counts, self.times, strict=True))

    @property
    def tensor(self) -> Tensor:
        assert self.weight is not None
        return self.weight


def fitting(mask: Tensor) -> list[Format]:
    """Return the formats with kernels for a CPU that hold exactly such a pattern and waste little.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> fitting(gs.NM(2, 4).select(torch.rand(8, 64)))
    [PackedNear(), PackedNM(2, 4)]
    >>> fitting(gs.Blocks(0.8, (4, 4)).select(torch.rand(64, 64)))
    [PackedCSR(), BSR((4, 4))]
    """
    density = float(mask.float().mean()) if mask.numel() else 0.0
    pattern = recognise(mask)
    special = [as_format(name) for name in pattern.formats] if pattern is not None else []
    found: list[Format] = [Condensed() if Condensed() in special else PackedCSR()]
    if density > _MUCH:
        found = [PackedNear()]
    if density <= 0.15 and mask.shape[1] > 128:
        found.append(PackedCSR(240))
    return [*found, *(format for format in special if isinstance(format, PackedNM | BSR))]


def fastest(times: dict[Format, Timing], counts: Counts) -> Format:
    """Return the fastest format by :meth:`Timing.seconds`; a packed one must beat dense by more than the noise.

    Examples
    --------
    >>> import gossamer as gs
    >>> times = {gs.Dense(): Timing((20e-6, 900e-6)), gs.formats.PackedCSR(): Timing((5e-6, 1000e-6))}
    >>> fastest(times, (1, 1)), fastest(times, None)
    (Dense(), PackedCSR())
    """
    return min(times, key=lambda f: times[f].seconds(counts) * (1.0 if isinstance(f, Dense) else _MARGIN))


def measure(
    dense: Tensor,
    mask: Tensor,
    call: Callable[[Tensor, Tensor], Tensor],
    formats: Sequence[Format],
    shapes: Sequence[tuple[int, ...]],
    counts: Counts,
    options: tuple[object, ...] = (),
    between: int = 0,
) -> dict[Format, Timing]:
    """Measure dense and every format alternately; earlier measurements of this machine are reused.

    ``options`` are what else the times of ``call`` depend on: stride, padding, dilation and groups of a convolution.
    ``between`` are the bytes of weights that a model reads between two calls, on a CPU.
    """
    if not dense.is_cuda:
        options = (*options, in_the_key(between))
    key = key_of(dense, mask, formats, shapes, options)
    known = known_times(key)
    if known is not None:
        return _from_cache(known, dense, mask, counts)
    weights: dict[Format, Tensor] = {Dense(): dense} | {f: apply_mask(dense, mask, f) for f in formats}
    timed = pack_gpu.interleaved if dense.is_cuda else partial(_interleaved, between=between)
    times: dict[Format, tuple[float, ...]] = dict.fromkeys(weights, ())
    dense_format: Format = Dense()
    bound, clear = truth.most(float(mask.float().mean()) if mask.numel() else 0.0), True
    with torch.no_grad():
        for shape in shapes:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dense.device, dense.dtype)
            once: Callable[[], dict[Format, float]] = partial(timed, x, weights, call)
            taken, believed = truth.steady(once, dense_format, bound, alone=dense.is_cuda)
            clear &= believed
            for format, seconds in taken.items():
                times[format] += (seconds,)
    if clear:
        store_known(key, {str(f): seconds for f, seconds in times.items()})
    return {f: Timing(seconds, weights[f], clear) for f, seconds in times.items()}


def _interleaved(
    x: Tensor, weights: dict[Format, Tensor], call: Callable[[Tensor, Tensor], Tensor], between: int
) -> dict[Format, float]:
    return in_turns(far_away(weights, between, lambda _, weight: call(x, weight)), SECONDS, Dense())


def guess(
    dense: Tensor, mask: Tensor, formats: Sequence[Format], tokens: Sequence[int], counts: Counts
) -> dict[Format, Timing]:
    """Estimate instead: a model of the costs, fitted to one core of Zen 4 (AVX-512); see docs/explanation/cpu.md."""
    rows, cols = dense.flatten(1).shape
    if any(format.order is not None for format in formats):
        rows, cols = cols, rows
    kept = int(mask.sum())

    def seconds(format: Format, count: int) -> float:
        if dense.is_cuda:
            return pack_gpu.guess(format, rows, cols, kept, count, dense.element_size())
        if isinstance(format, Dense):
            return dense_seconds(rows, cols, count)
        return _packed_seconds(format, rows, cols, kept, count)

    made = {format: Timing(tuple(seconds(format, t) for t in tokens)) for format in (Dense(), *formats)}
    best = fastest(made, counts)
    made[best] = Timing(made[best].times, dense if isinstance(best, Dense) else apply_mask(dense, mask, best))
    return made


def dense_seconds(rows: int, cols: int, tokens: int) -> float:
    """Estimate the seconds of a dense float32 layer."""
    return 2.5e-6 + max(rows * cols * 4 / 50e9, 2 * rows * cols * tokens / (100e9 * tokens / (tokens + 5)))


def _packed_seconds(format: Format, rows: int, cols: int, kept: int, tokens: int) -> float:
    if not native.load():
        return 30e-6 + kept * tokens * 0.4e-9
    if isinstance(format, BSR):
        rate = 43e9 if format.block[0] < 4 else 85e9
        return 9e-6 + max(kept * 4 / 40e9, 2 * kept * tokens / rate) + (rows + cols) * tokens * 0.15e-9
    if isinstance(format, PackedTiles):  # fitted to a Xeon with AMX, and to what AVX-512 needs for a product
        each = 2.5e-9 + tokens * (0.07e-9 if native.tiles_isa() == "amx" else 0.4e-9)
        return 6e-6 + rows * cols / 32 * each
    tile = 240 if isinstance(format, PackedCSR) and format.tile == 240 else 128
    if tokens == 1:
        return 9e-6 + kept * (0.08e-9 if isinstance(format, PackedNM) else 0.2e-9 if tile == 128 else 0.4e-9)
    regular = isinstance(format, PackedNM)
    if regular and (tokens <= 14 or 17 <= tokens <= 24):  # without panels
        return 9e-6 + kept * tokens * 0.031e-9
    panels = -(-tokens // 32) if tokens > 16 else 0.6
    each = kept * 0.69e-9 if regular else rows * -(-cols // tile) * 2e-9 + kept * 0.75e-9
    each += (rows + cols) * 32 * 0.15e-9
    return 10e-6 + panels * each


# -- what this machine has measured


def key_of(
    dense: Tensor,
    mask: Tensor,
    formats: Sequence[object],
    shapes: Sequence[tuple[int, ...]],
    options: tuple[object, ...] = (),
) -> str:
    """Return what the times of some formats of a weight are known by."""
    density = round(float(mask.float().mean()), 2) if mask.numel() else 0.0
    kind = "each"  # a list of times, one for each shape: a cache of an older version has their sum
    what = (tuple(dense.shape), str(dense.dtype), density, [str(f) for f in formats], list(shapes), kind, *options)
    machine = (torch.cuda.get_device_name(dense.device), torch.__version__) if dense.is_cuda else _machine()
    return repr((machine, torch.get_num_threads(), what))


@lru_cache(maxsize=1)
def _machine() -> tuple[str, ...]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    sets = (native.isa() or "no kernels", native.int8_isa() or "", native.tiles_isa() or "")  # by $GOSSAMER_ISA
    return (model, *sets, torch.__version__, _library())


def _library() -> str:
    """The version of the kernels: what was measured with others is not known."""
    from gossamer.native.library import _library as loaded

    path = loaded()[0]
    return path.stem if path else ""


def _file() -> Path:
    return native.cache_dir() / "pack.json"


def known_times(key: str) -> dict[str, list[float]] | None:
    """Return what this machine has measured under a key; None if nothing, or if it must be measured again."""
    return None if truth.is_measured_again() else load_known().get(key)


def load_known() -> dict[str, dict[str, list[float]]]:
    """Return all that this machine has measured."""
    try:
        known = json.loads(_file().read_text())
        return known if isinstance(known, dict) else {}
    except (OSError, ValueError):
        return {}


def store_known(key: str, seconds: dict[str, tuple[float, ...]]) -> None:
    """Keep what was measured."""
    try:
        folder = _file().parent
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, suffix=".json") as file:
            json.dump({**load_known(), key: seconds}, file, indent=1)
        os.replace(file.name, _file())
    except OSError:
        pass  # a cache that can't be written is only slower


def _from_cache(known: dict[str, list[float]], dense: Tensor, mask: Tensor, counts: Counts) -> dict[Format, Timing]:
    times = {as_format(name): Timing(tuple(seconds)) for name, seconds in known.items()}
    best = fastest(times, counts)
    if not isinstance(best, Dense):
        times[best] = Timing(times[best].times, apply_mask(dense, mask, best))
    return times
