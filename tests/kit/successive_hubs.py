"""Nodes of one run, and the hubs that they come to one after the other: what each is told, and keeps in its report."""

from __future__ import annotations

from typing import Any

from elastic.membership.hub.hub import Hub
from elastic.membership.messages.messages import TO_AGENT, TO_HUB, TO_WORKER, parse
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.succession.node_report import NodeReport
from tests.kit.stage import MID_STEP

CLAIM = {"claim": 1, "nonce": "first"}


class Run:
    """Nodes with a worker each, called A0, B0, …, in view 1 under the first hub."""

    def __init__(self, nodes: str, *, witness: bool, nodes_min: int = 1) -> None:
        self.now_s = 0.0
        self.nodes_min = nodes_min
        self.reports = {node: NodeReport() for node in nodes}
        self.heard: dict[str, list[dict[str, Any]]] = {node: [] for node in nodes}
        self.hub = Hub(nodes_max=len(nodes), nodes_min=nodes_min)
        for node in nodes:
            self.tell(node, "hello", slots=1, address=f"10.0.0.{ord(node)}", port=1)
            self.tell(node, "started", worker=f"{node}0", local_rank=0)
        for node in nodes:
            self.tell(node, "ready", worker=f"{node}0", shares=8, identity="one")
        for agreed in (False, True) if witness else ():
            for node in nodes:
                self.tell(node, "witness", worker=f"{node}0", generation=1, claim=CLAIM, agreed=agreed)
        self.meets(nodes)

    def tell(self, node: str, say: str, **facts: Any) -> None:
        message = {"say": say, **facts}
        self.reports[node].note_said(parse(TO_HUB, message))
        self.orders(self.hub.receive(self.now_s, node, message))

    def orders(self, orders: list[Any]) -> None:
        for order in orders:
            said = parse(TO_AGENT if order.worker is None else TO_WORKER, order.message)
            self.reports[order.node].note_ordered(order.worker, said)
            self.heard[order.node].append(order.message)
            if order.message["say"] == "take_note":
                self.tell(order.node, "noted", number=order.message["number"])

    def meets(self, nodes: str) -> None:
        for node in nodes:
            self.tell(node, "entered", worker=f"{node}0", generation=self.hub.generation)

    def over(self, nodes: str, *, step: int = 7, at: str = MID_STEP) -> None:
        for node in nodes:
            facts = {"generation": self.hub.generation, "step": step, "at": at, "lost": at != BOUNDARY}
            self.tell(node, "view_is_over", worker=f"{node}0", **facts)

    def fails(self, node: str, worker: str, *, step: int) -> None:
        self.tell(node, "failed", worker=worker, error="ValueError: bad", step=step)
        self.tell(node, "exited", worker=worker, code=1)

    def is_killed(self, node: str, worker: str, *, step: int) -> None:
        self.tell(node, "exited", worker=worker, signal="SIGKILL", step=step)

    def moves(self, nodes: str, *, lost: str = "", departed: str = "") -> None:
        """The hub is gone; these nodes come to the next one."""
        self.hub = Hub(nodes_max=9, takes_over=True, nodes_min=self.nodes_min)
        for node in (*lost, *departed):
            self.orders(self.hub.without(self.now_s, node, departed=node in departed))
        for node in nodes:
            self.comes(node)

    def comes(self, node: str) -> None:
        report = self.reports[node].document()
        hello = {"say": "hello", "slots": 1, "address": f"10.0.0.{ord(node)}", "port": 1, "report": report}
        self.orders(self.hub.receive(self.now_s, node, hello))

    def replaced(self, nodes: str) -> None:
        """Their workers, by others, A1 and so on, that are ready."""
        for node in nodes:
            self.tell(node, "started", worker=f"{node}1", local_rank=0)
            self.tell(node, "ready", worker=f"{node}1", shares=8, identity="one")

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.orders(self.hub.tick(self.now_s))

    def said(self, node: str, say: str) -> list[dict[str, Any]]:
        return [message for message in self.heard[node] if message["say"] == say]

    def view(self, node: str) -> str:
        """Of the newest view that its worker was told of."""
        return " ".join(self.said(node, "view")[-1]["workers"])

    def claims(self, node: str) -> None:
        """Its worker was asked to, and does."""
        (words,) = self.said(node, "claim")[-1:]
        claim = {"claim": 2, "nonce": "second", "world": {"nodes": words["nodes"]}}
        self.tell(node, "claimed", worker=f"{node}0", generation=words["generation"], claim=claim)

    def loses_claim(self, node: str, *, to: str, number: int = 2) -> None:
        """Its worker was asked to, and finds that others have it."""
        (words,) = self.said(node, "claim")[-1:]
        theirs = {"claim": number, "nonce": "theirs", "world": {"nodes": list(to)}}
        facts = {"generation": words["generation"], "claim": theirs, "why": f"claim {number} is newer"}
        self.tell(node, "claimed", worker=f"{node}0", moved_on=True, **facts)
