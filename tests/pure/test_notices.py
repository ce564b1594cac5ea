"""What is made of notices, whoever says them: rules, settings, files, Slurm's words, and `elastic.Preemption`."""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import elastic
from elastic.errors import ConfigError
from elastic.loop.leaving.departure import Departure
from elastic.loop.storage.save_duration import SaveDuration, likely_s, too_late, upload_order
from elastic.loop.storage.save_schedule import SoonSave
from elastic.loop.storage.saver import Saver
from elastic.membership import environment
from elastic.preemption.notice import Kind, Notice, by_clock_s, changes, parse_notice
from elastic.preemption.setting import sources
from elastic.preemption.sources.file import File
from elastic.preemption.sources.metadata import LINK_LOCAL, Cloud
from elastic.preemption.sources.slurm import left_s
from elastic_checkpoint import WriterDied

LONG_S = 60.0


def notice(id: str, kind: Kind = Kind.LEAVE, by_s: float | None = None) -> Notice:
    return Notice(source="test", id=id, kind=kind, why=f"why {id}", by_s=by_s)


# rules


def test_a_notice_is_news_once_and_once_more_when_it_is_withdrawn() -> None:
    a, b = notice("a"), notice("b")
    assert changes({}, [a, b, a]) == [a, b]
    assert changes({"a": a, "b": b}, [a, b]) == []
    (gone,) = changes({"a": a, "b": b}, [b])
    assert (gone.id, gone.withdrawn) == ("a", True)
    assert changes({}, [a]) == [a], "said again after it was withdrawn, it is news"


@pytest.mark.parametrize(
    ("at_t", "clock_t", "wall_t", "left"),
    [
        (1090.0, 1000.0, 0.0, 90.0),  # whatever our clock shows
        (1090.0, None, 1000.0, 90.0),
        (1090.0, None, 9e9, 0.0),  # ours is years ahead
        (1090.0, None, 0.0, 120.0),  # or behind
        (900.0, 1000.0, 1000.0, 0.0),
    ],
)
def test_a_deadline_is_a_difference_of_one_clock_and_bounded(
    at_t: float, clock_t: float | None, wall_t: float, left: float
) -> None:
    assert by_clock_s(at_t, clock_t=clock_t, wall_t=wall_t, now_s=50.0, at_most_s=120.0) == 50.0 + left


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("leave", (Kind.LEAVE, None, "")),
        ("leave 90", (Kind.LEAVE, 90.0, "")),
        ("leave 90s the pool is drained\nmore", (Kind.LEAVE, 90.0, "the pool is drained")),
        ("  hint price went up ", (Kind.HINT, None, "price went up")),
        ("leave 3 nodes", (Kind.LEAVE, 3.0, "nodes")),
        ("leave 2nd time", (Kind.LEAVE, None, "2nd time")),
        ("leaves are falling", None),
        ("leave \x1b[31mred", (Kind.LEAVE, None, "�[31mred")),
        ("", None),
        ("<html>", None),
        ("leave " + "9" * 400, None),
    ],
)
def test_what_a_line_says(text: str, said: object) -> None:
    assert parse_notice(text) == said


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("3:00\nUNLIMITED\n 2:00", 120),
        ("0:30", 30),
        ("59:58", 3598),
        ("1:00:00", 3600),
        ("1-02:03:04", 93784),
        ("UNLIMITED", None),
        ("NOT_SET", None),
    ],
)
def test_how_long_squeue_says_that_a_job_has_left(said: str, seconds: float | None) -> None:
    assert left_s(f"{said}\n") == seconds


@pytest.mark.parametrize("said", ["INVALID", "2:00\nINVALID", "", "slurm_load_jobs error", "-5"])
def test_what_squeue_says_beside_that_is_no_time(said: str) -> None:
    with pytest.raises(ValueError, match="squeue says"):
        left_s(said)


