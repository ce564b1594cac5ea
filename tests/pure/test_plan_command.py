"""Plans are made before money is spent: what they say follows from what was given, and from named figures."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from elastic.__main__ import main
from elastic.errors import ConfigError
from elastic.plan import figures, scaling, trace
from elastic.plan.communication import Link
from elastic.plan.job import Job
from elastic.plan.policies import OURS, TORCHRUN, USES
from elastic.plan.simulation import PARTS

JOB = ["--parameters", "1B", "--gradients", "fp16", "--batch-time", "16s", "--nodes", "8", "--per-node", "8"]
JOB += ["--inside", "300GB/s:1us", "--across", "100Gbit/s:5us", "--adapters", "8"]


def job(**changes: Any) -> Job:
    given: dict[str, Any] = {
        "parameters": 1e9,
        "gradient_bytes": 2.0,
        "state_bytes": 12e9,
        "batch_s": 16.0,
        "nodes": 8,
        "per_node": 8,
        "virtual_workers": 64,
        "inside": Link(300e9, 1e-6),
        "across": Link(12.5e9, 5e-6),
        "adapters": 8,
        "overlap": 0.0,
    }
    return Job(**(given | changes))


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["plan", *JOB, "--json", *argv]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([*argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_a_plan_has_the_textbooks_all_reduces(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {size["workers"]: size for size in planned(capsys, "--virtual-workers", "64")["sizes"]}
    assert sizes[1]["communication_s"] == 0
    assert f"{1e3 * sizes[8]['communication_s']:.2f}" == "11.68"
    assert f"{1e3 * sizes[64]['communication_s']:.2f}" == "46.75"
    assert f"{100 * sizes[64]['efficiency']:.1f}" == "84.2"  # 250 ms of compute, as in the textbook's case
    assert sizes[63]["balance"] == 64 / (63 * 2)


def test_a_replica_of_k_holds_a_model_of_k_times_the_size_but_for_more_partial_sums(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One node of 8 may be all that is left: then 8 replicas of one share 64, or one of 8 has them all."""
    held = planned(capsys, "--virtual-workers", "64", "--memory", "44GB")["memory"]
    assert [one["replica_size"] for one in held] == [1, 2, 4, 8]
    assert [one["bytes_a_parameter"] for one in held] == [
        20 + 4 * 3,
        (20 + 4 * 4) / 2,
        (20 + 4 * 5) / 4,
        (20 + 4 * 6) / 8,
    ]
    assert held[3]["largest"] == 44e9 / 5.5
    assert held[3]["model_bytes"] == 5.5e9
    more = planned(capsys, "--virtual-workers", "64", "--nodes-min", "8")["memory"]
    assert [one["bytes_a_parameter"] for one in more] == [20, (20 + 4) / 2, (20 + 8) / 4, (20 + 12) / 8]
    assert more[0]["largest"] is None


def test_the_knee_is_where_a_worker_more_gains_less_than_it_costs() -> None:
    """With a network a hundred times slower, two nodes are slower than one: the knee is one node."""
    slow = scaling.sizes(job(across=Link(0.125e9, 5e-6), adapters=1))
    assert scaling.knee(slow).workers == 8
    fast = scaling.sizes(job(inside=Link(1e15, 0), across=Link(1e15, 0)))
    assert scaling.knee(fast).workers == 64
    assert [size.workers for size in scaling.table_rows(fast, 8)][-1] == 64
    assert len(scaling.table_rows(fast, 8)) <= 17


def test_shares_are_balanced_as_the_page_on_virtual_workers_says() -> None:
    assert [round(100 * scaling.balance(24, workers)) for workers in (1, 5, 7, 8, 11)] == [100, 96, 86, 100, 73]


def test_the_suggested_v_suits_the_sizes_that_the_fleet_visits() -> None:
    """Eight workers at times, and six at others: 24 shares are even on both."""
    found = scaling.candidates({8: 1000.0, 6: 1000.0, 5: 0.0, 0: 50.0}, 8)
    assert [one.virtual_workers for one in found] == sorted({one.virtual_workers for one in found})
    assert scaling.suggest(found, 8) == scaling.Candidate(24, 1.0, 1.0)


def test_a_plan_says_how_often_to_save_what_it_takes_and_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--spot-price", "3", "--price", "10", "--steps", "100k", "--trace", "aws-p3-2020"]
    found = planned(capsys, *prices)
    assert found["fleet"]["trace"] == "aws-p3-2020"
    assert found["save_every"]["reason"].startswith("every ")
    assert 0 < found["save_every"]["waste"] < 0.05
    assert 0.9 < found["goodput"] < 1
    assert math.fsum(found["seconds"].values()) == pytest.approx(found["fleet"]["seconds"])
    spot, calm = found["spot"], found["on_demand"]
    assert spot["cost"] == pytest.approx(3 * spot["node_hours"])
    assert calm["cost"] == pytest.approx(10 * calm["node_hours"])
    assert calm["node_hours"] == pytest.approx(8 * calm["seconds"] / 3600)
    assert spot["seconds"] > calm["seconds"]
    twice = planned(capsys, *prices, "--steps", "200k")
    assert twice["spot"]["seconds"] == pytest.approx(2 * spot["seconds"])


