"""The ranks that save and load together: how they agree, by deadlines, and how bytes travel between them.

    every rank posts its message  ->  rank 0 decides, from all of them  ->  every rank reads its answer

`agree` is the only way to decide anything. Its messages are JSON in a store that rank 0 hosts, so nothing hangs on a
rank that died: at the deadline rank 0 answers everybody with an error that names who is missing. All ranks call it in
the same order, and an answer stands: a rank that comes late reads what was decided without it.

Bytes travel by gloo, in a group of our own, so that nothing of training's is in their way.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from checkpoint import errors
from checkpoint.errors import CheckpointError
from checkpoint.machine import boot_id, network_namespace, own_addresses

Message = dict[str, Any]
Decide = Callable[[list[Message]], list[Message]]

_ADDRESS_BYTES = 4096
_POLL_FIRST_S, _POLL_LONGEST_S = 0.0005, 0.05
_CONNECT_S = 5.0
_JOIN_S = 30.0  # a busy machine connects slowly, whatever saves are given
_STORE_S = 12.0  # TCPStore asks for its peer's name in reverse DNS, which may take the resolver 10 s
_READ_S = 10.0  # how long rank 0 stays until all have read an answer after which it may go
_SLACK_S = 15.0  # how much longer than rank 0 the others wait: it has to find out first, and say who is missing


class World:
    """One rank's end of it. Making it is collective, over the ranks of `group`, and so is every call but `close`.

    wait_s  how long ranks wait for each other before a save or a load fails
    """

    def __init__(self, group: dist.ProcessGroup | None, *, wait_s: float) -> None:
        self.group = group
        self.pid = os.getpid()
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.wait_s = wait_s
        self._calls = 0
        self._defect: Exception | None = None
        self._gloo: dist.ProcessGroup | None = None
        self._store: dist.Store | None = None
        if self.size > 1:
            try:
                self._gloo = dist.new_group(
                    dist.get_process_group_ranks(group),
                    backend="gloo",
                    timeout=timedelta(seconds=max(_JOIN_S, wait_s)),
                    use_local_synchronization=True,
                )
                self._store = self._host() if self.rank == 0 else self._join()
            except (RuntimeError, OSError) as error:
                raise CheckpointError(
                    f"rank {self.rank} of {self.size} cannot reach the others, to save or load with them: {error}\n"
                    "  state  nothing was saved or loaded\n"
                    "  next   look for a rank that ended, and whether ports are open between these machines"
                ) from error

    def agree(self, what: str, mine: Message | BaseException, decide: Decide, *, last: bool = False) -> Message:
        """This rank's answer.

        what    is agreed on; for errors
        mine    this rank's message, or what failed here: then nothing is decided and all ranks raise
        decide  runs on rank 0: the ranks' messages in, their answers out. What it raises, all ranks raise
        last    rank 0 may end after this, so it waits until the others have read
        raises  CheckpointError of the kind that failed first, by rank; for ranks that are silent or gone, one that
                names them
        """
        self._calls += 1
        call = f"call/{self._calls}"
        message = {"error": error_document(mine)} if isinstance(mine, BaseException) else {"said": mine}
        if self._store is None:
            answer = self._decided([message], decide)[0]
        else:
            try:
                self._store.set(f"{call}/said/{self.rank}", json.dumps(message))
                answer = self._ask(call, what, decide, last) if self.rank == 0 else self._hear(call, what)
            except RuntimeError as error:  # what torch's stores raise; rank 0's own cannot be gone
                raise _gone(what, error) from error
        defect, self._defect = self._defect, None
        if defect is not None:
            raise defect
        if isinstance(mine, BaseException) and "missing" not in answer:
            raise mine
        if "error" in answer:
            raise error_from(answer["error"])
        found: Message = answer["answer"]
        return found

    def all_gather(self, number: int) -> list[int]:
        """Every rank's number. Raises CheckpointError where a rank is gone."""
        if self._gloo is None:
            return [number]
        numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _lost_ranks():
            dist.all_gather(numbers, torch.tensor([number], dtype=torch.int64), group=self._gloo)
        return [int(one.item()) for one in numbers]

    def broadcast(self, data: torch.Tensor, *, source: int) -> None:
        """Rank `source`'s bytes into everybody's `data`, a flat uint8 tensor. Raises CheckpointError."""
        if self._gloo is not None:
            with _lost_ranks():
                dist.broadcast(data, group=self._gloo, group_src=source)

    def close(self) -> None:
        """Lets go of the store. Idempotent; the group goes with torch.distributed's own."""
        self._store = None

    # The store

    def _host(self) -> dist.Store:
        listener = socket.create_server(("0.0.0.0", 0), backlog=2048)
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=max(_STORE_S, self.wait_s)),
            master_listen_fd=listener.detach(),  # the store owns it from here
        )
        nonce = secrets.token_hex(8)
        store.set("nonce", nonce)
        here = {
            "addresses": own_addresses(),
            "port": port,
            "nonce": nonce,
            "machine": [boot_id(), network_namespace()],
        }
        text = json.dumps(here).encode("ascii")
        assert len(text) <= _ADDRESS_BYTES, "a machine has a few addresses"
        self.broadcast(torch.tensor(list(text.ljust(_ADDRESS_BYTES)), dtype=torch.uint8), source=0)
        return store

    def _join(self) -> dist.Store:
        data = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8)
        self.broadcast(data, source=0)
        there = json.loads(bytes(data.tolist()))
        loopback = ["127.0.0.1"] if there["machine"] == [boot_id(), network_namespace()] else []
        failed = []
        for address in [*loopback, *there["addresses"]]:
            try:
                socket.create_connection((address, there["port"]), timeout=_CONNECT_S).close()
                store = dist.TCPStore(
                    address,
                    there["port"],
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=max(_STORE_S, self.wait_s)),
                )
            except (OSError, dist.DistError) as error:
                failed.append(f"{address}: {error}")
                continue
            if store.check(["nonce"]) and store.get("nonce").decode() == there["nonce"]:
                return store
            failed.append(f"{address}: somebody else's store")
        raise OSError(f"rank 0 listens on port {there['port']}; tried {failed or 'no address'}")

    # Agreeing

    def _ask(self, call: str, what: str, decide: Decide, last: bool) -> Message:
        """On rank 0."""
        assert self._store is not None
        said = [f"{call}/said/{rank}" for rank in range(self.size)]
        missing: list[int] = []
        if self._poll(said, self.wait_s):
            answers = self._decided([json.loads(self._store.get(key)) for key in said], decide)
        else:
            missing = [rank for rank, key in enumerate(said) if not self._store.check([key])]
            silent = error_document(_missing(what, missing, self.size, self.wait_s))
            answers = [{"error": silent, "missing": missing}] * self.size
        for rank in range(1, self.size):
            self._store.set(f"{call}/answer/{rank}", json.dumps(answers[rank]))
        if last or any("error" in answer for answer in answers):
            here = [rank for rank in range(1, self.size) if rank not in missing]
            self._poll([f"{call}/read/{rank}" for rank in here], _READ_S)
        for key in said:
            self._store.delete_key(key)
        return answers[0]

    def _decided(self, messages: list[Message], decide: Decide) -> list[Message]:
        """What to answer to each rank."""
        failed = next((message["error"] for message in messages if "error" in message), None)
        if failed is None:
            try:
                answers = decide([message["said"] for message in messages])
                assert len(answers) == self.size, "one answer for each rank"
                return [{"answer": answer} for answer in answers]
            except CheckpointError as error:
                failed = error_document(error)
            except Exception as error:  # a defect of ours: the others must hear of it too
                failed, self._defect = error_document(error), error
        return [{"error": failed}] * self.size

    def _hear(self, call: str, what: str) -> Message:
        """On the other ranks."""
        assert self._store is not None
        key = f"{call}/answer/{self.rank}"
        if not self._poll([key], 2 * self.wait_s + _SLACK_S):  # rank 0 may wait for others, and then decide as long
            raise CheckpointError(f"rank 0 did not answer within {2 * self.wait_s + _SLACK_S:g} s: {what}{_NEXT}")
        answer: Message = json.loads(self._store.get(key))
        self._store.delete_key(key)
        self._store.set(f"{call}/read/{self.rank}", "")
        return answer

    def _poll(self, keys: list[str], within_s: float) -> bool:
        """Whether all keys are there in time."""
        assert self._store is not None
        deadline, pause_s = time.monotonic() + within_s, _POLL_FIRST_S
        while keys and not self._store.check(keys):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, max(left_s, _POLL_FIRST_S)))
            pause_s = min(2 * pause_s, _POLL_LONGEST_S)
        return True


