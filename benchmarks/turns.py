"""Turns of several libraries in one process, each with threads of its own: what makes them fair.

The threads of a library look for work for a while after a call: torch's for a millisecond, onnxruntime's for 32. The
threads of the next library would have to wait for the core that they keep busy. So all sleep before each turn, and the
threads of the library whose turn it is are woken by calls that don't count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_ASLEEP, _AWAKE = 8e-3, 0.5e-3  # seconds until all threads sleep, and of calls that don't count


def begin(function: Callable[[], Any]) -> None:
    """Let the threads of all libraries sleep, and wake those that this function uses."""
    time.sleep(_ASLEEP)
    start = time.perf_counter()
    while time.perf_counter() - start < _AWAKE:
        function()


def session_options(threads: int) -> Any:
    """Return onnxruntime's, for so many threads; they look for work for a millisecond after a call."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.spin_duration_us", "1000")
    return options