def test_what_changes_how_often_to_save_changes_what_the_run_takes_and_costs_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else a plan shows one interval, and counts with another."""
    prices = ["--spot-price", "3", "--trace", "aws-p3-2020"]
    free, often = planned(capsys, *prices), planned(capsys, *prices, "--at-risk", "1min")
    assert often["seconds"]["saving"] > free["seconds"]["saving"]
    assert often["spot"]["seconds"] != free["spot"]["seconds"]
    dear = planned(capsys, *prices, "--save-price", "1")
    assert dear["seconds"]["saving"] < free["seconds"]["saving"]
    assert dear["spot"]["cost"] > 3 * dear["spot"]["node_hours"]


def test_a_simulation_compares_the_policies_on_every_recorded_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", "--parameters", "124M", "--batch-time", "16s", "--nodes", "16", "--across", "25Gbit/s:20us"]
    assert main([*argv, "--price", "1.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [fleet["trace"] for fleet in found["fleets"]] == trace.recorded_names()
    assert set(found["figures"]) == set(USES)
    for fleet in found["fleets"]:
        outcomes = {one["policy"]: one for one in fleet["outcomes"]}
        assert outcomes[OURS]["goodput"] > outcomes["stalls"]["goodput"] > outcomes[TORCHRUN]["goodput"]
        assert outcomes[OURS]["price_of_1000_steps"] < outcomes[TORCHRUN]["price_of_1000_steps"]
        assert set(outcomes[OURS]["seconds"]) == set(PARTS)
    assert main([*argv, "--trace", "gcp-oobleck-2023"]) == 0
    said = capsys.readouterr().out
    assert "gcp-oobleck-2023" in said
    assert "aws" not in said


@pytest.mark.parametrize(
    ("given", "missing"), [("link_bytes_per_s", "link_latency_s"), ("link_latency_s", "link_bytes_per_s")]
)
def test_half_a_link_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, given: str, missing: str) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({given: {"value": 16.0, "source": "a stopwatch", "date": "2026-11-24"}}))
    assert f"{given} without {missing}; expected both" in refused(capsys, "plan", *JOB, "--figures", str(mine))


def test_figures_of_ones_own_take_the_place_of_the_packages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"batch_s": {"value": 16.0, "source": "a stopwatch", "date": "2026-11-24"}}))
    argv = [one for one in JOB if one not in ("--batch-time", "16s")]
    assert main(["plan", *argv, "--json", "--figures", str(mine)]) == 0
    assert json.loads(capsys.readouterr().out)["sizes"][0]["step_s"] == 16.0
    assert "missing: --batch-time" in refused(capsys, "plan", *argv)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "no JSON: .*; expected an object of figures, as `elastic plan --measure FILE` writes it"),
        ("[]", "JSON, but of type list; expected an object of figures"),
        ('{"lost_s": {"value": 1}}', r"unknown figure 'lost_s'; did you mean loss_s\?"),
        ('{"loss_s": 1}', "loss_s is 1; expected"),
        ('{"loss_s": {"value": "1"}}', "loss_s is .*; expected"),
        ('{"loss_s": {"value": -1}}', "loss_s is .*; expected"),
    ],
)
def test_what_is_no_figure_is_refused(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        figures.parse(text, "mine.json")


def test_every_figure_of_the_package_has_a_meaning_a_source_and_a_date() -> None:
    found = figures.defaults()
    assert set(USES) <= set(found) <= set(figures.MEANINGS)
    assert all(one.source and one.date.startswith("2026-") for one in found.values())


@pytest.mark.parametrize(
    ("argv", "match"),
    [
        (["--per-node", "8"], "missing: --parameters 124M.*; --batch-time 8s.*; --inside 300GB/s:1us; --across 100G"),
        (["--parameters", "1B"], "missing: --batch-time 8s.*; --across(.|\n)*--measure here.json"),
        (["--parameters", "1B", "--batch-time", "1s"], "missing: --across 100Gbit/s:5us\n"),
        ([*JOB, "--nodes", "0"], "--nodes 0"),
        ([*JOB, "--virtual-workers", "0"], "--virtual-workers 0; expected 1 or more"),
        ([*JOB, "--overlap", "2"], "--overlap 2; expected a share from 0 to 1"),
        ([*JOB, "--nodes-min", "9"], "--nodes-min 9 is above --nodes 8: .*; expected 1 to 8"),
        ([*JOB, "--trace", "nowhere"], "--trace nowhere: (.|\n)*aws-p3-2020"),
        ([*JOB, "--lifetime", "1h", "--trace", "aws-p3-2020"], "expected one of them"),
        ([*JOB, "--trace", "aws-p3-2020", "--trace", "aws-g4dn-2020"], "--trace names 2 fleets, and a plan is for one"),
        ([*JOB, "--figures", "nowhere.json"], "--figures nowhere.json: (.|\n)*next  give a file"),
        (["--measure", "x.json", "--model", "nothing"], "--model 'nothing'; expected MODULE:FUNCTION"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_advice(
    argv: list[str], match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(match, refused(capsys, "plan", *argv))


PAGE = Path(__file__).parents[2] / "docs/how-to/plan-a-fleet.md"


def test_the_page_shows_what_its_commands_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but those that measure this machine, and what rests on that."""
    monkeypatch.setenv("COLUMNS", "120")
    printed = ""
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if language == "bash":
            commands = [shlex.split(line) for line in text.replace("\\\n", "").splitlines()]
            for program, *argv in (command for command in commands if "here.json" not in command):
                assert (program, main(argv)) == ("elastic", 0)
            printed = capsys.readouterr().out
        else:
            missing = [line for line in text.splitlines() if line.strip() not in printed]
            assert not missing, f"{missing[0]}\n{printed}"


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        *((f"--{name}={text}", "a price") for name in ("price", "spot-price", "save-price") for text in ("nan", "-1")),
        ("--price=inf", "a price"),
        ("--price=1e400", "at most 1e+09"),
        ("--parameters=1e400", "at most 1e+18"),
        ("--parameters=0", "more than 0"),
        ("--state=0", "more than 0"),
        ("--state=1e300", "at most 1e+18"),
        ("--batch-time=0", "more than 0"),
        ("--batch-time=1e300s", "at most 365d"),
        ("--upload=0B/s", "nothing is ever saved at that"),
        ("--upload=1e400B/s", "at most 1e+18"),
        ("--across=0GB/s:1us", "a link of no bandwidth; expected 1B/s or more"),
        ("--lifetime=0", "more than 0"),
        ("--lifetime=1e300d", "at most 3650d"),
        ("--at-risk=0", "more than 0"),
        ("--parameters=\u0661\u0662M", "a number such as 124M"),
    ],
)
def test_a_quantity_that_nobody_has_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], argument: str, expected: str
) -> None:
    """They ended as overflows, took for ever, or as figures that mean nothing, such as a price of nan."""
    with pytest.raises(SystemExit, match="2"):
        main(["plan", *JOB, argument])
    said = capsys.readouterr()
    assert said.out == ""
    assert f"argument {argument.partition('=')[0]}" in said.err
    assert expected in said.err


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_more_workers_or_shares_than_a_plan_can_speak_of_are_refused(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """It took for ever."""
    said = refused(capsys, command, *JOB, "--nodes=1000000000000")
    assert "8,000,000,000,000 workers; expected at most 20,000" in said
    assert "expected at most 200,000" in refused(capsys, command, *JOB, "--virtual-workers=99999999")
    assert "--parameters 0.5; expected 1 or more" in refused(capsys, command, *JOB, "--parameters=0.5")


def test_what_cannot_be_run_or_drawn_is_refused_before_anything_is_planned(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "--steps 1.5; expected a whole number" in refused(capsys, "plan", *JOB, "--steps=1.5")
    for name in ("picture", "picture.png"):
        for command in ("plan", "simulate"):
            assert "ends in .html" in refused(capsys, command, *JOB, f"--plot={tmp_path / name}")
    with pytest.raises(SystemExit, match="2"):
        main(["simulate", *JOB, "--fixed=0"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["1e999", "NaN", "-1", "0", "true", '"1"'])
def test_a_measured_rate_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, value: str
) -> None:
    (tmp_path / "figures.json").write_text(f'{{"upload_bytes_per_s": {{"value": {value}}}}}')
    said = refused(capsys, "plan", *JOB, f"--figures={tmp_path / 'figures.json'}")
    assert "upload_bytes_per_s is" in said
    assert "a number from 1 to 1e+18" in said


def test_where_no_file_can_be_written_nothing_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It was known after minutes of measuring."""
    for file in (tmp_path, tmp_path / "nowhere" / "here.json"):
        assert "nothing was measured" in refused(capsys, "plan", f"--measure={file}")
    assert "expected 1 to 256" in refused(capsys, "plan", "--measure=here.json", "--workers=100000")
