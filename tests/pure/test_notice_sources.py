"""Each cloud's own words become a notice, and nothing that its metadata service does costs more than a line.

Over real sockets, against a service that speaks all three protocols (tests/kit/metadata.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from elastic.preemption.notice import Kind, Notice
from elastic.preemption.sources.azure import Azure
from elastic.preemption.sources.ec2 import Ec2
from elastic.preemption.sources.gcp import Gcp
from elastic.preemption.sources.metadata import Cloud, MetadataService
from elastic.preemption.sources.registry import KINDS
from elastic.preemption.sources.source import PartlyFailed, Source, SourceFailed
from tests.kit.metadata import FAULTS, SAYS, Fault, MetadataServer

SOON_S = 0.3
"""So long a service is waited for that does not answer."""
BUSY_S = 3.0
"""As above, where it answers something else, on a machine that has other things to do."""
LONG_S = 60.0
"""So long an answer may take that is to come."""


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        yield server


Make = Callable[[MetadataServer, float], Source]
CLOUDS: dict[str, Make] = {
    "ec2": lambda server, within_s: Ec2(MetadataService(server.endpoint), within_s=within_s),
    "gcp": lambda server, within_s: Gcp(MetadataService(server.endpoint), within_s=within_s, wait_s=1),
    "azure": lambda server, within_s: Azure(MetadataService(server.endpoint), within_s=within_s),
}


def ec2(server: MetadataServer, wall: Callable[[], float] = time.time) -> Ec2:
    return Ec2(MetadataService(server.endpoint), within_s=LONG_S, wall=wall)


def gcp(server: MetadataServer, wait_s: int = 1) -> Gcp:
    return Gcp(MetadataService(server.endpoint), within_s=LONG_S, wait_s=wait_s)


def azure(server: MetadataServer, *, acknowledge: bool = False) -> Azure:
    return Azure(MetadataService(server.endpoint), within_s=LONG_S, acknowledge=acknowledge)


def only(notices: Sequence[Notice]) -> Notice:
    (notice,) = notices
    return notice


def left_s(notice: Notice) -> float:
    """At the answer, a moment ago."""
    left = notice.left_s(time.monotonic())
    assert left is not None
    return left


# of all clouds


def test_every_cloud_is_tried_here() -> None:
    clouds = {name for name, kind in KINDS.items() if issubclass(kind, Cloud)}
    assert clouds == set(CLOUDS) == set(SAYS)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_notice_is_heard_is_the_same_when_it_is_heard_again_and_can_be_withdrawn(
    server: MetadataServer, cloud: str
) -> None:
    source = CLOUDS[cloud](server, LONG_S)
    assert list(source.look()) == []
    SAYS[cloud](server)
    first, again = only(source.look()), only(source.look())
    assert (first.kind, first.source, first.id) == (Kind.LEAVE, cloud, again.id)
    server.withdraw()
    assert list(source.look()) == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_service_that_fails_is_a_failure_in_words_and_is_heard_again_afterwards(
    server: MetadataServer, cloud: str, fault: Fault
) -> None:
    """Also where it answered before. No redirect is followed."""
    source = CLOUDS[cloud](server, SOON_S)
    server.fault = fault
    with pytest.raises(SourceFailed) as failed:
        source.look()
    assert len(str(failed.value)) < 600
    server.fault = None
    SAYS[cloud](server)
    asked_well = CLOUDS[cloud](server, LONG_S)
    assert only(asked_well.look()).kind is Kind.LEAVE
    server.fault = fault
    server.forget_tokens()
    if not (cloud == "azure" and fault in ("hang", "drip")):  # it may be one that is only being turned on
        with pytest.raises(SourceFailed):
            source.look()
    assert all("/elsewhere" not in path for _, path in server.asked)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_look_at_a_service_that_hangs_ends_when_nobody_wants_it_any_more(server: MetadataServer, cloud: str) -> None:
    source, ended = CLOUDS[cloud](server, LONG_S), threading.Event()
    server.fault = "hang"

    def look() -> None:
        try:
            source.look()
        except SourceFailed:
            ended.set()

    thread = threading.Thread(target=look)
    thread.start()
    while not server.asked:
        time.sleep(0.01)
    source.abort()
    thread.join(LONG_S / 2)
    assert not thread.is_alive()


def test_no_proxy_of_the_environment_is_used(server: MetadataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.interrupt()
    assert only(ec2(server).look()).kind is Kind.LEAVE


PARTLY: dict[tuple[str, str], Callable[[MetadataServer], object]] = {
    ("ec2", "/instance-action"): lambda server: server.rebalance(),
    ("ec2", "/rebalance"): lambda server: server.interrupt(),
    ("gcp", "/preempted"): lambda server: server.gcp("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
    ("gcp", "/maintenance-event"): lambda server: server.gcp("preempted", "TRUE"),
}
"""(cloud, how the path ends that is broken), and what it says elsewhere."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("cloud", "path"), PARTLY)
def test_what_one_question_hears_is_told_whatever_becomes_of_the_other(
    server: MetadataServer, cloud: str, path: str, fault: Fault
) -> None:
    """A recommendation that nobody can read must not keep the interruption from those who have two minutes."""
    PARTLY[cloud, path](server)
    server.fault, server.broken = fault, path
    within_s = SOON_S if fault in ("hang", "drip") else LONG_S
    with pytest.raises(PartlyFailed) as failed:
        CLOUDS[cloud](server, within_s).look()
    assert only(failed.value.heard).source == cloud


