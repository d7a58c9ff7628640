"""Marks of work for met: `jobmet.mark(step=100)`.

Save this file as jobmet.py beside your program (`met python > jobmet.py`). Inside a job of met each call appends one
line; `met show` then has time, energy and CO2e per step. Elsewhere it does nothing. It never raises and never waits.
"""

import os
import time

_LIMIT = 4 << 20
_file = None


def mark(**values):
    """Writes down that so much is done: mark(step=100), mark(epoch=3, loss=0.12)."""
    global _file
    try:
        if _file is None:
            path = os.environ.get("MET_MARKS")
            _file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC) if path else -1
        if _file < 0 or os.fstat(_file).st_size > _LIMIT - 4096:
            return
        pairs = " ".join(f"{name}={float(value)!r}" for name, value in values.items())
        os.write(_file, f"@{time.time_ns()} {pairs}\n".encode()[:4096])
    except (OSError, ValueError, TypeError):
        _file = -1 if _file is None else _file
