"""What torch's rendezvous writes of itself is the same, and does not cost a second of a processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from elastic.launch.rendezvous.caller_names import caller, name_callers_quickly


def test_torch_is_told_the_name_that_it_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    its_own: Callable[..., str] = dynamic_rendezvous.get_method_name
    monkeypatch.setattr(dynamic_rendezvous, "get_method_name", its_own)  # and is given back
    assert (a_method(its_own), a_method(its_own, 3)) == (a_method(caller), a_method(caller, 3))
    assert a_method(caller) == "a_method"
    assert a_method(its_own, 1000) == a_method(caller, 1000)

    assert name_callers_quickly()
    assert dynamic_rendezvous.get_method_name is caller


def a_method(name: Callable[..., str], *depth: int) -> str:
    return _record(name, *depth)


def _record(name: Callable[..., Any], *depth: int) -> str:
    return str(name(*depth))