@pytest.mark.parametrize(("by_s", "attempts"), [(None, 5), (1010.0, 4), (1000.5, 1), (900.0, 1)])
def test_the_save_on_leaving_is_tried_again_only_while_the_node_is_there(by_s: float | None, attempts: int) -> None:
    """For 20 s; at 0, 1, 3, 7 and 15 s."""
    now_s, tried = 1000.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def save() -> None:
        nonlocal tried
        tried += 1
        raise WriterDied("full")

    said: list[str] = []
    saver: Any = SimpleNamespace(_clock=lambda: now_s, _sleep=sleep, _console=SimpleNamespace(say=said.append))
    with pytest.raises(WriterDied):
        Saver.patiently(saver, "the save on leaving", save, by_s=by_s)
    assert (tried, len(said)) == (attempts, attempts - 1)


@pytest.mark.parametrize(
    ("likely_s", "left_s", "told"),
    [(45.0, 20.0, True), (5.0, 20.0, False), (45.0, None, False), (None, 20.0, False)],
)
def test_a_save_that_may_come_too_late_is_said_before_it_begins_and_once(
    likely_s: float | None, left_s: float | None, told: bool
) -> None:
    said: list[str] = []
    by_s = None if left_s is None else time.monotonic() + left_s
    context, state = SimpleNamespace(console=SimpleNamespace(warn=said.append)), SimpleNamespace(step=120)
    departure: Any = SimpleNamespace(by_s=by_s, _context=context, _state=state, _said_late=False)
    saver: Any = SimpleNamespace(likely_s=lambda step, left_s: likely_s, newest="step 100")
    for _ in range(2):
        Departure._look_at_time(departure, saver)
    words = ("by the last one it takes 45 s", "step 100 stays")
    assert [[one in line for one in words] for line in said] == [[True, True]] * told


@pytest.mark.parametrize(
    ("took_s", "under_way_s", "likely"),
    [
        (20.0, [], 20.0),
        (20.0, [5.0], 35.0),  # what is being written comes first
        (20.0, [5.0, 1.0], 35.0),  # and what waits behind it gives way
        (20.0, [60.0], 20.0),
        (None, [], None),
        (None, [40.0], 40.0),  # it takes longer than that
    ],
)
def test_how_long_a_save_will_take(took_s: float | None, under_way_s: list[float], likely: float | None) -> None:
    assert likely_s(took_s, under_way_s) == likely


@pytest.mark.parametrize(
    ("older_s", "newest_s", "left_s", "newest_first", "why"),
    [
        (10.0, 20.0, 30.0, False, "both are likely to be done"),
        (10.0, 20.0, 29.0, True, "only one is likely to be done"),
        (1.0, 20.0, 20.5, False, "the newest is not likely to be done"),  # another process takes a while, too
        (1.0, 60.0, 30.0, False, "the newest is not likely to be done"),
        (40.0, 20.0, 30.0, True, "only one is likely to be done"),
        (40.0, 60.0, 30.0, False, "neither is likely to be done"),
        (40.0, 60.0, -1.0, False, "neither is likely to be done"),
        (None, 20.0, 30.0, False, "not known yet"),
        (10.0, None, 30.0, False, "not known yet"),
    ],
)
def test_what_is_being_uploaded_gives_way_where_only_the_newest_is_done_in_time(
    older_s: float | None, newest_s: float | None, left_s: float, newest_first: bool, why: str
) -> None:
    order = upload_order(older_s, newest_s, left_s)
    assert order.newest_first == newest_first
    assert why in order.why
    assert order.both == (why.startswith(("both", "not known")))


def test_a_save_that_goes_too_slowly_for_its_deadline_is_said() -> None:
    assert too_late(None, 3.0, "step 100") is None
    assert too_late(2.0, 3.0, "step 100") is None
    said = too_late(30.0, 3.0, "step 100")
    assert said is not None
    assert "as it goes it takes 30 s more, and this node is there for 3.0 s" in said
    assert "step 100 stays the newest" in said
    assert "is there for 0 s" in str(too_late(30.0, -1.0, "step 100"))


def test_how_long_a_save_takes_travels_with_what_is_saved() -> None:
    """A coordinator that takes over knew of 0 s, and never said that its save would come too late."""
    first, second, busy = SaveDuration(), SaveDuration(), SaveDuration()
    assert first.meta() == {}
    first.measured(45.0)
    read = threading.Event()

    def newest() -> dict[str, float]:
        read.set()
        return first.meta()

    second.look_up(newest)
    second.look_up(dict)
    assert read.wait(LONG_S)
    until_s = time.monotonic() + LONG_S
    while second.seconds is None and time.monotonic() < until_s:
        time.sleep(0.01)
    busy.measured(3.0)
    busy.learn(first.meta())
    assert (second.seconds, busy.seconds) == (45.0, 3.0)