def error_document(error: BaseException) -> Message:
    """An error of ours as JSON. Others give only their kind: their text may hold what nobody scrubbed."""
    if isinstance(error, CheckpointError):
        return {"type": type(error).__name__, "text": str(error), "fields": vars(error)}
    return {"type": "CheckpointError", "text": f"{type(error).__name__}; that rank's own output says more"}


def error_from(document: Message) -> CheckpointError:
    """The inverse; what is no error of ours comes back as a plain CheckpointError."""
    kind = getattr(errors, document["type"], CheckpointError)
    fields = {name: tuple(v) if name == "tensors" else v for name, v in document.get("fields", {}).items()}
    made: CheckpointError = kind(document["text"], **fields)
    return made


_NEXT = (
    "\n  state  nothing was committed and nothing was loaded; the previous checkpoint stays the newest"
    "\n  next   look at that rank's output; start the job again, on as many ranks as there are"
)


def _missing(what: str, ranks: list[int], size: int, wait_s: float) -> CheckpointError:
    who = "rank" if len(ranks) == 1 else "ranks"
    return CheckpointError(
        f"{who} {', '.join(map(str, ranks))} of {size} gave no sign within {wait_s:g} s: {what}{_NEXT}"
    )


def _gone(what: str, error: BaseException) -> CheckpointError:
    return CheckpointError(f"rank 0 is gone: {what} ({str(error).splitlines()[0]}){_NEXT}")


class _lost_ranks(contextlib.AbstractContextManager[None]):
    """A collective that fails does so because a rank is gone: gloo's error, as one of ours."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            raise CheckpointError(f"a rank was lost while bytes were exchanged ({str(error)[:200]}){_NEXT}") from error
