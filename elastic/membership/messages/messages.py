"""What agents, workers and the hub say to each other, as types: what arrives is one of these, whole, or is refused.

Promises  `parse` raises WireError and nothing else, whatever it is given: an unknown word, a fact that is missing, of
          another type or too many, a number out of all bounds.
Leaves    what follows to hub.py; on whose behalf one may speak too. How a type is made of what arrived is
          elastic_checkpoint/net/codec.py's. Who says what, and when, is a table in docs/internals/protocol.md.

The types are in worker_messages.py and agent_messages.py; here are their words, and who hears which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic.membership.messages.agent_messages import (
    Bye,
    Exited,
    Full,
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
    TakeNote,
    Unstarted,
    WhereIsTheHub,
)
from elastic.membership.messages.failure import FAILURE, Failed
from elastic.membership.messages.wire import Message, WireError
from elastic.membership.messages.worker_messages import (
    Broken,
    Claimed,
    End,
    Entered,
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
from elastic_checkpoint.net.codec import Vocabulary
from elastic_checkpoint.net.framing import NotAMessage

_NESTED_MAX = 32  # lists and objects in each other: what may be anything at all is encoded once more, for others

FromWorker = Ready | ViewIsOver | Leaving | Saved | Put | Entered | Witness | HasRead | Claimed | Failed | Finished
ToItsAgent = FromWorker | RunStatus | Figures
ToHub = FromWorker | Hello | Started | Unstarted | Exited | Sighted | Noted | Bye | Ping
ToAgent = (
    Start
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

FROM_WORKER: Mapping[str, type] = {
    "ready": Ready,
    "view_is_over": ViewIsOver,
    "leaving": Leaving,
    "saved": Saved,
    "put": Put,
    "entered": Entered,
    "witness": Witness,
    "has_read": HasRead,
    "claimed": Claimed,
    **FAILURE,
    "finished": Finished,
}
TO_ITS_AGENT: Mapping[str, type] = {**FROM_WORKER, "run_status": RunStatus, "figures": Figures}
TO_HUB: Mapping[str, type] = {
    **FROM_WORKER,
    "hello": Hello,
    "started": Started,
    "unstarted": Unstarted,
    "exited": Exited,
    "sighted": Sighted,
    "noted": Noted,
    "bye": Bye,
    "ping": Ping,
}
TO_LISTENER: Mapping[str, type] = {"hello": Hello, "where_is_the_hub": WhereIsTheHub}  # an agent that may be the hub
TO_AGENT: Mapping[str, type] = {
    "start": Start,
    "status": Status,
    "kill_hung": KillHung,
    "run_is_over": RunIsOver,
    "ping": Ping,
    "roster": Roster,
    "take_note": TakeNote,
    "full": Full,
    "in_full": InFull,
    "handover": Handover,
    "hub_is": HubIs,
    "moved_on": MovedOn,
    "refusal": Refusal,
}
TO_WORKER: Mapping[str, type] = {
    "view": NewView,
    "board": OnBoard,
    "broken": Broken,
    "regroup": Regroup,
    "save": Save,
    "claim": TakeClaim,
    "hub_at": HubAt,
    "identity": OtherIdentity,
    "past": Past,
    "released": Released,
    "end": End,
    "leave": Leave,
    "hint": Hint,
    "moved_on": MovedOn,
}

as_message = Vocabulary(TO_ITS_AGENT, TO_HUB, TO_LISTENER, TO_AGENT, TO_WORKER).as_message


def parse(kinds: Mapping[str, type], message: Message) -> Any:
    """The message as one of these kinds. Raises WireError."""
    if not _is_shallow(message, _NESTED_MAX):
        raise WireError(f"more than {_NESTED_MAX} lists and objects in each other")
    return parse_nested(kinds, message)


def parse_nested(kinds: Mapping[str, type], message: Message) -> Any:
    """As `parse`, of one that lies in a message that was parsed. Raises WireError."""
    try:
        return codec.parse(kinds, message)
    except NotAMessage as wrong:
        raise WireError(str(wrong)) from None


def _is_shallow(message: Message, most: int) -> bool:
    """A takeover looks through a report of each node."""
    within: list[Any] = [message]
    for _ in range(most):
        parts = [one.values() if isinstance(one, dict) else one for one in within]
        within = [one for part in parts for one in part if isinstance(one, (dict, list))]
        if not within:
            return True
    return False
