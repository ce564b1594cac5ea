"""Which checkpoints belong to the run, newest first. Pure: what was listed goes in, an order comes out.

A claim names the commit that was newest when it was taken. The lineage is: the newest claim's commits by step; then the
commit that this claim resumed from and the older ones of that commit's claim; and so on down.

Promise  a commit that an older claim made *after* a newer claim resumed from it is never in the lineage, at whatever
         step and however late it arrives: a host that was given up and comes back changes nothing.

One exception, so that nothing is lost to a newcomer that dies at once: a claim that made no commit, and whose named
commit is gone, decided nothing. Only the holder that it replaced can have swept that commit, after making newer ones;
these count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from checkpoint.format.names import CommitId


def lineage(
    newest_claim: int | None, commits: Iterable[CommitId], resumed_from: Callable[[int], CommitId | None]
) -> list[CommitId]:
    """The run's commits, newest first.

    newest_claim   the highest claim number, or None where nobody ever claimed
    commits        every commit that is listed, in any order
    resumed_from   claim number -> the commit that this claim resumed from; asked only for claims on the way down.
                   It must be of an older claim.
    """
    by_claim: dict[int, list[CommitId]] = {}
    for commit in commits:
        by_claim.setdefault(commit.claim, []).append(commit)
    oldest = min(by_claim, default=0)

    ordered: list[CommitId] = []
    claim, last = newest_claim, None
    while claim is not None and claim >= oldest:
        ordered += sorted((c for c in by_claim.get(claim, ()) if last is None or c <= last), reverse=True)
        named = resumed_from(claim)
        assert named is None or named.claim < claim, f"claim {claim} resumed from {named}, which is not older"
        decided = claim in by_claim or named in by_claim.get(named.claim if named else 0, ())
        claim, last = (named.claim, named if decided else None) if named else (None, None)
    return ordered
