"""Names in C: the same for all letters, so that expressions which differ by their letters alone share a kernel."""

from __future__ import annotations

from collections.abc import Sequence

_LETTERS = "ijklm"


class Names:
    """The names of a nest's variables and arrays in C.

    The n-th index is i, j, k, l, m, i5, i6, ...: neither a word of C nor a name of the prelude. All others have a dot,
    which becomes an underscore.

    Examples
    --------
    >>> names = Names(["n", "int", "n.0"])
    >>> names("n"), names("int"), names("n.0"), names("int.size"), names("A.pos1")
    ('i', 'j', 'k', 'j_size', 'A_pos1')
    """

    def __init__(self, indices: Sequence[str]) -> None:
        known = {v: _LETTERS[n] if n < len(_LETTERS) else f"i{n}" for n, v in enumerate(dict.fromkeys(indices))}
        self.known = known | {f"{v}.size": f"{name}_size" for v, name in known.items()}

    def __call__(self, variable: str) -> str:
        return self.known.get(variable) or variable.replace(".", "_")

    def array(self, name: str) -> str:
        """Return the name of an array: none is an index, though one may be called as the result is."""
        return name.replace(".", "_")
