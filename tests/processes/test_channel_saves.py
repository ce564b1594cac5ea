"""A worker that is asked to save, and asked again while it still tries to, or that is ready: none of that is forgotten.

A process of its own, for the end of an agent's channel ends the worker.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly(sample=1, of="saves that are asked for")

_WORKER = """
import socket
import threading

from elastic.membership.worker.live import AskedToSave, Live
from elastic.membership.messages.messages import HubAt, NewView, Save, as_message
from elastic.membership.messages.wire import encode

agent, channel = socket.socketpair()
live = Live(channel.fileno())
heard = threading.Event()
live.on_hub_moved = heard.set
view = NewView(
    generation=1, workers=["a-1"], nodes=["a"], local_ranks=[0], one_node=True, liveness=None, short_s=0.0, gone=[]
)


def says(message):
    agent.sendall(encode(as_message(message)))


def is_asked():
    try:
        live.wait_for_view(within_s=5)
    except AskedToSave as asked:
        return "while the run waits" if asked.waits else "before all go"


says(view)
live.wait_for_view(within_s=30)
says(Save(generation=1, waits=True))
print(is_asked())
says(Save(generation=1, waits=False))
says(HubAt(liveness={}))
assert heard.wait(30)
live.has_tried_to_save()
print(is_asked())
"""


def test_one_that_could_not_save_while_the_run_waits_is_asked_again_before_all_go() -> None:
    """The storage may be back. The hub waits for its answer for minutes, and what it holds may be nowhere else."""
    worker = subprocess.run([sys.executable, "-c", _WORKER], capture_output=True, text=True, timeout=60, check=False)
    assert worker.stdout.splitlines() == ["while the run waits", "before all go"], worker.stderr


_READY = """
import socket
import threading

from elastic.membership.worker.live import Live

agent, channel = socket.socketpair()
live = Live(channel.fileno())
live.ready(shares=8, identity="one")
threading.Thread(target=lambda: live.wait_for_view(within_s=60), daemon=True).start()
heard = b""
while heard.count(b'"ready"') < 2:
    heard += agent.recv(1 << 16)
print(heard.count(b"\\n"))
"""


def test_one_that_waits_says_again_that_it_is_ready() -> None:
    """The hub knows of it by that word alone: where it was lost, a run waited without bound."""
    worker = subprocess.run([sys.executable, "-c", _READY], capture_output=True, text=True, timeout=60, check=False)
    assert worker.stdout.split() == ["2"], worker.stderr
