"""A transfer in the background is over when all of it has gone, or has failed: nothing else looks like success."""

from __future__ import annotations

import pytest
import torch

from elastic.errors import CollectiveFailed, PeerLost
from elastic.group.form import LocalGroup
from elastic.loop.restoring.background_transfer import BackgroundSend, Piece, receive

WEIGHTS = {"w": torch.arange(8, dtype=torch.uint8)}
OF_ANOTHER = [Piece("a tensor that is not there", 0, 8)]


class Severed(LocalGroup):
    def check(self) -> None:
        raise PeerLost("a peer hung up", step=None, phase="group")


def test_who_cannot_send_what_it_holds_does_not_go_on_as_if_it_had() -> None:
    """Its thread ended with an error that nobody had foreseen (a lack of memory, say), and training went on."""
    with pytest.raises(CollectiveFailed, match=r"(?s)newcomer failed: KeyError.*in _sent"):
        BackgroundSend(LocalGroup(), [1], OF_ANOTHER, WEIGHTS, lambda: False).finish()


def test_who_cannot_tell_whether_it_was_written_to_does_not_say_that_it_was_not() -> None:
    def written() -> bool:
        raise MemoryError

    with pytest.raises(CollectiveFailed, match="MemoryError"):
        BackgroundSend(LocalGroup(), [1], [Piece("w", 0, 8)], WEIGHTS, written).finish()


def test_who_cannot_receive_does_not_train_with_what_lay_in_its_memory_before() -> None:
    with pytest.raises(CollectiveFailed, match=r"(?s)KeyError.*in _received"):
        receive(LocalGroup(), {0: OF_ANOTHER}, WEIGHTS)


def test_what_fails_in_a_group_that_was_aborted_is_the_loss_of_a_peer() -> None:
    """Another view helps then; of an error of its own a worker ends."""
    with pytest.raises(PeerLost):
        receive(Severed(), {0: OF_ANOTHER}, WEIGHTS)
    with pytest.raises(PeerLost):
        BackgroundSend(Severed(), [1], OF_ANOTHER, WEIGHTS, lambda: False).finish()