def test_a_move_of_the_host_that_nobody_foresaw_does_not_hide_the_preemption(server: MetadataServer) -> None:
    server.gcp("maintenance-event", "DANCE_ON_HOST_MAINTENANCE")
    server.gcp("preempted", "TRUE")
    with pytest.raises(PartlyFailed, match="DANCE_ON_HOST_MAINTENANCE") as failed:
        gcp(server).look()
    assert only(failed.value.heard).id == "preempted"


# EC2


@pytest.mark.parametrize("off_s", [0.0, -7200.0, 86400.0 * 365])
def test_ec2s_deadline_counts_by_ec2s_clock_and_not_by_this_machines(server: MetadataServer, off_s: float) -> None:
    server.off_s = off_s
    server.interrupt(in_s=90)
    assert 60 < left_s(only(ec2(server).look())) <= 91


@pytest.mark.parametrize(("wrong_by_s", "least", "most"), [(3600.0, 0.0, 0.0), (-3600.0, 90.0, 120.0)])
def test_without_a_date_a_wrong_clock_bounds_ec2s_deadline_to_what_ec2_ever_gives(
    server: MetadataServer, wrong_by_s: float, least: float, most: float
) -> None:
    server.shows_date = False
    server.interrupt(in_s=90)
    assert least <= left_s(only(ec2(server, lambda: time.time() + wrong_by_s).look())) <= most


def test_an_interruption_without_a_time_that_can_be_read_is_two_minutes_ahead(server: MetadataServer) -> None:
    server.interrupt()
    assert server._action is not None
    server._action["time"] = ["soon"]
    assert 90 < left_s(only(ec2(server).look())) <= 120


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_whatever_ec2_does_to_the_instance_it_says_by_name(server: MetadataServer, action: str) -> None:
    server.interrupt(action=action)
    assert action[:4] in only(ec2(server).look()).why


def test_a_recommendation_to_rebalance_is_a_hint_beside_or_before_the_interruption(server: MetadataServer) -> None:
    source = ec2(server)
    server.rebalance()
    assert only(source.look()).kind is Kind.HINT
    server.interrupt()
    assert [notice.kind for notice in source.look()] == [Kind.LEAVE, Kind.HINT]


def test_a_token_is_asked_for_once_and_again_when_it_is_refused(server: MetadataServer) -> None:
    source = ec2(server)
    for _ in range(3):
        source.look()
    assert sum(method == "PUT" for method, _ in server.asked) == 1
    server.forget_tokens()
    server.interrupt()
    assert only(source.look()).kind is Kind.LEAVE
    assert sum(method == "PUT" for method, _ in server.asked) == 2


