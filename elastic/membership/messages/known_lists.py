"""What all nodes know already does not travel again: a view names all workers of the run, and a roster all its nodes.

    {"say": "view", …, "rows": {"since": …, "now": …, "edit": [[start, stop, rows], …]}}

Between agents and the hub such a list goes as what differs from one that both have, by its hash: rows start to stop of
that one, then rows that are new, and so on; `since` null: from nothing. So what a loss costs each node grows with what
has changed, and not with the workers. An edit that is long nevertheless goes as "deflated", by zlib and base64.

An agent says with its hello which lists it has; in the report that comes with it, too, they go by their hash. A hub
that does not have them asks for the hello in full.

What gloo's ranks leave on a view's board grows with the square of the ranks, and its parts are much alike: where it is
long, its entries travel as "deflated", too. Pure.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import xxhash

from elastic.membership.messages.messages import TO_WORKER, NewView, parse
from elastic.membership.messages.wire import Message, WireError

Rows = list[Any]

_COLUMNS = {"view": ("workers", "nodes", "local_ranks"), "roster": ("nodes",)}
_ROW = [str, str, int]  # worker, node, local rank; name, address, port
LISTED = tuple(_COLUMNS)  # words of messages
_BOARD = "board"
_NODES = "nodes of a view"
_KEPT = {"view": 4, _NODES: 4, "roster": 64}  # a node that comes to another hub is a view or two behind it, and as
# nodes come to that one, it has many rosters
_ROWS_MAX = 1 << 20
_LONG_BYTES, _LONGEST_BYTES = 1 << 15, 1 << 28  # of an edit
_QUICKLY = 1
_NOTHING: Rows = []


class ListUnknown(WireError):
    """Raised for a list that travelled as what differs from one that is not known here."""


class KnownLists:
    """The lists that one process has been told, or has told as the hub."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, Rows]] = {word: {} for word in (*_COLUMNS, _NODES)}
        self._last: tuple[Message | None, str] = None, ""
        self._views: dict[str, NewView] = {}
        self._sets: dict[str, frozenset[str]] = {}

    def hashes(self) -> list[str]:
        """Return the hashes of all lists that are known here."""
        return [name for lists in self._lists.values() for name in lists]

    def newest(self, word: str, among: Collection[str]) -> str | None:
        """Return the newest list of that word's messages that the other end has, too; None: there is none."""
        return next((name for name in reversed(self._lists[word]) if name in among), None)

    def name(self, message: Message) -> str | None:
        """Return the hash of what the message carries, which is known from here on; None: it carries no such list.

        Raises KeyError, TypeError, ValueError for what is none of those messages.
        """
        if message["say"] not in _COLUMNS:
            return None
        if self._last[0] is not message:
            self._last = message, self._remember(message["say"], _rows(message))
        return self._last[1]

    def pack(self, message: Message, since: str | None) -> Message:
        """Return the message with what differs from `since`, a list that the other end has."""
        word, now = message["say"], self.name(message)
        if now is None:
            return _with_entries_deflated(message)
        lists, columns = self._lists[word], _COLUMNS[word]
        base = lists.get(since, _NOTHING) if since is not None else _NOTHING
        packed = {name: value for name, value in message.items() if name not in columns}
        edit = _deflated(_edit(base, lists[now]))
        return {**packed, "rows": {"since": since if since in lists else None, "now": now, **edit}}

    def unpack(self, message: Message) -> Message:
        """Return a packed message in full, any other as it is. Raises ListUnknown, WireError."""
        word, packed = message.get("say"), message.get("rows")
        if word == _BOARD and "deflated" in message:
            return _with_entries(message)
        if not isinstance(word, str) or word not in _COLUMNS or packed is None:
            return message
        columns = _COLUMNS[word]
        whole = {name: value for name, value in message.items() if name != "rows"}
        try:
            rows = self._edited(word, packed["since"], packed["now"], _inflated(packed))
            cells = zip(*rows, strict=True) if len(columns) > 1 else [rows]
            whole |= dict(zip(columns, map(list, cells), strict=True)) if rows else {name: [] for name in columns}
        except WireError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError, zlib.error) as wrong:
            raise WireError(f"{word}: no list: {wrong}") from wrong
        self._last = whole, packed["now"]
        return whole

    def pack_report(self, report: Message) -> Message:
        """Return a node's report (node_report.py), packed for a hub that most likely has the lists."""
        view = report["view"]
        if view is None:
            return report
        packed = self.pack(view, self.name(view))
        return {**report, "view": packed, "known": [self._pack_known(one) for one in report["known"]]}

    def unpack_report(self, report: Message) -> Message:
        """Return a report as `NodeReport.from_document` takes it. Raises ListUnknown, WireError."""
        view, known = report.get("view"), report.get("known")
        if not isinstance(view, Mapping) or not isinstance(known, list):
            return report
        if "rows" not in view:
            with suppress(
                KeyError, TypeError, ValueError, RecursionError
            ):  # whether it is a view is found out elsewhere
                self.name(dict(view))
            return report
        return {**report, "view": self._view(dict(view)), "known": [self._unpack_known(one) for one in known]}

    def _view(self, packed: Message) -> NewView:
        """Return a report's view; one that many nodes report is read once. Raises ListUnknown, WireError."""
        try:
            key = json.dumps(packed, sort_keys=True)
        except RecursionError as wrong:
            raise WireError(f"no view: {wrong}") from wrong
        if key not in self._views:
            view = parse(TO_WORKER, self.unpack(packed))
            if not isinstance(view, NewView):
                raise WireError(f"no view: {str(packed)[:80]}")
            self._views = {key: view}
        return self._views[key]

    def _pack_known(self, known: Message) -> Message:
        """Return a known view with the hash of its nodes, where that list is kept here; else as it is."""
        name = _hash(known["nodes"])
        return {**known, "nodes": name} if name in self._lists[_NODES] else known

    def _unpack_known(self, known: Any) -> Any:
        """Return a known view with its nodes, which may go by their hash. Raises ListUnknown."""
        if not isinstance(known, Mapping) or not isinstance(nodes := known.get("nodes"), str):
            return known
        if nodes not in self._lists[_NODES]:
            raise ListUnknown(f"the nodes of a view go by a hash that is not known here: {nodes[:40]}")
        if nodes not in self._sets:
            self._sets = {nodes: frozenset(self._lists[_NODES][nodes])}
        return {**known, "nodes": self._sets[nodes]}

    def _edited(self, word: str, since: str | None, now: str, edit: list[Any]) -> Rows:
        """Return the list that this edit makes of the one called `since`. Raises ListUnknown, WireError."""
        if since is not None and since not in self._lists[word]:
            raise ListUnknown(f"{word}: it is what differs from a list that is not known here: {since[:40]}")
        if since == now:
            self._keep(word, now, self._lists[word][now])
            return self._lists[word][now]
        base = self._lists[word][since] if since is not None else _NOTHING
        rows: Rows = []
        for start, stop, new in edit:
            if not 0 <= start <= stop <= len(base):
                raise WireError(f"{word}: rows {start} to {stop} of {len(base)}")
            rows += base[start:stop]
            rows += new
            if len(rows) > _ROWS_MAX:
                raise WireError(f"{word}: more than {_ROWS_MAX} rows")
        if self._remember(word, rows) != now:
            raise WireError(f"{word}: the list is not the one that was sent")
        return rows

    def _remember(self, word: str, rows: Rows) -> str:
        """Keep a list, and return its hash. Raises WireError where it is none."""
        if not all(type(row) is list and [*map(type, row)] == _ROW for row in rows):
            raise WireError(f"{word}: no list of names, names and numbers")
        name = _hash(rows)
        self._keep(word, name, rows)
        if word == "view":
            nodes = sorted({node for _, node, _ in rows})
            self._keep(_NODES, _hash(nodes), nodes)
        return name

    def _keep(self, word: str, name: str, rows: Rows) -> None:
        """Keep a list as the newest of its word, without the oldest where there are too many."""
        kept = self._lists[word]
        kept.pop(name, None)  # it comes last again, as the newest
        self._lists[word] = dict([*kept.items()][-_KEPT[word] + 1 :]) | {name: rows}


