"""The ranks of a group that save together: they agree on each save, each writes its part, and rank 0 commits.

    agreed (agreement.py)  ->  every rank its objects  ->  counted by rank 0: look again, manifest

A rank that fails or is lost at any arrow means no commit: every other one raises, by a deadline, what is known of it,
and the previous checkpoint stays the newest.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from elastic_checkpoint.format.draft import StoredObject
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.net.errors import Scrub
from elastic_checkpoint.net.rank_channel import RankChannel
from elastic_checkpoint.save.commit import commit
from elastic_checkpoint.save.group.agreement import Agreement
from elastic_checkpoint.save.planner import Plan, Save
from elastic_checkpoint.save.ranks import Decide, SaveRequest, Say, write_all
from elastic_checkpoint.storage import Storage


class GroupRanks:
    """See `SavingRanks`. A commit's `meta` gets the number of ranks as "world_size", which `ls` shows."""

    def __init__(self, channel: RankChannel, agreement: Agreement) -> None:
        self._channel = channel
        self._agreement = agreement

    @property
    def rank(self) -> int:
        return self._channel.rank

    @property
    def size(self) -> int:
        return self._channel.size

    @property
    def scrub(self) -> Scrub | None:
        return self._channel.scrub

    @property
    def planned(self) -> Plan | None:
        layout = self._agreement.layout
        return None if layout is None else layout.plan

    def plan(self, asked: SaveRequest, say: Say, decide: Decide) -> Save | Message:
        return self._agreement.reach(replace(asked, meta={"world_size": self.size, **asked.meta}), say, decide)

    def first_reason(self, what: str, mine: str | BaseException | None) -> str | None:
        def first(said: list[Message]) -> list[Message]:
            return [{"why": next((one["why"] for one in said if one["why"]), None)}] * len(said)

        said = mine if isinstance(mine, BaseException) else {"why": mine}
        why: str | None = self._channel.agree(what, said, first)["why"]
        return why

    def write(self, storage: Storage, save: Save) -> None:
        """Write this rank's objects; rank 0 commits. If rank 0 then goes right away, the others' error says so."""
        mine: Message | BaseException
        try:
            objects = write_all(storage, save.commit.id, save.plan, save.tensors, first=save.first)
            mine = {"objects": [stored.document() for stored in objects]}
        except BaseException as error:  # whatever it is, the others must not wait for this rank
            mine = error

        def finish(said: list[Message]) -> list[Message]:
            commit(storage, save.draft, [StoredObject.of(entry) for message in said for entry in message["objects"]])
            return [{}] * self.size

        what = f"the save of step {save.commit.step}: its objects"
        self._channel.agree(what, mine, finish, last=True, state=self._committed_or_not(save.commit))

    def reporting_errors(self) -> contextlib.AbstractContextManager[None]:
        return self._channel.reporting_errors()

    def _committed_or_not(self, commit: Commit) -> str:
        if self.rank == 0:
            return "nothing was committed; the previous checkpoint stays the newest"
        return (
            f"rank 0 may have committed {commit.id} or not: if it is there, it is whole, and "
            "`elastic checkpoint ls` shows it"
        )
