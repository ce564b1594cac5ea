"""Which checkpoints belong to the run, newest first. Pure: what was listed goes in, an order comes out.

A claim names the commit that its holder went on from. The lineage is: the commits of the newest claim that counts, by
step; then the commit that this claim resumed from and the older ones of that commit's claim; and so on down.

A claim counts from its first commit on. Whoever takes one and dies, or gives up, before that changes nothing.

Promise  a commit that an older claim made *after* a newer claim, which has committed, resumed from it is never in the
         lineage, at whatever step and however late it arrives: a host that was given up and comes back changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elastic_checkpoint.format.names import CommitId


def lineage(
    top: int | None, commits: Iterable[CommitId], resumed_from: Callable[[int], CommitId | None]
) -> list[CommitId]:
    """Return the run's commits, newest first.

    top           the newest claim that counts, or None where none does
    commits       every commit that is listed, in any order
    resumed_from  claim number -> the commit that this claim resumed from; asked only for claims on the way down.
                  It must be of an older claim.
    """
    by_claim: dict[int, list[CommitId]] = {}
    for commit in commits:
        by_claim.setdefault(commit.claim, []).append(commit)
    oldest = min(by_claim, default=0)

    ordered: list[CommitId] = []
    claim, last = top, None
    while claim is not None and claim >= oldest:
        ordered += sorted((c for c in by_claim.get(claim, ()) if last is None or c <= last), reverse=True)
        last = resumed_from(claim)
        assert last is None or last.claim < claim, f"claim {claim} resumed from {last}, which is not older"
        claim = last.claim if last is not None else None
    return ordered
