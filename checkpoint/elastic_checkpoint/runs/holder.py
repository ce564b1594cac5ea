"""Whether a newcomer may take the claim from its holder.

It answers: no. It is dead: at once. It is silent: after a grace, if it shows no heartbeat in the storage meanwhile.

An accidental second launch must not kill a week-long run, and a run whose machines are gone must not wait for a person.
Times are this process's own: no clock of another host is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from elastic_checkpoint.runs.claim_record import Claim, held
from elastic_checkpoint.runs.history import Log
from elastic_checkpoint.runs.liveness import Alive, Answer, Gone, LivenessEndpoint, Refused, Unknown, ask_both

_POLL_S = 0.2
_LOOK_S = 1.0  # between two looks into the storage
_ANSWER_S = 2.0  # how long one question waits; a holder whose machine swaps may need a while
_AT_ONCE = 16  # holders that are asked at the same time

Signs = Callable[[int], object]
Moved = Callable[[int], LivenessEndpoint | None]


@dataclass(frozen=True)
class Free:
    """The claim may be taken.

    certain  the holder is dead; else it was only silent
    """

    why: str
    certain: bool = True


@dataclass(frozen=True)
class Held:
    """The claim may not be taken."""

    why: str


@dataclass(frozen=True)
class Wait:
    """Ask again."""

    why: str


def decide(
    answer: Answer,
    *,
    theirs: str | None,
    ours: str | None,
    waited_s: float,
    grace_s: float,
    sign_changed: bool = False,
) -> Free | Held | Wait:
    """Return what an answer allows. Pure.

    theirs, ours  names of the jobs; a holder with our own is our dying predecessor, and is waited for
    waited_s      how long we have been asking; every wait ends when it reaches `grace_s`
    sign_changed  whether the holder's heartbeat in the storage has changed while we waited
    """
    same = bool(ours) and theirs == ours
    over = waited_s >= grace_s
    match answer:
        case Gone(why):
            return Free(f"is gone ({why})")
        case Refused(why) if same:
            return Free(f"is gone ({why})")
        case Alive():
            if not same:
                return Held("it answers")
            return Held(f"it still answers after {grace_s:g} s") if over else Wait("is our predecessor")
        case Refused(why) | Unknown(why) if sign_changed:
            if not same:
                return Held(f"it cannot be asked, but shows heartbeats in the storage: {why}")
            return Held(f"it still lives after {grace_s:g} s: {why}") if over else Wait("is our predecessor")
        case Refused(why) | Unknown(why):
            silent = f"was silent for {grace_s:g} s, and left no sign in the storage, so it is replaced: {why}"
            return Free(silent, certain=False) if over else Wait(f"cannot be asked: {why}")


def wait_until_free(
    holders: Sequence[Claim],
    *,
    url: str,
    job: str | None,
    grace_s: float,
    signs: Signs,
    moved: Moved,
    log: Log,
    ignored_nonce: str | None = None,
) -> frozenset[int]:
    """Ask all holders until none can be going on; the numbers of those that were only silent. Raises `ClaimHeld`.

    signs          claim number -> what its holder changes in the storage as long as it lives
    moved          claim number -> the endpoint that took the place of its holder's
    ignored_nonce  of an endpoint that is not asked: it answers whoever goes on
    Ends within about `grace_s`, whatever their number.
    """
    waiting = list(holders)
    moved_to: dict[int, LivenessEndpoint | None] = {}
    silent: set[int] = set()
    began_s, looked_s, read_s, said = time.monotonic(), -_LOOK_S, -_LOOK_S, False
    first: dict[int, object] = {}
    sign_changed: set[int] = set()
    while True:
        waited_s = time.monotonic() - began_s
        if waited_s - read_s >= _LOOK_S:
            read_s, moved_to = waited_s, {one.number: moved(one.number) for one in waiting}
        answers = _ask_all(waiting, moved_to, ignored_nonce)
        unheard = [one for one, answer in answers if isinstance(answer, Refused | Unknown)]
        if unheard and (waited_s - looked_s >= _LOOK_S or waited_s >= grace_s):
            looked_s = waited_s
            for one in unheard:
                now = signs(one.number)
                if first.setdefault(one.number, now) != now:
                    sign_changed.add(one.number)
        for one, answer in answers:
            decided = decide(
                answer,
                theirs=answer.job if isinstance(answer, Alive) else one.job,
                ours=job,
                waited_s=waited_s,
                grace_s=grace_s,
                sign_changed=one.number in sign_changed,
            )
            match decided:
                case Free(why, certain):
                    waiting.remove(one)
                    if not certain:  # of one that is certainly gone nobody needs to know where it listened
                        log(f"the holder of claim {one.number} {why}")
                        silent.add(one.number)
                case Held(why):
                    raise held(one, url, why)
                case Wait(why) if not said:
                    log(f"waiting up to {grace_s:g} s for the holder of claim {one.number}, which {why}")
                    said = True
        if not waiting:
            return frozenset(silent)
        time.sleep(min(_POLL_S, max(grace_s - waited_s, 0.0)))


def _ask_all(
    holders: Sequence[Claim], moved_to: Mapping[int, LivenessEndpoint | None], ignored_nonce: str | None
) -> list[tuple[Claim, Answer]]:
    def answer(holder: Claim) -> Answer:
        own = holder.endpoint if holder.nonce != ignored_nonce else None
        moved = moved_to[holder.number]
        moved = moved if moved is not None and moved.nonce != ignored_nonce else None
        return ask_both(own, holder.nonce, moved, timeout_s=_ANSWER_S)

    if len(holders) == 1:
        return [(holders[0], answer(holders[0]))]
    with ThreadPoolExecutor(min(_AT_ONCE, len(holders)), thread_name_prefix="checkpoint-ask") as pool:
        return list(zip(holders, pool.map(answer, holders), strict=True))