def test_a_save_that_was_wanted_soon_is_begun_again_until_one_is_committed() -> None:
    """A hint whose save fails was taken for served: the machine went, with what came since the save before."""
    soon = SoonSave()
    assert soon.failed(0.0), "nobody had asked for it"
    assert not soon.is_due(1000.0)
    soon.asked(step=7)
    again, counted = [], []
    for now_s in (0.0, 10.0, 20.0):
        soon.begun()
        assert not soon.is_due(1000.0), "it is under way"
        counted.append(soon.failed(now_s))
        again.append(next(wait for wait in range(60) if soon.is_due(now_s + wait)))
    assert (again, counted) == ([1, 2, 4], [True, False, False]), "the limit of failures is not come to sooner"
    soon.committed(6)
    assert soon.is_due(30.0), "what is committed is older than what was to be saved"
    soon.committed(9)
    assert not soon.is_due(1000.0)


# where this runs


def firmware(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


AZURE = "7783-7084-3265-9085-8269-3286-77"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"class__dmi__id__sys_vendor": "Amazon EC2"}, ["ec2"]),
        ({"class__dmi__id__sys_vendor": "Xen", "class__dmi__id__bios_version": "4.11.amazon"}, ["ec2"]),
        ({"hypervisor__uuid": "ec2f1a2b-0000"}, ["ec2"]),
        ({"class__dmi__id__sys_vendor": "Google", "class__dmi__id__product_name": "Google Compute Engine"}, ["gcp"]),
        (
            {"class__dmi__id__sys_vendor": "Microsoft Corporation", "class__dmi__id__chassis_asset_tag": AZURE},
            ["azure"],
        ),
        ({"class__dmi__id__sys_vendor": "Microsoft Corporation"}, []),  # Hyper-V at home
        ({"class__dmi__id__sys_vendor": "QEMU"}, []),
        ({}, []),
    ],
)
def test_the_firmware_says_whose_machine_this_is(tmp_path: Path, files: dict[str, str], found: list[str]) -> None:
    assert names("auto", {}, firmware(tmp_path, **files)) == found


def names(setting: str, environ: dict[str, str] | None = None, sys: Path = Path("/nowhere")) -> list[str]:
    return [source.name for source in sources(setting, environ or {}, sys=sys)]


def test_auto_is_what_the_machine_has_and_what_is_named_beside_it(tmp_path: Path) -> None:
    google = firmware(tmp_path, class__dmi__id__sys_vendor="Google")
    assert names("auto", {}) == []
    assert names("auto", {"SLURM_JOB_ID": "7"}, google) == ["gcp", "slurm"]
    assert names("auto,file:/run/leave", {}, google) == ["file", "gcp"]
    assert names("gcp:http://127.0.0.1:1,auto", {}, google) == ["gcp"]
    assert names("none", {"SLURM_JOB_ID": "7"}, google) == []
    assert names("") == []


@pytest.mark.parametrize(
    "setting",
    [
        *("aws", "none,ec2", "ec2,,gcp", "file:", "command:", "slurm:soon", "slurm:-1", "slurm:nan"),
        *("ec2:169.254.169.254", "ec2:https://169.254.169.254", "gcp:http://a:b", "azure:ack"),
    ],
)
def test_a_setting_that_means_nothing_is_refused_by_its_name(setting: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"notices={setting!r}: ")):
        names(setting)


