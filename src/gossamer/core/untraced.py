"""Functions that torch.compile doesn't trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch._C._dynamo import eval_frame

_P = ParamSpec("_P")
_T = TypeVar("_T")


#: Returns the callback of torch.compile for Python frames in this thread; None if nothing is compiled.
compiling: Callable[[], Any] = eval_frame.get_eval_frame_callback


def untraced(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run a function eagerly when a compiled function calls it, including everything that it calls.

    Like ``torch.compiler.disable``, but without importing the compiler, which takes a second.

    Examples
    --------
    >>> @untraced
    ... def count(seen):
    ...     seen.append(len(seen))
    ...     return seen
    >>> count([5])
    [5, 1]
    """

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not compiling():
            return function(*args, **kwargs)
        before: Any = eval_frame.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            eval_frame.set_eval_frame(before)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip(run)
    return run


def skip(function: Callable[..., Any]) -> None:
    """Let torch.compile run a function eagerly; what it calls may be compiled."""
    strategy = getattr(eval_frame, "_FrameExecStrategy", None)
    if strategy is not None:
        action = eval_frame._FrameAction
        eval_frame.set_code_exec_strategy(function.__code__, strategy(action.SKIP, action.DEFAULT))
