"""The formats that most tests are run over."""

import gossamer as gs

ALL = [
    gs.CSR(),
    gs.CSC(),
    gs.COO(),
    gs.DCSR(),
    gs.CSF(),
    gs.BSR((2, 3)),
    gs.ELL(),
    gs.Masked(),
    gs.Format("compressed", "dense"),
    gs.Format("dense", "dense", "compressed"),
]
