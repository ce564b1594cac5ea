"""deploy/monitoring is read by Prometheus itself; and in a drill, each panel of the dashboard has something to show."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.hosts.network import DIES_WITH_US, end
from tests.kit.deploy_tools import DEPLOY, Said, lacks
from tests.kit.launch import Launch
from tests.kit.scraped import TRAINS, free_port, get, here, scrape

FILES = DEPLOY / "monitoring"
WITHIN_S = 240.0
INSTALL = "apt-get install -y --no-install-recommends prometheus"


def promtool(*arguments: str | Path, text: str | None = None) -> Said:
    if (found := shutil.which("promtool")) is None:
        lacks(f"no promtool: {INSTALL}")
        raise AssertionError
    command = [found, *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=WITHIN_S, check=False)


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FILES / "dashboard.json").read_text())["panels"]
    return found


def queries() -> list[tuple[str, str]]:
    """The title of each panel with each of its queries, as Grafana would send it of a run called digits."""
    instead = {"$run": "digits", "$__rate_interval": "30s", "$__range": "10m"}
    return [
        (panel["title"], re.sub(r"\$\w+", lambda found: instead[found[0]], target["expr"]))
        for panel in panels()
        for target in panel["targets"]
    ]


def test_prometheus_takes_the_configuration_and_the_rules_hold_what_they_promise() -> None:
    for checked, file in (("check config", "prometheus.yml"), ("test rules", "rules_test.yml")):
        said = promtool(*checked.split(), FILES / file)
        assert said.returncode == 0, said.stdout + said.stderr


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    alerts = re.findall(r"- alert: (\w+)", (FILES / "rules.yml").read_text())
    tested = (FILES / "rules_test.yml").read_text()
    assert len(alerts) == 7
    for alert in alerts:
        assert re.search(rf"alertname: {alert} }}", tested)
        assert re.search(rf"alertname: {alert}\n +exp_alerts:\n +- exp_labels:", tested)


def test_the_ways_to_find_machines_are_configurations(tmp_path: Path) -> None:
    """As the README has them, in place of the file. Debian's Prometheus is built without that of Kubernetes: of it
    the relabelling is read."""
    blocks = re.findall(r"```yaml\n(.*?)```", (FILES / "README.md").read_text(), re.S)
    assert len(blocks) == 2
    shutil.copytree(FILES, tmp_path / "it")
    config = tmp_path / "it/prometheus.yml"
    before, files, after = config.read_text().partition("    file_sd_configs")
    for block in blocks:
        of_files = block.replace("    kubernetes_sd_configs:\n      - role: pod\n", files + after)
        config.write_text(before + of_files)
        said = promtool("check", "config", config)
        assert said.returncode == 0, said.stderr


def test_each_figure_that_the_files_name_is_served_and_each_that_is_served_is_on_the_page() -> None:
    from elastic.launch.node.metrics import NodeMetrics

    metrics = NodeMetrics(port := free_port())
    try:
        metrics.noticed("leave", "SIGTERM")
        text = get(port, "/metrics")[1]
        served = set(re.findall(r"^(elastic_\w+)", text, re.M))
    finally:
        metrics.close()
    said = promtool("check", "metrics", text=text)
    assert (said.returncode, said.stderr) == (0, "")
    named = "".join((FILES / name).read_text() for name in ("rules.yml", "rules_test.yml", "dashboard.json"))
    assert set(re.findall(r"\b(elastic_\w+)", named)) <= served
    page = (DEPLOY.parent / "docs/how-to/watch-a-run.md").read_text()
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in served} - {"elastic_build_info"}
    assert {name for name in families if f"`{name}`" not in page and f"`{name}{{" not in page} == set()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[Sequence[int]], Callable[[str], list[Any]]]]:
    """prometheus(ports): one that scrapes them each second by the files here; asks(query) is what it answers."""
    if (program := shutil.which("prometheus")) is None:
        lacks(f"no prometheus: {INSTALL}")
        raise AssertionError
    with ExitStack() as running:

        def start(ports: Sequence[int]) -> Callable[[str], list[Any]]:
            shutil.copytree(FILES, tmp_path / "monitoring")
            config, targets = tmp_path / "monitoring/prometheus.yml", tmp_path / "monitoring/targets.yml"
            config.write_text(config.read_text().replace("15s", "1s"))
            named = ", ".join(f'"localhost:{one}"' for one in ports)
            targets.write_text(targets.read_text().replace('"localhost:9464"', named))
            own = free_port()
            data, log = tmp_path / "data", tmp_path / "prometheus.log"
            flags = [f"--config.file={config}", f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{own}"]
            with log.open("wb") as said:
                process = subprocess.Popen([*DIES_WITH_US, program, *flags], stdout=said, stderr=said)
            running.callback(end, process)

            def asks(query: str) -> list[Any]:
                url = f"http://127.0.0.1:{own}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
                try:
                    with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
                        result: list[Any] = json.load(answer)["data"]["result"]
                except OSError:
                    assert process.poll() is None, log.read_text()
                    return []
                return result

            return asks

        yield start


@pytest.mark.nightly
def test_in_a_drill_each_panel_has_something_to_show(
    prometheus: Callable[[Sequence[int]], Callable[[str], list[Any]]], tmp_path: Path
) -> None:
    """Two agents, of one run: a worker is killed, a cloud gives a hint, saves are made. And the rules are evaluated."""
    ports = [free_port(), free_port()]
    hint, enough, run = tmp_path / "hint", tmp_path / "enough", tmp_path / "run"
    (script := tmp_path / "train.py").write_text(TRAINS)
    meets = ["--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={run}"]
    with ExitStack() as running:
        nodes = [
            running.enter_context(
                Launch(
                    "elastic",
                    ["run", *meets, f"--notices=file:{hint}", f"--metrics-port={port}", script, run, enough],
                )
            )
            for port in ports
        ]
        asks = prometheus(ports)
        for node, port in zip(nodes, ports, strict=True):
            node.wait_for(partial(_is_ready, port), "a node that trains", within_s=WITHIN_S)
        nodes[0].wait_for(lambda: scrape(ports[0])["elastic_world_size"] == 2, "both in a view", within_s=WITHIN_S)
        nodes[0].wait_for(lambda: bool(asks('elastic_world_size{run="digits"} == 2')), "a scrape", within_s=WITHIN_S)
        hint.write_text("hint the price goes up")
        os.kill(here(nodes[1])[-1][1], signal.SIGKILL)

        until_s, lacking = time.monotonic() + WITHIN_S, queries()
        while lacking and time.monotonic() < until_s:
            lacking = [(title, query) for title, query in lacking if not _has_values(asks(query))]
            time.sleep(0.5)
        assert not lacking, [(title, query, asks(query)) for title, query in lacking]
        assert asks("elastic:world_size")[0]["metric"]["run"] == "digits"
        assert float(asks("max(elastic_recovery_seconds_count)")[0]["value"][1]) == 1
        assert float(asks("sum(elastic_workers_lost_total)")[0]["value"][1]) == 1
        assert {one["metric"]["kind"] for one in asks("elastic_notices_total")} == {"hint"}
        assert asks('ALERTS{alertstate="firing"}') == []
        enough.touch()
        for node in nodes:
            node.succeed(within_s=WITHIN_S)


def _is_ready(port: int) -> bool:
    return get(port, "/readyz")[0] == 200


def _has_values(result: Sequence[Any]) -> bool:
    return bool(result) and all(one["value"][1] not in ("NaN", "+Inf", "-Inf") for one in result)
