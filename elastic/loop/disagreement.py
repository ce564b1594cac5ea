"""Two workers have passed one share, and it gave different bits: what is said of that, and what it leads to.

    three workers or more   the step comes round again (ShareDiffers), and all pass that share, twice (cross_check.py)
        some are wrong      by verdict.py: each of them ends (ComputesWrongly); to the others they are lost (PeerWrong),
                            and recovery.py asks whether what is held may be gone on from
        nobody can tell     it is the script, as far as anybody knows: an error on all
    fewer                   likewise

The same is said of workers that hold other states (replica_check.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastic.errors import CANNOT_DO, UNTOUCHED, ComputesWrongly, NotLetIn, PeerLost, StepError
from elastic.state.trained_set import listed

Said = Mapping[str, Any]
"""What one pass gave: the digest of its "batch", and those of its "gradients", by parameter."""
Rows = Mapping[str, Sequence[str | None]]
"""What example_digest.digests_of_rows says of one batch."""
_SHOWN = 3


class ShareDiffers(PeerLost):
    """A share gave different bits. Nobody is lost: the step comes round again in this view, and all pass that share."""

    def __init__(self, found: Disagreement) -> None:
        super().__init__(f"share {found.share} gave different bits", step=found.step, phase="cross-check")
        self.found = found


class PeerWrong(PeerLost):
    """Some workers are wrong and end: to the others they are lost.

    tells      this worker is the one of the others that tells people
    unapplied  nothing that they have computed is
    """

    def __init__(self, named: str, *, step: int, phase: str, tells: bool, unapplied: bool = False) -> None:
        does = "joined, differs from the others, and is not let in" if unapplied else "computes wrongly, and leaves"
        super().__init__(f"{named} {does}", step=step, phase=phase)
        self.tells = tells
        self.unapplied = unapplied


def first_besides(wrong: Collection[int]) -> int:
    """Return the first rank that is not among the wrong ones."""
    return next(rank for rank in range(len(wrong) + 1) if rank not in wrong)


@dataclass(frozen=True)
class Disagreement:
    """A share that gave different bits.

    share    -1: its own worker has no digest of it
    owner    whose share it is; checker: who has passed it, too
    first    what it gave them, by rank
    hosts    of all ranks
    changed  variables of the script that the checker's pass has changed
    examples  in words, those that differ
    """

    step: int
    share: int
    owner: int
    checker: int
    first: Mapping[int, Said]
    hosts: Sequence[str]
    changed: Sequence[str]
    examples: str = ""

    @classmethod
    def of(cls, every: Sequence[Mapping[str, Any]], step: int) -> Disagreement:
        """Return the first share that differs; every: what each rank says."""
        hosts = [said["host"] for said in every]
        owners = {share: (rank, one) for rank, said in enumerate(every) for share, one in said["own"].items()}
        for checker, said in enumerate(every):
            for share, there in sorted(said["passed"].items(), key=lambda one: int(one[0])):
                owner, here = owners.get(share, (checker, there))
                if here != there:
                    first = {owner: here, checker: there}
                    if owner == checker:  # one worker has passed it twice
                        first = {0: here, 1: there}
                    return cls(step, int(share), owner, checker, first, hosts, said["changed"])
        return cls(step, -1, -1, -1, {}, hosts, ())

    @property
    def other_batch(self) -> bool:
        """Return whether the two have read different batches."""
        return len({said["batch"] for said in self.first.values()}) > 1

    def with_examples(self, rows: tuple[Rows, Rows], numbers: Sequence[int]) -> Disagreement:
        """Return it with the examples that differ; rows: the owner's and the checker's; numbers: in the data set."""
        here, there = rows
        fields: dict[int, list[str]] = {}
        for field, digests in here.items():
            others = there.get(field, ())
            if len(digests) == len(others) == len(numbers):
                for number, one, other in zip(numbers, digests, others, strict=True):
                    if one != other:
                        fields.setdefault(number, []).append(field or "all of it")
        shown = [f"dataset[{number}], in {', '.join(differing)}" for number, differing in fields.items()]
        more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        return replace(self, examples="; ".join(shown[:_SHOWN]) + more)

    def named(self, ranks: Collection[int]) -> str:
        """Return ranks in words, each with its host."""
        return ", ".join(f"rank {rank} (on {self.hosts[rank]})" for rank in sorted(ranks))

    def error(self) -> StepError:
        """Return the error for where nobody can tell which of the two is wrong."""
        if self.share < 0:
            return StepError(
                f"a share of step {self.step} was passed by a second worker, and its own worker has no digest of it to "
                "compare\n  found  workers that plan a step differently, which is a fault of elastic's own\n"
                f"{UNTOUCHED}"
                "  next   report it with the run's events; checks=Checks(cross_check=None) goes on without these checks"
            )
        here, there = self.first.values()
        alone = self.owner == self.checker
        passed_by = [self.named([one]) for one in dict.fromkeys((self.owner, self.checker))]
        by = "by this worker" if len(self.hosts) == 1 else f"by {' and by '.join(passed_by)}"
        what, differing = f"share {self.share} of step {self.step}", listed(_differing(here, there))
        if self.other_batch:
            which = f": {self.examples}" if self.examples else ""
            return StepError(
                f"{what} was read twice, {by}, and the batches are not the same{which}\n"
                "  found  the same examples, by number: the data set, its transforms, or the collate function keep "
                "something of what\n         was read before, draw what nobody has seeded, or read other files on "
                f"another machine\n{UNTOUCHED}"
                "  next   make dataset[i] depend on i alone (random numbers of torch, numpy and random are seeded for "
                "each example)"
            )
        of_script = f"         of the script's variables it changed {listed(self.changed)}\n" if self.changed else ""
        machine = "the machine computes" if alone else "one of these machines computes"
        return StepError(
            f"{what} was passed twice, {by}, and gave other gradients the second time: {differing}\n"
            "  found  what the loop's body has changed itself reaches the gradients (a hidden state; a count of "
            "bodies, enumerate's\n         too; a buffer of what came by; what objects keep of the last batch); how "
            f"many bodies a worker has depends\n         on the world size;\n         or {machine} wrongly\n"
            f"{of_script}{UNTOUCHED}"
            "  next   steps are counted by run.step_index, and what is summed up, by run.add and run.sums; what is "
            "kept from step to\n         step is changed where run.stepped, and handed over: extra=; a hidden state "
            f"begins anew with each batch\n         ({CANNOT_DO})"
        )

    def ends(self, wrong: Collection[int], joined: Collection[int], *, rank: int) -> StepError | PeerWrong:
        """Return what this rank raises.

        wrong   who is known to be
        joined  who has had no part in any step before this one, and is in the wrong where nobody knows better
        """
        wrong = wrong or {self.owner, self.checker}.intersection(joined)
        if not wrong:
            return self.error()
        if rank not in wrong:
            tells, unapplied = rank == first_besides(wrong), {*wrong} <= {*joined}
            return PeerWrong(self.named(wrong), step=self.step, phase="cross-check", tells=tells, unapplied=unapplied)
        if rank in joined:
            return NotLetIn(f"this worker is not let in: {self.error()}")
        here, there = self.first.values()
        what = f"other gradients: {listed(_differing(here, there))}"
        if self.other_batch:
            what = f"another batch: {self.examples}" if self.examples else "another batch"
        return ComputesWrongly(
            f"{self.named([rank])} is wrong in share {self.share} of step {self.step}, by what most workers agree on: "
            f"{what}\n"
            f"  found  {_READS if self.other_batch else _COMPUTES}\n{UNTOUCHED}"
            "  next   nothing, where it stays the only time: this worker ends, and another one takes its place; else "
            "take the\n         machine out, and test its memory and its processor",
            host=self.hosts[rank],
            rank=rank,
        )


_READS = """\
the others have read the same, twice, each by itself: this machine has other files, or its memory is damaged"""
_COMPUTES = """\
the others, each by itself, gave the same bits twice: this machine computes wrongly, or its memory is damaged;
         or the loop's body depends on which worker it runs in"""


def _differing(here: Said, there: Said) -> list[str]:
    """Return the parameters whose gradients differ."""
    names = sorted({*here["gradients"], *there["gradients"]})
    return [name for name in names if here["gradients"].get(name) != there["gradients"].get(name)]
