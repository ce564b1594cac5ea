"""What agents, workers and the hub say to each other, as types: what arrives is one of these, whole, or is refused.

Promises  `parse` raises WireError and nothing else, whatever it is given: an unknown word, a fact that is missing, of
          another type or too many, a number out of all bounds.
Leaves    what follows to hub.py; on whose behalf one may speak too. How a type is made of what arrived is
          elastic_checkpoint/net/codec.py's. Who says what, and when, is a table in docs/internals/protocol.md.

The types are in worker_messages.py and agent_messages.py; here is who hears which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic.membership.messages.agent_messages import (
    Bye,
    Exited,
    Full,
    GroupForms,
    Handover,
    Hello,
    HubIs,
    InFull,
    KillHung,
    MovedOn,
    Noted,
    Ping,
    Refusal,
    Roster,
    RunIsOver,
    Sighted,
    Start,
    Started,
    Status,
    StopAll,
    TakeNote,
    Unstarted,
    WhereIsTheHub,
    World,
)
from elastic.membership.messages.wire import Message, WireError
from elastic.membership.messages.worker_messages import (
    Broken,
    Claimed,
    End,
    Entered,
    Failed,
    Figures,
    Finished,
    HasRead,
    Hint,
    HubAt,
    Leave,
    Leaving,
    NewView,
    OnBoard,
    OtherIdentity,
    Past,
    Put,
    Ready,
    Regroup,
    Released,
    RunStatus,
    Save,
    Saved,
    TakeClaim,
    ViewIsOver,
    Witness,
)
from elastic_checkpoint.net import codec
from elastic_checkpoint.net.codec import NotAMessage, Tagged, by_word
from elastic_checkpoint.net.codec import as_message as as_message

_NESTED_MAX = 32  # lists and objects in each other: what may be anything at all is encoded once more, for others

FromWorker = Ready | ViewIsOver | Leaving | Saved | Put | Entered | Witness | HasRead | Claimed | Failed | Finished
ToItsAgent = FromWorker | RunStatus | Figures
ToHub = FromWorker | Hello | Started | Unstarted | Exited | Sighted | Noted | Bye | GroupForms | Ping
ToListener = Hello | WhereIsTheHub  # an agent that may be the hub
ToAgent = (
    Start
    | World
    | GroupForms
    | StopAll
    | Status
    | KillHung
    | RunIsOver
    | Ping
    | Roster
    | TakeNote
    | Full
    | InFull
    | Handover
    | HubIs
    | MovedOn
    | Refusal
)
ToWorker = (
    NewView
    | OnBoard
    | Broken
    | Regroup
    | Save
    | TakeClaim
    | HubAt
    | OtherIdentity
    | Past
    | End
    | Released
    | Leave
    | Hint
    | MovedOn
)

FROM_WORKER, TO_ITS_AGENT, TO_WORKER = by_word(FromWorker), by_word(ToItsAgent), by_word(ToWorker)
TO_HUB, TO_LISTENER, TO_AGENT = by_word(ToHub), by_word(ToListener), by_word(ToAgent)


def parse(kinds: Mapping[str, type[Tagged]], message: Message) -> Any:
    """Return the message as one of these kinds. Raises WireError."""
    if not _is_shallow(message, _NESTED_MAX):
        raise WireError(f"more than {_NESTED_MAX} lists and objects in each other")
    return parse_nested(kinds, message)


def parse_nested(kinds: Mapping[str, type[Tagged]], message: Message) -> Any:
    """Return what lies in a message that was parsed, as `parse` does. Raises WireError."""
    try:
        return codec.parse(kinds, message)
    except NotAMessage as wrong:
        raise WireError(str(wrong)) from None


def _is_shallow(message: Message, most: int) -> bool:
    """Return whether no more than so many lists and objects lie in each other."""
    within: list[Any] = [message]
    for _ in range(most):
        parts = [one.values() if isinstance(one, dict) else one for one in within]
        within = [one for part in parts for one in part if isinstance(one, (dict, list))]
        if not within:
            return True
    return False
