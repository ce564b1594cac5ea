"""Saves a state that several ranks hold together, while all of them wait: each writes its part, rank 0 commits.

    agreed (agreement.py)  ->  every rank its objects  ->  counted by rank 0: look again, manifest

A rank that fails or is lost at any arrow means no commit: every other one raises, by a deadline, what is known of it,
and the previous checkpoint stays the newest.
"""

from __future__ import annotations

from checkpoint.format.draft import StoredObject
from checkpoint.format.manifest import Commit
from checkpoint.net.framing import Message
from checkpoint.net.rank_channel import RankChannel
from checkpoint.save.commit import commit
from checkpoint.save.foreground import write_all
from checkpoint.save.group.agreement import Agreed
from checkpoint.storage import Storage


def write_together(channel: RankChannel, storage: Storage, agreed: Agreed) -> Commit:
    """The commit, durable, on every rank. Collective.

    raises  the same on all ranks: ClaimLost, StorageError, or CheckpointError naming the ranks that are silent or gone;
            nothing is committed then, unless rank 0 went right after it had committed, and the error says so
    """
    mine: Message | BaseException
    try:
        objects = write_all(storage, agreed.commit.id, agreed.layout.plan, agreed.parts(), first=agreed.layout.first)
        mine = {"objects": [stored.document() for stored in objects]}
    except BaseException as error:  # whatever it is, the others must not wait for this rank
        mine = error

    def finish(said: list[Message]) -> list[Message]:
        commit(storage, agreed.draft, [StoredObject.of(entry) for message in said for entry in message["objects"]])
        return [{}] * channel.size

    what = f"the save of step {agreed.commit.step}: its objects"
    channel.agree(what, mine, finish, last=True, state=_committed_or_not(channel, agreed.commit))
    return agreed.commit


def _committed_or_not(channel: RankChannel, commit: Commit) -> str:
    if channel.rank == 0:
        return "nothing was committed; the previous checkpoint stays the newest"
    return f"rank 0 may have committed {commit.id} or not: if it is there, `checkpoint ls` shows it, and it is whole"
