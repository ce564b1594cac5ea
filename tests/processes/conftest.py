"""What several tests of workers ask for."""

from collections.abc import Iterator

import pytest

from tests.kit.ranks import agent_store


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store as torchrun's agent hosts one."""
    with agent_store() as port:
        yield port
