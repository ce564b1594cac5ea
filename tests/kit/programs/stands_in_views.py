"""A worker without a training loop: it stands in each view that it is told of, with its replica's world beside it.

stands_in_views.py FOLDER   where a file `leaves` makes local rank 2 leave by itself
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from elastic.membership import environment
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.worker.live import LeaveRequested, Live, live

WITHIN_S = 240.0


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def leaves(channel: Live) -> None:
    channel.leaving(step=0, saved=True, lost=True)
    channel.answer(within_s=WITHIN_S)


def main(folder: Path) -> None:
    launch = environment.read()
    dist.init_process_group("gloo")
    say("here", launch.local_rank, os.getpid(), launch.restart)
    channel = live(launch.channel)
    assert channel is not None
    channel.begin_run("run")
    channel.ready(shares=8, identity="one")
    while True:
        try:
            view, _ = channel.wait_for_view(within_s=WITHIN_S)
        except LeaveRequested:
            leaves(channel)
            break
        channel.entered()
        say("view", launch.local_rank, view.replica_size, *[id.split("-")[-2] for id in view.workers])
        while not (channel.is_broken() or channel.wants_regroup() or channel.leave):
            time.sleep(0.01)
            if launch.local_rank == 2 and (folder / "leaves").exists():
                channel.request_leave("by itself")
        if channel.leave:
            leaves(channel)
            break
        channel.view_is_over(step=0, at=BOUNDARY, lost=False, whole=True, torn=False)
    say("left", launch.local_rank, channel.leave)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
