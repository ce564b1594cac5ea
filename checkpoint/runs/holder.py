"""May a newcomer take the claim from its holder? It answers: no. It is dead: at once. It is silent: after a grace.

An accidental second launch must not kill a week-long run, and a run whose machines are gone must not wait for a person.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

from checkpoint.errors import ClaimHeld
from checkpoint.runs.beacon import Alive, Gone, Unknown, ask
from checkpoint.runs.claims import Claim
from checkpoint.runs.history import Log

_POLL_S = 0.2
_ANSWER_S = 2.0  # how long one question waits; a holder whose machine swaps may need a while


@dataclass(frozen=True)
class Free:
    """The claim may be taken."""

    why: str


@dataclass(frozen=True)
class Held:
    """The claim may not be taken."""

    why: str


@dataclass(frozen=True)
class Wait:
    """Ask again."""

    why: str


def decide(answer: Alive | Gone | Unknown, *, job: str | None, waited_s: float, grace_s: float) -> Free | Held | Wait:
    """What an answer allows. Pure.

    job       our own name; a holder with the same one is our dying predecessor, and is waited for
    waited_s  how long we have been asking; every wait ends when it reaches `grace_s`
    """
    match answer:
        case Gone(why):
            return Free(f"is gone ({why})")
        case Alive(other) if not job or other != job:
            return Held("it answers")
        case Alive():
            return Held(f"it still answers after {grace_s:g} s") if waited_s >= grace_s else Wait("is our predecessor")
        case Unknown(why):
            silent = f"was silent for {grace_s:g} s, so it is replaced: {why}"
            return Free(silent) if waited_s >= grace_s else Wait(f"does not answer: {why}")


def wait_until_free(holder: Claim, *, url: str, job: str | None, grace_s: float, log: Log) -> None:
    """Asks the holder until the claim may be taken. Raises `ClaimHeld`. Ends within about `grace_s`."""
    began_s, told = time.monotonic(), False
    while True:
        waited_s = time.monotonic() - began_s
        match decide(_answer(holder), job=job, waited_s=waited_s, grace_s=grace_s):
            case Free(why):
                log(f"the holder of claim {holder.number} {why}")
                return
            case Held(why):
                raise _held(holder, url, why)
            case Wait(why) if not told:
                log(f"waiting up to {grace_s:g} s for the holder of claim {holder.number}, which {why}")
                told = True
        time.sleep(min(_POLL_S, max(grace_s - waited_s, 0.0)))


def _answer(holder: Claim) -> Alive | Gone | Unknown:
    if holder.endpoint is None:
        return Unknown("it could not listen")
    return ask(holder.endpoint, holder.nonce, timeout_s=_ANSWER_S)


def _held(holder: Claim, url: str, how: str) -> ClaimHeld:
    endpoint = holder.endpoint or {}
    host, pid = str(endpoint.get("host")), endpoint.get("pid")
    pid = pid if type(pid) is int else 0
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder.taken_at))
    ourselves = pid == os.getpid() and host == socket.gethostname()
    advice = (
        "close() the other Checkpointer of this very process first"
        if ourselves
        else "use another URL, or stop that job, or insist with take_over=True: it then can commit nothing more"
    )
    return ClaimHeld(
        f"{url} belongs to a live job: claim {holder.number}\n"
        f"  holder  process {pid} on {host}, job {holder.job!r}, since {since}; {how}\n"
        f"  state   nothing was changed\n"
        f"  next    {advice}",
        claim=holder.number,
        host=host,
        pid=pid,
        since=holder.taken_at,
        job=holder.job,
    )