def test_an_answer_that_may_not_cross_a_containers_hop_is_told_with_its_remedy(server: MetadataServer) -> None:
    """PUT's answer has a TTL of 1 by default, and a bridge takes that; other questions are answered."""
    server.fault = "hang put"
    with pytest.raises(SourceFailed, match="--http-put-response-hop-limit 2"):
        Ec2(MetadataService(server.endpoint), within_s=BUSY_S).look()


# Compute Engine


def test_a_preemption_is_heard_as_soon_as_it_is_said(server: MetadataServer) -> None:
    """The question waits for it; the look after the first one names the value that is known."""
    source = gcp(server, wait_s=60)
    heard: list[Notice] = []
    assert source.look() == []
    thread = threading.Thread(target=lambda: heard.extend(source.look()))
    thread.start()
    while not any("wait_for_change=true&last_etag=" in path for _, path in server.asked):
        time.sleep(0.01)
    server.gcp("preempted", "TRUE")
    thread.join(LONG_S)
    assert 0 < left_s(only(heard)) <= 30


def test_whoever_answers_without_googles_flavor_is_not_google(server: MetadataServer) -> None:
    answering_as_ec2 = Gcp(MetadataService(server.endpoint), within_s=LONG_S)
    server.fault = "503"
    with pytest.raises(SourceFailed, match="answers 503, not as Google's"):
        answering_as_ec2.look()


# Azure


def test_of_azures_events_only_those_count_that_name_this_machine(server: MetadataServer) -> None:
    """A scale set's document goes to all of its machines."""
    source = azure(server)
    server.event("Preempt", "trainer_1", "trainer_00")
    server.event("Freeze", server.vm)
    assert source.look() == []
    id = server.event("Preempt", "trainer_1", server.vm.upper())
    notice = only(source.look())
    assert (notice.id, notice.kind) == (id, Kind.LEAVE)
    assert 0 < left_s(notice) <= 31


@pytest.mark.parametrize("strange", [{"EventId": "7", "EventType": "Reboot"}, {"EventType": 7}, "Preempt", None])
def test_an_event_that_makes_no_sense_hides_no_other(server: MetadataServer, strange: object) -> None:
    """It may be about another machine of the set; and the list is read as often as before."""
    source = azure(server)
    server.list_event(strange)
    with pytest.raises(PartlyFailed) as alone:
        source.look()
    assert alone.value.heard == []
    id = server.event("Preempt", server.vm)
    with pytest.raises(PartlyFailed) as failed:
        source.look()
    assert only(failed.value.heard).id == id


@pytest.mark.parametrize(("kind", "says"), [("Terminate", Kind.LEAVE), ("Reboot", Kind.HINT), ("Redeploy", Kind.HINT)])
def test_what_azure_plans_is_a_notice_or_a_hint(server: MetadataServer, kind: str, says: Kind) -> None:
    server.event(kind, server.vm, in_s=600)
    assert only(azure(server).look()).kind is says


def test_azures_deadline_counts_by_azures_clock(server: MetadataServer) -> None:
    server.off_s = 40 * 86400.0
    server.event("Preempt", server.vm, in_s=30)
    assert 0 < left_s(only(azure(server).look())) <= 31


def test_an_event_is_acknowledged_only_where_that_is_asked_for(server: MetadataServer) -> None:
    id = server.event("Preempt", server.vm)
    azure(server).gone([id])
    assert server.acknowledged == []
    azure(server, acknowledge=True).gone([id])
    assert server.acknowledged == [id]


def test_the_first_answer_of_azures_events_may_take_two_minutes_and_is_no_failure(server: MetadataServer) -> None:
    """The question turns the service on."""
    now_s = 1000.0
    source = Azure(MetadataService(server.endpoint), within_s=BUSY_S, clock=lambda: now_s)
    source.look()
    waking = Azure(MetadataService(server.endpoint), within_s=SOON_S, clock=lambda: now_s)
    waking._name = server.vm
    server.fault = "hang"
    assert waking.look() == []
    now_s += 131
    with pytest.raises(SourceFailed):
        waking.look()
    now_s -= 131
    with pytest.raises(SourceFailed):
        source.look()  # it has answered before
