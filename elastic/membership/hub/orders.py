"""What the hub has to say, until it is taken to be sent: orders, each for a worker or an agent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic.membership.hub.nodes import Nodes
from elastic.membership.hub.workers import Worker
from elastic.membership.messages.messages import Status, ToAgent, ToWorker, as_message
from elastic.membership.messages.wire import Message


@dataclass(frozen=True)
class Order:
    """A message to a worker of that node, or to its agent (worker is None)."""

    node: str
    worker: str | None
    message: Message


class Outbox:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._orders: list[Order] = []

    def say(self, worker: Worker, said: ToWorker) -> None:
        self.say_all([worker], said)

    def say_all(self, workers: Iterable[Worker], said: ToWorker) -> None:
        """Add one message to each of these workers."""
        message = as_message(said)  # one, shared: orders of a node travel together (launch/hub/server.py)
        self._orders += [Order(worker.node, worker.id, message) for worker in workers]

    def tell(self, node: str, said: ToAgent) -> None:
        self.tell_all([node], said)

    def tell_all(self, nodes: Iterable[str], said: ToAgent) -> None:
        message = as_message(said)
        self._orders += [Order(node, None, message) for node in nodes]

    def tell_people(self, text: str) -> None:
        """Have a line printed for people, by the agent of the node that has been here for longest."""
        self.tell(next(iter(self._nodes)), Status(text=text))

    def take(self) -> list[Order]:
        """Return all orders, and keep none."""
        orders, self._orders = self._orders, []
        return orders
