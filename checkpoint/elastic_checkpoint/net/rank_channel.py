"""The ranks that save and load together: how they agree, by deadlines.

    every rank says its message  ->  rank 0 decides, from all of them  ->  every rank hears its answer

`agree` is the only way to decide anything. Its messages go through connections to rank 0 (peers.py), so nothing hangs
on a rank that died: rank 0 learns of it at once, and answers everybody with an error that names it. A rank that is
alive and silent is named at a deadline, which is long, for it may be slow. All ranks call it in the same order, and an
answer stands: a rank that comes late hears what was decided without it.

Whatever a rank raises, KeyboardInterrupt too, it tells the others before they wait for it: as its message where it has
one to give; else, between two of them (`reporting_errors`), by hanging up with its reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.codec import Message, NotAMessage, as_message, parse
from elastic_checkpoint.net.errors import (
    UNTOUCHED,
    Scrub,
    error_document,
    error_from,
    missing_ranks,
    never_came,
    next_lines,
    of_rank,
    reason,
)
from elastic_checkpoint.net.peers import Client, Server
from elastic_checkpoint.net.rank_bytes import RankBytes
from elastic_checkpoint.net.rank_messages import (
    FROM_RANK,
    FROM_RANK_0,
    Answer,
    Contribution,
    Failed,
    HungUp,
    Received,
    Refused,
)
from elastic_checkpoint.net.roll_call import RollCall

Decide = Callable[[list[Message]], list[Message]]

_ENDPOINT_BYTES = 4096
_JOIN_S = 30.0  # a busy machine connects slowly, whatever saves are given
_READ_S = 10.0  # how long rank 0 stays until all have heard an answer after which it may go
_SLACK_S = 45.0  # how much longer than rank 0 the others wait: it has to find out first, and say who is missing


class RankChannel:
    """One rank's end of the channel. Making it is collective, over the ranks of `group`, as is every call but `close`.

    bytes   how bytes travel between the ranks
    wait_s  how long ranks wait for each other before a save or a load fails
    """

    def __init__(self, group: dist.ProcessGroup | None, *, wait_s: float, scrub: Scrub | None = None) -> None:
        """Connect the ranks; scrub: takes the storage's secrets out of a text, None where they are not known."""
        self.group = group
        self.scrub = scrub
        self.pid = os.getpid()
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.wait_s = wait_s
        self._calls = 0
        self._defect: BaseException | None = None
        self._known: BaseException | None = None  # what the others know of
        self.bytes = RankBytes(self.size)
        self._end: Server | Client | None = None
        self._changed = threading.Condition()  # guards everything below
        self._said: dict[int, Contribution | Failed] = {}  # of this call, by rank; on rank 0
        self._early: dict[int, dict[int, Contribution | Failed]] = {}  # of calls to come
        self._heard: dict[int, set[int]] = {}  # which ranks have heard an answer, by call
        self._answers: dict[int, Answer | Refused] = {}  # by call; on the others
        self._lost: dict[int, str] = {}  # ranks that rank 0 has lost; on the others, rank 0
        if self.size > 1:
            roll_call, begun_s = RollCall(group, self.rank, self.size), time.monotonic()
            try:
                self.bytes.connect(group, max(_JOIN_S, wait_s))
                self._end = self._host() if self.rank == 0 else self._join()
            except (RuntimeError, OSError) as error:
                if missing := roll_call.missing():
                    raise never_came(missing, self.rank, self.size, time.monotonic() - begun_s) from error
                raise CheckpointError(
                    f"rank {self.rank} of {self.size} cannot reach the others, to save or load with them: {error}\n"
                    "  state  nothing was saved or loaded\n"
                    "  next   look for a rank that ended, and whether ports are open between these machines"
                ) from error

    def agree(
        self,
        what: str,
        mine: Message | BaseException,
        decide: Decide,
        *,
        last: bool = False,
        state: str = UNTOUCHED,
    ) -> Message:
        """Agree on `what`, and return this rank's answer.

        what    is agreed on; for errors
        mine    this rank's message, or what failed here: then nothing is decided and all ranks raise
        decide  runs on rank 0: the ranks' messages in, their answers out. What it raises, all ranks raise
        last    rank 0 may end after this, so it waits until the others have heard
        state   what holds where no answer comes, for errors
        raises  CheckpointError of the kind that failed first, by rank; for ranks that are silent or gone, one that
                names them
        """
        said = self._message(self._calls + 1, what, mine)
        with self._changed:
            self._calls += 1
            self._said = {**self._early.pop(self._calls, {}), 0: said}
        if isinstance(self._end, Server):
            answer = self._ask(self._end, said, decide, last, state)
        elif isinstance(self._end, Client):
            answer = self._hear(self._end, said, state)
        else:
            answer = self._decided([said], decide, state)[0]
        defect, self._defect = self._defect, None
        if defect is not None:
            raise self._knowing(defect)
        if isinstance(answer, Answer):
            return answer.answer
        if isinstance(mine, BaseException) and not answer.missing:
            raise self._knowing(mine)
        raise self._knowing(error_from(answer.error))

    def _message(self, call: int, what: str, mine: Message | BaseException) -> Contribution | Failed:
        if not isinstance(mine, BaseException):
            return Contribution(call=call, what=what, said=mine)
        leaves = not isinstance(mine, Exception)  # who is interrupted waits for nobody
        return Failed(call=call, what=what, error=error_document(mine, self.scrub), leaves=leaves)

    @contextlib.contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Hang up on the others, with its reason, for an error in here that they do not know of.

        They would wait for this rank, and be at another call than it for good.
        """
        try:
            yield
        except BaseException as error:
            if error is not self._known:
                self._hang_up(reason(error, self.scrub))
            raise
        finally:
            self._known = None

    def _knowing(self, error: BaseException) -> BaseException:
        self._known = error
        return error

    def _hang_up(self, why: str) -> None:
        goodbye = as_message(HungUp(why=f"it hung up: {why}"))
        if isinstance(self._end, Server):
            self._end.send_all(dict.fromkeys(range(1, self.size), goodbye))
            for rank in range(1, self.size):
                self._lose(rank, f"rank 0 hung up in an earlier call: {why}")
        elif isinstance(self._end, Client):
            self._end.send(goodbye)
            self._lose(0, f"this rank hung up in an earlier call: {why}")
        self.close()

    def close(self) -> None:
        """Hang up. Idempotent; the group goes with torch.distributed's own."""
        if self._end is not None:
            self._end.close()

    # Connecting

    def _host(self) -> Server:
        server = Server(self._hear_rank, self._lose, expected=self.size)
        text = json.dumps(server.endpoint).encode("ascii")
        assert len(text) <= _ENDPOINT_BYTES, "a machine has a few addresses"
        self.bytes.broadcast(torch.tensor(list(text.ljust(_ENDPOINT_BYTES)), dtype=torch.uint8), source=0)
        return server

    def _join(self) -> Client:
        data = torch.zeros(_ENDPOINT_BYTES, dtype=torch.uint8)
        self.bytes.broadcast(data, source=0)
        return Client(json.loads(bytes(data.tolist())), self.rank, self._hear_answer, lambda why: self._lose(0, why))

    # Agreeing

    def _ask(
        self, end: Server, mine: Contribution | Failed, decide: Decide, last: bool, state: str
    ) -> Answer | Refused:
        """Decide on rank 0, and tell the others; what interrupts it is the answer, whatever the others say."""
        call, at_once = mine.call, _leaves(mine)
        with self._changed:
            said = self._said
            if not at_once:
                self._changed.wait_for(lambda: len(said) == self.size or self._lost.keys() - said, self.wait_s)
            missing = sorted(set(range(self.size)) - said.keys())
            lost = {rank: self._lost[rank] for rank in missing if rank in self._lost}
        answers: Sequence[Answer | Refused]
        if at_once:
            answers = self._decided([mine], decide, state)
        elif missing:
            met = f"{mine.what} (who came and was refused: {end.refused})" if end.refused else mine.what
            silent = error_document(missing_ranks(met, lost or missing, self.size, self.wait_s, state))
            answers = [Refused(call=call, error=silent, missing=tuple(missing))] * self.size
        else:
            answers = self._decided([said[rank] for rank in range(self.size)], decide, state)
        with self._changed:
            self._heard[call] = set()
        end.send_all({rank: as_message(answers[rank]) for rank in range(1, self.size)})
        with self._changed:
            if last or any(isinstance(answer, Refused) for answer in answers):
                here = {rank for rank in said if rank and not _leaves(said[rank])}
                self._changed.wait_for(lambda: here <= self._heard[call] | self._lost.keys(), _READ_S)
            del self._heard[call]
        return answers[0]

    def _decided(self, said: Sequence[Contribution | Failed], decide: Decide, state: str) -> Sequence[Answer | Refused]:
        """Return what to answer to each rank."""
        call = said[0].call
        first = next((rank for rank, one in enumerate(said) if isinstance(one, Failed)), None)
        if first is not None and isinstance(failed := said[first], Failed):
            error = of_rank(failed.error, first, self.size, failed.what, state)
        else:
            try:
                _check_same([one.what for one in said])
                answers = decide([one.said for one in said if isinstance(one, Contribution)])
                assert len(answers) == self.size, "one answer for each rank"
                return [Answer(call=call, answer=answer) for answer in answers]
            except BaseException as met:  # the others must hear of a defect of ours, too
                error = error_document(met, self.scrub)
                if not isinstance(met, CheckpointError):
                    error, self._defect = of_rank(error, 0, self.size, said[0].what, state), met
        return [Refused(call=call, error=error)] * self.size

    def _hear(self, end: Client, mine: Contribution | Failed, state: str) -> Answer | Refused:
        """Tell rank 0, on another rank, and return its answer."""
        call = mine.call
        end.send(as_message(mine))
        if isinstance(mine, Failed) and mine.leaves:
            return Refused(call=call, error=mine.error)
        within_s = 2 * self.wait_s + _SLACK_S  # rank 0 may wait for others, and then decide as long
        with self._changed:
            self._changed.wait_for(lambda: call in self._answers or self._lost, within_s)
            answer = self._answers.pop(call, None)
            self._answers = {later: one for later, one in self._answers.items() if later > call}
            lost = self._lost.get(0)
        if answer is not None:
            end.send(as_message(Received(call=call)))
            return answer
        how = f"is gone: {lost}" if lost is not None else f"did not answer within {within_s:g} s"
        if lost is None:  # from here on the two would be at different calls for good: both shall know at once
            self._lose(0, f"it {how} in an earlier call")
            end.close()
        raise self._knowing(CheckpointError(f"rank 0 of {self.size} {how}: {mine.what}{next_lines(state)}"))

    # What arrives, in the thread of the connections

    def _hear_rank(self, rank: int, message: Message) -> None:
        """Take what a rank has said. Raises NotAMessage."""
        said: Contribution | Failed | Received | HungUp = parse(FROM_RANK, message)
        if not 0 < rank < self.size:
            raise NotAMessage(f"of {self.size} ranks none of these is {rank}")
        if isinstance(said, HungUp):
            self._lose(rank, said.why)
            return
        with self._changed:
            if isinstance(said, Received):
                self._heard.get(said.call, set()).add(rank)
            elif said.call == self._calls:
                self._said[rank] = said
            elif said.call > self._calls:
                self._early.setdefault(said.call, {})[rank] = said
            self._changed.notify_all()

    def _hear_answer(self, message: Message) -> None:
        """Take an answer of rank 0's. Raises NotAMessage."""
        said: Answer | Refused | HungUp = parse(FROM_RANK_0, message)
        if isinstance(said, HungUp):
            self._lose(0, said.why)
            return
        with self._changed:
            self._answers[said.call] = said
            self._changed.notify_all()

    def _lose(self, rank: int, why: str) -> None:
        with self._changed:
            self._lost.setdefault(rank, why)  # what it said as it went, rather than that it went
            self._changed.notify_all()


def _leaves(said: Contribution | Failed) -> bool:
    return isinstance(said, Failed) and said.leaves


def _check_same(whats: list[str]) -> None:
    """Raise CheckpointError unless all ranks are at the same kind of thing."""
    # Without numbers: steps are compared, with better words, where they are agreed on.
    kinds = [re.sub(r"\d", "", what) for what in whats]
    other = next((rank for rank, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise CheckpointError(
            f"the ranks do not call the same: rank 0 is at {whats[0]}, rank {other} at {whats[other]}\n"
            f"  state  {UNTOUCHED}\n"
            "  next   call save and load on all ranks, in the same order"
        )
