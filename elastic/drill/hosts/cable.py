"""A long cable: two network devices, and what goes into one comes out of the other after so many seconds.

    python cable.py NEAR FAR SECONDS: makes both as TAPs in its own network namespace, and prints "ready"

The kernel hands whole frames to a TAP, cut to its size and with their checksums: so nothing is to be computed here.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_TUNSETIFF, _TAP_WITHOUT_HEADER = 0x400454CA, 0x0002 | 0x1000
_FRAME_MAX, _AT_ONCE = 65536, 64


def main() -> None:
    """Make both devices, then carry what goes into one to the other, until the process is killed."""
    near, far, delay_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    ends = [_tap(near), _tap(far)]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way: deque[tuple[float, int, bytes]] = deque()  # in order: all take equally long
    print("ready", flush=True)
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for end in select.select(ends, [], [], wait_s)[0]:
            with suppress(BlockingIOError):
                for _ in range(_AT_ONCE):
                    frame = os.read(end, _FRAME_MAX)
                    under_way.append((time.monotonic() + delay_s, other[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, frame = under_way.popleft()
            with suppress(OSError):  # the device is down: a cable that is not plugged in
                os.write(end, frame)


def _tap(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
    return end


if __name__ == "__main__":
    main()
