"""Models: making them sparse, saying what they hold, training them on several machines."""

from gossamer.nn.builder import SparsityBuilder
from gossamer.nn.distributed import reduce_values, synchronize_
from gossamer.nn.int8 import Int8Linear, quantize_
from gossamer.nn.pack import PackedLayer, PackReport, pack_
from gossamer.nn.summary import Flops, Summary, count_flops, summary
from gossamer.nn.surgery import densify_, sparse_parameters, sparsify_

__all__ = [
    "Flops", "Int8Linear", "PackReport", "PackedLayer", "SparsityBuilder", "Summary", "count_flops", "densify_",
    "pack_", "quantize_", "reduce_values", "sparse_parameters", "sparsify_", "summary", "synchronize_",
]  # fmt: skip
