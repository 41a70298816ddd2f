"""A score with a pattern: which values of a tensor are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from gossamer import scores
from gossamer.patterns import Cost, Pattern, as_pattern
from gossamer.patterns._checks import check_scores
from gossamer.scores import Score

K = TypeVar("K")


@dataclass(frozen=True, eq=False)
class Sparsifier:
    """Which values of a tensor are kept: a pattern, and the score that ranks the values.

    Parameters
    ----------
    pattern
        A pattern, or a string such as "90%" or "2:4".
    score
        A score; magnitude by default.

    Notes
    -----
    If the score depends only on each value and its position, `kind`, `passes` and `memory` are those of the pattern. A
    score that needs more (gradients, gates, activations) has to be computed for all values first. This takes one more
    pass, and makes the sparsifier materializing.

    Two sparsifiers are equal if their patterns and scores are equal, even if they have different names.

    Examples
    --------
    >>> import torch
    >>> s = Sparsifier("2:4")
    >>> s
    Sparsifier(pattern=NM(n=2, m=4), score=Magnitude())
    >>> s.mask(torch.tensor([[-4.0, 1.0, 2.0, -3.0]])).int()
    tensor([[1, 0, 0, 1]], dtype=torch.int32)
    >>> s.kind, s.passes, s.memory
    ('blocking', 2, 'O(b)')
    """

    pattern: Pattern
    score: Score = field(default_factory=scores.Magnitude)

    # Written out for its type: a string is welcome as a pattern, and a pattern is what one finds afterwards.
    def __init__(self, pattern: Pattern | str, score: Score | None = None) -> None:
        score = scores.Magnitude() if score is None else score
        if not isinstance(score, Score):
            raise TypeError(f"score must be a Score such as Magnitude(), got {score!r} of type {type(score).__name__}.")
        object.__setattr__(self, "pattern", as_pattern(pattern))
        object.__setattr__(self, "score", score)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sparsifier):
            return NotImplemented
        return (self.pattern, self.score) == (other.pattern, other.score)

    def __hash__(self) -> int:
        return hash((self.pattern, self.score))

    @property
    def cost(self) -> Cost:
        """Kind, passes and memory together.

        Examples
        --------
        >>> Sparsifier("2:4", scores.Gradient()).cost
        Cost(kind='materializing', passes=3, memory='O(nnz)')
        """
        return Cost("materializing", self.pattern.cost.passes + 1, "O(nnz)") if self.score.needs else self.pattern.cost

    @property
    def kind(self) -> str:
        """What it needs to decide: one value ("streaming"), a block ("blocking") or the tensor ("materializing").

        Examples
        --------
        >>> Sparsifier("> 0.1").kind
        'streaming'
        """
        return self.cost.kind

    @property
    def passes(self) -> int:
        """How many times the values are read.

        Examples
        --------
        >>> Sparsifier("90%").passes
        2
        """
        return self.cost.passes

    @property
    def memory(self) -> str:
        """What is kept while deciding: "O(1)", "O(b)" for a block of b values, or "O(nnz)".

        Examples
        --------
        >>> Sparsifier("2:4").memory
        'O(b)'
        """
        return self.cost.memory

    def mask(self, x: Tensor, **context: Any) -> Tensor:
        """Which values of `x` are kept: a bool mask of its shape. No gradient is recorded.

        Parameters
        ----------
        x
            A real floating-point tensor.
        **context
            What the score needs, such as `grad` for `Movement`.

        Examples
        --------
        >>> import torch
        >>> Sparsifier("50%", scores.Gradient()).mask(torch.ones(2), grad=torch.tensor([0.1, -3.0]))
        tensor([False,  True])
        """
        with torch.no_grad():
            return self.pattern.select(self.score(x, **context))

    @overload
    def mask_many(self, xs: Mapping[K, Tensor], **context: Any) -> dict[K, Tensor]: ...

    @overload
    def mask_many(self, xs: Sequence[Tensor], **context: Any) -> list[Tensor]: ...

    def mask_many(self, xs: Any, **context: Any) -> Any:
        """Masks of several tensors, ranked together if the pattern says so ("90% per model").

        Parameters
        ----------
        xs
            A list or a dict of tensors; the result is of the same kind.
        **context
            For each keyword, a list or a dict with one value per tensor, under the same keys.

        Examples
        --------
        >>> import torch
        >>> model = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([3.0, 2.0])}
        >>> Sparsifier("75% per model").mask_many(model)
        {'a': tensor([False,  True]), 'b': tensor([False, False])}
        """
        keys = list(xs) if isinstance(xs, Mapping) else list(range(len(xs)))
        for name, values in context.items():
            known = set(values) if isinstance(values, Mapping) else set(range(len(values)))
            if known != set(keys):
                raise ValueError(
                    f"mask_many: {name} must have one value per tensor, under {keys}; got {sorted(known, key=str)}."
                )
        with torch.no_grad():
            rated = [self._rated(key, xs[key], {name: values[key] for name, values in context.items()}) for key in keys]
            masks = self.pattern.select_many(rated)
        return dict(zip(keys, masks, strict=True)) if isinstance(xs, Mapping) else masks

    def _rated(self, key: object, x: Tensor, context: dict[str, Any]) -> Tensor:
        """The scores of one of many; an error names which."""
        try:
            return check_scores(self.score(x, **context), type(self.pattern).__name__)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{key!r}: {error}") from error

    def stream(self, chunks: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs of (chunk, mask), with at most one chunk and an incomplete block in memory.

        Together, the masks are those of the full tensor, for any division into chunks. If rows are decided together
        (blocks of v rows, chunks of grouped n:m), the rows of an incomplete block wait for the next chunk, so the
        returned chunks have other boundaries.

        Parameters
        ----------
        chunks
            Consecutive slices of a tensor along dimension 0.

        Raises
        ------
        ValueError
            Immediately for a materializing sparsifier; later if the chunks don't fit together.

        Examples
        --------
        >>> import torch
        >>> for chunk, mask in Sparsifier("> 1").stream(torch.tensor([0.5, 2.0, 3.0, 0.0]).split(2)):
        ...     print(mask.tolist())
        [False, True]
        [True, False]
        """
        if self.kind == "materializing":
            raise ValueError(
                f"{self!r} is materializing: no value can be decided before all have been seen, so it can't stream. "
                "Use mask(x) on the full tensor, or a streaming or blocking sparsifier "
                "(ScalarThreshold, RandomFraction, PerBlockFraction)."
            )
        return self._stream(chunks)

    def _stream(self, chunks: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        done = 0
        for chunk in self._blocks(chunks):
            yield chunk, self.mask(chunk, offset=done)
            done += chunk.numel()

    def _blocks(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """The same slices, cut so that no block is split: rows of an unfinished one wait."""
        waiting: Tensor | None = None
        trailing: torch.Size | None = None
        for chunk in chunks:
            if chunk.dim() == 0 or (trailing is not None and chunk.shape[1:] != trailing):
                before = "at least 1-d" if trailing is None else f"(rows, {', '.join(map(str, trailing))})"
                raise ValueError(
                    f"stream takes slices along dimension 0 of one tensor: {before}; got {tuple(chunk.shape)}."
                )
            trailing = chunk.shape[1:]
            span = self.pattern.span(chunk.dim())
            if span is None:
                raise ValueError(f"{self!r} ranks full rows, and a 1-d tensor is one row: use mask(x) on all of it.")
            if waiting is not None:
                chunk = torch.cat([waiting, chunk])
            ready = len(chunk) - len(chunk) % span
            waiting = chunk[ready:].clone() if ready < len(chunk) else None
            if ready or waiting is None:
                yield chunk[:ready] if waiting is not None else chunk
        if waiting is not None:
            yield waiting


def as_sparsifier(how: Sparsifier | Pattern | str) -> Sparsifier:
    """A sparsifier, from a sparsifier, a pattern or a string. The latter two use magnitude.

    Examples
    --------
    >>> as_sparsifier("90%")
    Sparsifier(pattern=Unstructured(sparsity=0.9, per='tensor'), score=Magnitude())
    """
    return how if isinstance(how, Sparsifier) else Sparsifier(how)
