"""What holds of every run's events, whatever happened in it: asserted of each run that a test starts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from elastic.events.declarations import problems
from elastic.events.event import Event
from elastic.report.ledger import ledger
from elastic.report.page import page
from elastic.report.report import report


def assert_observed(events: Sequence[Event]) -> None:
    """Each is as declared, the parts of every worker's time sum to the whole, and a report can be made."""
    assert not [problem for event in events for problem in problems(event)]
    accounts = ledger(events).workers.values()
    for account in accounts:
        assert min(account.parts.values()) >= 0.0
        assert sum(account.parts.values()) == pytest.approx(account.end_s - account.begin_s, abs=1e-4)
        assert account.parts["unknown"] == 0.0
    if events:
        json.dumps(report(events).facts(), allow_nan=False)
        assert page("run", events).endswith("</html>\n")
