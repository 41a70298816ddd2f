"""How values are stored: the language of levels, and one file per family of formats."""

from gossamer.formats.base import Format, as_format
from gossamer.formats.blocked import BSR
from gossamer.formats.compressed import CSC, CSF, CSR, DCSR
from gossamer.formats.coo import COO
from gossamer.formats.ell import ELL
from gossamer.formats.masked import Dense, Masked
from gossamer.formats.packed import Condensed, PackedCSR, PackedGroupedNM, PackedNear, PackedNM, PackedRows
from gossamer.formats.packed_bitmap import PackedBitmap
from gossamer.formats.packed_tiles import PackedTiles
from gossamer.formats.packed_vnm import PackedVNM
from gossamer.formats.stacked import Stacked
from gossamer.formats.structure import Structure

__all__ = [
    "BSR",
    "COO",
    "CSC",
    "CSF",
    "CSR",
    "DCSR",
    "ELL",
    "Condensed",
    "Dense",
    "Format",
    "Masked",
    "PackedCSR",
    "PackedGroupedNM",
    "PackedNM",
    "PackedNear",
    "PackedRows",
    "PackedBitmap",
    "PackedTiles",
    "PackedVNM",
    "Stacked",
    "Structure",
    "as_format",
]