def _rows(message: Message) -> Rows:
    """Return the list that a message carries, row by row."""
    columns = [message[name] for name in _COLUMNS[message["say"]]]
    rows = zip(*columns, strict=True) if len(columns) > 1 else columns[0]
    return [list(row) for row in rows]


def _hash(rows: Rows) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(rows, separators=(",", ":")).encode("ascii"))


def _with_entries_deflated(message: Message) -> Message:
    """Return a board's message with its entries deflated, if they are long; any other as it is."""
    if message["say"] != _BOARD or len(encoded := _encoded(message["entries"])) <= _LONG_BYTES:
        return message
    rest = {name: value for name, value in message.items() if name != "entries"}
    return {**rest, "deflated": _deflate(encoded)}


def _with_entries(message: Message) -> Message:
    """Return a board's message with its entries inflated. Raises WireError."""
    rest = {name: value for name, value in message.items() if name != "deflated"}
    try:
        return {**rest, "entries": _inflate(message["deflated"])}
    except (TypeError, ValueError, RecursionError, zlib.error) as wrong:
        raise WireError(f"{_BOARD}: no entries: {wrong}") from wrong


def _deflated(edit: list[list[Any]]) -> Message:
    encoded = _encoded(edit)
    return {"edit": edit} if len(encoded) <= _LONG_BYTES else {"deflated": _deflate(encoded)}


def _inflated(packed: Message) -> list[Any]:
    return list(_inflate(packed["deflated"]) if "deflated" in packed else packed["edit"])


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _deflate(encoded: bytes) -> str:
    return base64.b64encode(zlib.compress(encoded, _QUICKLY)).decode("ascii")


def _inflate(text: str) -> Any:
    """Return what was deflated. Raises WireError where that is more than may be."""
    machine = zlib.decompressobj()
    encoded = machine.decompress(base64.b64decode(text, validate=True), _LONGEST_BYTES)
    if machine.unconsumed_tail:
        raise WireError(f"more than {_LONGEST_BYTES} bytes")
    return json.loads(encoded)


def _edit(base: Rows, rows: Rows) -> list[list[Any]]:
    """Return pieces of `base`, in its order, and what is new between them."""
    at = {tuple(row): number for number, row in enumerate(base)}
    pieces: list[list[Any]] = []
    for row in rows:
        number = at.get(tuple(row))
        if number is None:
            if not pieces:
                pieces.append([0, 0, []])
            pieces[-1][2].append(row)
        elif pieces and number == pieces[-1][1] and not pieces[-1][2]:
            pieces[-1][1] += 1
        else:
            pieces.append([number, number + 1, []])
    return pieces
