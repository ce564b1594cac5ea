"""A hub on a stage: stories of nodes and workers in a line each."""

from __future__ import annotations

from collections import Counter
from typing import Any

from elastic.membership.hub.hub import Hub
from elastic.membership.hub.orders import Order
from elastic.membership.messages.wire import Message
from elastic.membership.rules.next_view import BOUNDARY

MID_STEP = "in the exchange of step 7"


class Stage:
    """A hub, those who talk to it, and what it has answered to the last of them. Workers are called node.slot."""

    def __init__(self, workers: int = 4, *, nodes: int = 1, shares: int = 8, met: str = "", **rules: Any) -> None:
        """met: nodes, before there was a hub"""
        self.hub = Hub(nodes_max=max(nodes, rules.pop("nodes_max", 1)), **rules)
        self.hub.have_met([[node, f"10.0.0.{ord(node)}", 1] for node in met])
        self.replica_size = rules.get("replica_size", 1)
        self.now_s = 0.0
        self.shares = shares
        self.orders: list[Order] = []
        self.starts: Counter[str] = Counter()
        for i in range(nodes):
            self.comes("ABC"[i], workers)

    def heard(self, orders: list[Order]) -> Stage:
        """Agents have noted what they are to note at once."""
        self.orders = orders
        for order in [order for order in orders if order.message["say"] == "take_note"]:
            noted = {"say": "noted", "number": order.message["number"]}
            self.orders = [*self.orders, *self.hub.receive(self.now_s, order.node, noted)]
        return self

    def told(self, node: str, say: str, **facts: Any) -> Stage:
        return self.heard(self.hub.receive(self.now_s, node, {"say": say, **facts}))

    def worker(self, id: str, say: str, **facts: Any) -> Stage:
        return self.told(id[0], say, worker=id, **facts)

    def together(self, ids: str, say: str, **facts: Any) -> Stage:
        answers: list[Order] = []
        for id in ids.split():
            answers += self.worker(id, say, **facts).orders
        self.orders = answers
        return self

    def comes(self, node: str, slots: int) -> Stage:
        return self.told(node, "hello", slots=slots, replica_size=self.replica_size)

    def started(self, slot: str) -> str:
        """Returns the id: A0 at first, A0', A0'' for those that come in its place."""
        id = slot + "'" * self.starts[slot]
        self.starts[slot] += 1
        self.told(slot[0], "started", worker=id, local_rank=int(slot[1:]))
        return id

    def ready(self, ids: str, **facts: Any) -> Stage:
        return self.together(ids, "ready", shares=self.shares, **{"identity": "one", **facts})

    def begin(self, slots: str, **facts: Any) -> Stage:
        """Starts workers that are then ready."""
        return self.ready(" ".join([self.started(slot) for slot in slots.split()]), **facts)

    def over(self, ids: str, at: str = MID_STEP, *, step: int = 7, lost: bool | None = None, **facts: Any) -> Stage:
        lost = at != BOUNDARY if lost is None else lost
        return self.together(ids, "view_is_over", generation=self.hub.generation, step=step, at=at, lost=lost, **facts)

    def killed(self, id: str, signal: str = "SIGKILL", **facts: Any) -> Stage:
        return self.worker(id, "exited", code=None, signal=signal, **facts)

    def ends(self, id: str, code: int, **facts: Any) -> Stage:
        return self.worker(id, "exited", code=code, signal=None, **facts)

    def raises(self, id: str, error: str = "ValueError: bad", *, step: int | None = 7) -> Stage:
        before = self.worker(id, "failed", error=error, trace="Traceback ...", step=step).orders
        self.orders = before + self.ends(id, 1, step=step).orders
        return self

    def leaves(self, id: str, *, step: int = 7, lost: bool = False, saved: bool = False, **facts: Any) -> Stage:
        return self.worker(id, "leaving", generation=self.hub.generation, step=step, lost=lost, saved=saved, **facts)

    def saved(self, id: str, *, step: int = 7) -> Stage:
        return self.worker(id, "saved", generation=self.hub.generation, step=step)

    def later(self, seconds: float) -> Stage:
        self.now_s += seconds
        return self.heard(self.hub.tick(self.now_s))

    def lost(self, node: str) -> Stage:
        return self.heard(self.hub.lost(self.now_s, node))

    @property
    def view(self) -> str | None:
        """The workers of the view that was just published, checked to be told to each of them, once."""
        views = [order for order in self.orders if order.message["say"] == "view"]
        if not views:
            return None
        members: list[str] = views[0].message["workers"]
        assert [order.worker for order in views] == members
        assert all(order.message == views[0].message for order in views)
        return " ".join(members)

    def to(self, say: str) -> str:
        """To whom one of these words was just said: workers, or nodes."""
        return " ".join(order.worker or order.node for order in self.orders if order.message["say"] in say.split())

    def only(self, say: str) -> Message:
        """What was just said, the same to all."""
        messages = [order.message for order in self.orders if order.message["say"] == say]
        assert messages
        assert all(message == messages[0] for message in messages)
        return messages[0]


def trains(workers: int = 4, **rules: Any) -> Stage:
    stage = Stage(workers, **rules)
    nodes = rules.get("nodes", 1)
    return stage.begin(" ".join(f"{'ABC'[node]}{slot}" for node in range(nodes) for slot in range(workers)))
