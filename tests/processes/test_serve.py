"""`elastic report RUN --serve`: the page of a run is as fresh as its events, while somebody looks."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from elastic.report.command import main
from elastic.report.serve import Answer, ReportServer
from tests.kit.launch import Launch
from tests.kit.scraped import get
from tests.kit.story import Story

WITHIN_S = 60.0


def write(folder: Path, story: Story) -> None:
    """Have the events of a story in a run's folder, as one worker's."""
    (folder / "events").mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(event) + "\n" for event in story.events)
    (folder / "events" / "all.jsonl").write_text(lines)


def serving(run: object, *flags: str) -> Launch:
    return Launch("elastic", ["report", run, "--serve", "--every=1", *flags])


def port_of(launch: Launch) -> int:
    launch.wait_for(lambda: "Ctrl-C ends it" in launch.output, "a page that is served", within_s=WITHIN_S)
    port = urlsplit(launch.output.splitlines()[0]).port
    assert port is not None
    return port


def steps_at(port: int) -> int:
    return int(json.loads(get(port, "/report.json")[1])["steps"])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run's folder, in which nothing but its events is there afterwards, too."""
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    assert [path.name for path in folder.rglob("*")] in ([], ["events", "all.jsonl"])


def test_the_page_follows_a_run_from_before_it_begins(run: Path) -> None:
    with serving(run, "--port=0") as launch:
        port = port_of(launch)
        status, said = get(port, "/")
        assert status == 503
        assert "no events in" in said

        story = Story().launch(workers=2).train(3)
        write(run, story)
        launch.wait_for(lambda: get(port, "/report.json")[0] == 200, "the run's facts", within_s=WITHIN_S)
        assert steps_at(port) == 3
        status, page = get(port, "/")
        assert status == 200
        assert "</html>" in page

        write(run, story.train(5))
        launch.wait_for(lambda: steps_at(port) == 5, "its next steps", within_s=WITHIN_S)
        assert get(port, "/elsewhere") == (404, "/, /report.json\n")

        # A browser asks again by itself; one that sends nothing, as some do ahead of time, holds nobody up.
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
            connection.request("GET", "/")
            assert connection.getresponse().getheader("Refresh") == "1"
            connection.close()
            launch.send(signal.SIGINT)
            assert launch.finish(within_s=WITHIN_S) == 0
        assert get(port, "/") == (0, "")
        assert launch.pids == []
        assert "Traceback" not in launch.output


def test_a_port_that_is_taken_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([str(run), "--serve", f"--port={port}"]) == 2
    said = capsys.readouterr().err
    assert f"--host=127.0.0.1 --port={port}" in said
    assert "something listens there already" in said
    assert "--port=0 takes one that is free" in said


@pytest.mark.parametrize(
    "given",
    [
        *(["--port=70000"], ["--port=x"], ["--json"], ["--html=page.html"], ["--host="], ["--host=a..b"]),
        *(["--every=nan"], ["--every=inf"], ["--every=0.2"], ["--every=-1"]),
    ],
)
def test_what_does_not_go_together_is_refused(given: list[str], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(run), "--serve", *given])
    assert ended.value.code == 2
    assert given[0].partition("=")[0] in capsys.readouterr().err


def test_a_host_that_is_not_here_is_no_matter_of_ports(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--serve", "--host=192.0.2.1", "--port=0"]) == 2
    assert "next   give an address of this machine" in capsys.readouterr().err


def test_a_page_that_cannot_be_made_is_said_once_and_the_facts_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    def page() -> str:
        raise KeyError("no such part, of s3://me:hidden@bucket/run")

    server = ReportServer(lambda: Answer(page, {"steps": 3}), host="127.0.0.1", port=0, every_s=1.0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        port = urlsplit(server.address).port
        assert port is not None
        for _ in range(2):
            assert get(port, "/") == (500, "KeyError: standard error has more\n")
            assert get(port, "/report.json") == (200, '{"steps": 3}')
    finally:
        server.shutdown()
        server.close()
        thread.join()
    said = capsys.readouterr().err
    assert said.count("KeyError: 'no such part") == said.count("Traceback") == 1
    assert "hidden" not in said


def test_a_page_elsewhere_whose_name_leads_here_is_shown_nothing(run: Path) -> None:
    write(run, Story().launch(workers=1).train(1))
    with serving(run, "--port=0") as launch:
        port = port_of(launch)
        for host, status in (("evil.example", 403), (f"localhost:{port}", 200), (f"[::1]:{port}", 200), ("[", 403)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
            connection.request("GET", "/report.json", headers={"Host": host})
            assert connection.getresponse().status == status, host
            connection.close()