def test_addresses_are_those_of_the_clouds_own_variables_or_the_settings() -> None:
    def endpoint(setting: str, **environ: str) -> str:
        (source,) = sources(setting, environ)
        assert isinstance(source, Cloud)
        return source.service.endpoint

    assert endpoint("ec2") == endpoint("azure:acknowledge") == LINK_LOCAL
    assert endpoint("ec2", AWS_EC2_METADATA_SERVICE_ENDPOINT="http://127.0.0.1:1338/") == "http://127.0.0.1:1338"
    assert endpoint("gcp", GCE_METADATA_HOST="metadata:80") == "http://metadata:80"
    assert endpoint("azure:http://127.0.0.1:5+acknowledge") == "http://127.0.0.1:5"


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"ELASTIC_GRACE_S": "120"}, 120.0),
        ({"TORCHELASTIC_RUN_ID": "x"}, 30.0),
        ({"TORCHELASTIC_RUN_ID": "x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90"}, 90.0),
        ({"TORCHELASTIC_RUN_ID": "x", "ELASTIC_GRACE_S": "15"}, 15.0),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90"}, None),  # nobody here kills after it
    ],
)
def test_how_long_a_signal_gives_is_the_launchers_word_or_the_users(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert environment.grace_s(environ, b"torchrun\0train.py\0") == seconds


@pytest.mark.parametrize("said", ["soon", "-1", "inf"])
def test_a_grace_period_that_is_none_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="ELASTIC_GRACE_S"):
        environment.grace_s({"ELASTIC_GRACE_S": said})


# files


def test_a_file_is_a_notice_while_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "leave"
    source = File(str(path), clock=lambda: 100.0)
    assert source.look() == []
    path.touch()
    (empty,) = source.look()
    assert (empty.kind, empty.by_s) == (Kind.LEAVE, None)
    assert source.look()[0].id == empty.id
    path.write_text("leave 90 drained")
    assert source.look()[0].by_s == 190.0
    assert source.look()[0].why == f"{path} says leave: drained"
    path.write_text("hint")
    assert source.look()[0].kind is Kind.HINT
    path.write_text("spot node reclaimed")
    assert source.look()[0].why == f"{path} says leave: spot node reclaimed"
    path.write_bytes(b"\xff" * 10_000_000)
    assert len(source.look()[0].why) < 300
    path.unlink()
    assert source.look() == []


def test_seconds_that_a_daemon_counts_down_in_its_file_are_one_notice(tmp_path: Path) -> None:
    """Else there is a hook, and a line, every half second."""
    path = tmp_path / "leave"
    source = File(str(path), clock=lambda: 100.0)
    ids = set()
    for left in (90, 89, 88):
        path.write_text(f"leave {left} the pool is drained\n")
        ids.add(source.look()[0].id)
    assert len(ids) == 1
    path.write_text("hint the pool is drained")
    assert source.look()[0].id not in ids


# a loop of one's own


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"notices": "aws"}, "'aws' is no source of notices"),
        ({"timeout_s": 0}, "expected a number of seconds above 0"),
        ({"timeout_s": True}, "expected a number of seconds above 0"),
    ],
)
def test_what_a_preemption_cannot_be_made_of_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        elastic.Preemption(**arguments)


def test_a_preemption_is_entered_once_and_knows_nothing_without_a_notice() -> None:
    with elastic.Preemption(notices="none") as preemption:
        found = preemption.leaving, preemption.agreed(), preemption.deadline_s, preemption.who, preemption.reason
        assert found == (False, False, None, None, None)
    with pytest.raises(ConfigError, match="entered before"), preemption:
        pass


def test_a_preemption_ends_no_process_that_nobody_takes(tmp_path: Path) -> None:
    left = tmp_path / "left"
    with elastic.Preemption(notices="none", note=left) as stays, pytest.raises(ConfigError, match="no rank was told"):
        stays.exit()
    assert not left.exists()


def test_one_process_alone_hears_a_file_and_who_leaves_by_when(tmp_path: Path) -> None:
    (tmp_path / "leave").write_text("leave 90 the price went up")
    with elastic.Preemption(notices=f"file:{tmp_path / 'leave'}") as preemption:
        until_s = time.monotonic() + LONG_S
        while not preemption.agreed():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert preemption.leaving
        assert preemption.deadline_s is not None
        assert 0 < preemption.deadline_s <= 90
        assert preemption.who == os.uname().nodename


@pytest.mark.parametrize("flag", ["--shutdown-timeout=45", "--shutdown_timeout\0" + "45"])
def test_torchruns_flag_goes_before_its_variable(flag: str) -> None:
    environ = {"TORCHELASTIC_RUN_ID": "x", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "90"}
    command = f"python\0torchrun\0{flag}\0train.py\0".encode()
    assert environment.grace_s(environ, command) == 45.0
