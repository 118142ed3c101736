"""Other work on the machine, made on purpose: a process that takes a share of one core, 10 ms at a time.

    python neighbour.py SHARE CORE      until it is ended; a CORE of -1: whichever is free
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

PERIOD_SECONDS = 0.01


@contextlib.contextmanager
def beside(share: float, core: int) -> Iterator[None]:
    """Within it, other work takes `share` of a core: of `core`, or of any where that is -1."""
    if not share:
        yield
        return
    process = subprocess.Popen([sys.executable, __file__, str(share), str(core)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        yield
    finally:
        process.kill()
        process.wait()


def main(share: float, core: int) -> None:
    if core >= 0:
        os.sched_setaffinity(0, {core})
    print("begun", flush=True)
    start = time.perf_counter()
    while True:
        while time.perf_counter() - start < share * PERIOD_SECONDS:
            pass
        start += PERIOD_SECONDS
        if (left := start - time.perf_counter()) > 0:
            time.sleep(left)
        else:  # it was kept from the core: what it missed is not made up for
            start = time.perf_counter()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
