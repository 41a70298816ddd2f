"""Models: making them sparse, saying what they hold, training them on several machines."""

from gossamer.models.builder import SparsityBuilder
from gossamer.models.distributed import reduce_values, synchronize_
from gossamer.models.fuse import FusedLinear, fuse_
from gossamer.models.int8 import Int8Linear, quantize_
from gossamer.models.pack.pack import PackedLayer, PackReport, pack_
from gossamer.models.summary import Flops, Summary, count_flops, summary
from gossamer.models.surgery import densify_, sparse_parameters, sparsify_

__all__ = [
    "Flops", "FusedLinear", "Int8Linear", "PackReport", "PackedLayer", "SparsityBuilder", "Summary", "count_flops",
    "densify_", "fuse_", "pack_", "quantize_", "reduce_values", "sparse_parameters", "sparsify_", "summary",
    "synchronize_",
]  # fmt: skip
