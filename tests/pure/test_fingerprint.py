"""What ranks are about to do is compared, and an error says what it was and where in the script: on all of them."""

from __future__ import annotations

import pytest

from elastic.errors import CollectiveFailed, PeerLost
from elastic.group.fingerprint import Fingerprint, Kind, mismatch
from elastic.group.form import failed


def test_where_ranks_were_called_from_may_differ() -> None:
    """`loss = run.evaluate(…) if run.is_coordinator else run.evaluate(…)` is odd, and right."""
    here = Fingerprint(kind=Kind.EVALUATION, step=3, ordinal=1, batches=(64, 4), site="train.py:14")
    there = Fingerprint(kind=Kind.EVALUATION, step=3, ordinal=1, batches=(64, 4), site="train.py:16")
    assert here.meets(there)


@pytest.mark.parametrize(
    "other",
    [
        Fingerprint(kind=Kind.STEP, step=3),
        Fingerprint(kind=Kind.EVALUATION, step=4, ordinal=1, batches=(64, 4)),
        Fingerprint(kind=Kind.EVALUATION, step=3, ordinal=2, batches=(64, 4)),
        Fingerprint(kind=Kind.EVALUATION, step=3, ordinal=1, batches=(65, 4)),
        Fingerprint(kind=Kind.EVALUATION, step=3, ordinal=1, batches=(64, 8)),
    ],
    ids=["another kind", "another step", "a second time", "another length", "another batch size"],
)
def test_what_would_not_add_up_does_not_meet(other: Fingerprint) -> None:
    assert not Fingerprint(kind=Kind.EVALUATION, step=3, ordinal=1, batches=(64, 4)).meets(other)


def test_the_error_names_every_rank_and_its_place_in_the_script() -> None:
    step = Fingerprint(kind=Kind.STEP, step=3, site="train.py:10")
    evaluation = Fingerprint(kind=Kind.EVALUATION, step=3, ordinal=1, batches=(1497, 20), site="train.py:15")
    text = str(mismatch([evaluation, step, step, step, evaluation]))
    assert "  ranks 0, 4: run.evaluate after step 2 (the first there, of 1,497 examples in batches of 20), at " in text
    assert "train.py:15\n" in text
    assert "  ranks 1-3: step 3, at train.py:10\n" in text
    assert "3 steps applied" in text


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    "text",
    [
        f"{GLOO}pair.cc:547] Connection closed by peer [10.0.0.2]:3321. This is typically caused by ...",
        f"{GLOO}pair.cc:534] Read error [10.0.0.2]:3321: Connection reset by peer",
        f"{GLOO}unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
        "NCCL communicator was aborted on rank 1.",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ],
)
def test_a_peer_that_is_gone_or_silent_is_a_lost_peer(text: str) -> None:
    assert isinstance(failed("all-gather", RuntimeError(text), aborted=False), PeerLost)


@pytest.mark.parametrize(
    "text",
    [
        "ProcessGroupGloo::allgather: invalid tensor size at index 1 (expected (4), got (3))",
        "Invalid scalar type",
        "CUDA error: device-side assert triggered",
        "",
    ],
)
def test_a_fault_of_the_tensors_is_no_lost_peer_while_all_peers_are_there(text: str) -> None:
    """Taken for one, it came again in the next view, and in the next, for ever."""
    assert isinstance(failed("all-gather", RuntimeError(text), aborted=False), CollectiveFailed)
    assert isinstance(failed("all-gather", RuntimeError(text), aborted=True), PeerLost)
