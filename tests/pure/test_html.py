"""The page is what people are shown and pass on: it must say what the report says, at any length, and ask nobody."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from elastic.__main__ import main
from elastic.events.compaction import Compaction, forget
from elastic.events.event import Event
from elastic.events.log import EventLog
from elastic.events.words import percent, seconds
from elastic.report import sentences
from elastic.report.page import page
from elastic.report.report import report
from tests.kit.html import Parsed, figures_of
from tests.kit.story import Story


def eventful() -> list[Event]:
    story = Story().launch(4).train(2).read().regroup([0, 1, 2]).train(3).regroup([0, 1, 2], newcomers=1).train(8)
    events = [*story.launch(2).train(10).finish().events]
    for event in events:
        if event["event"] == "step_applied" and event["rank"] == 0:
            event["values"] = {"loss": 24.0 / (event["step"] + 1), "<b>": "nan" if event["step"] > 5 else 1.0}
    lost = {"t": events[30]["t"], "worker": "w0", "event": "fault_detected", "lost": "w3", "cause": "<script>alert(1)"}
    return [*events, {**lost, "died_t": events[30]["t"], "step": 2, "generation": 1, "claim": 1}]


def test_the_page_is_whole_and_asks_nobody_for_anything() -> None:
    """It is opened from a disk, behind a firewall, years later; and what a run says is text, not markup."""
    text = page("s3://bucket/runs/<i>", eventful())
    parsed = Parsed(text)

    assert parsed.open == []
    assert not [tag for tag, _ in parsed.seen if tag in ("img", "iframe", "object", "b", "i>")]
    asked = [a[name] for _, a in parsed.seen for name in ("src", "href", "srcset", "action") if name in a]
    assert asked == ["data:,"]
    assert not [name for _, a in parsed.seen for name in a if name.startswith("on")]
    for script in parsed.scripts:
        text = text.replace(script, "")
    assert not re.search(r"url\(|@import|https?://", text)


def test_a_browser_runs_the_page_s_own_scripts_alone() -> None:
    """Whatever gets into a page by a mistake of ours, it is not run, and reaches nobody."""
    text = page("run", eventful())
    (policy,) = [a["content"] for tag, a in Parsed(text).seen if tag == "meta" and a.get("http-equiv")]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["form-action"] == "'none'"
    kinds = [a.get("type") for tag, a in Parsed(text).seen if tag == "script"]
    own = [script for kind, script in zip(kinds, Parsed(text).scripts, strict=True) if kind is None]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in own]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert len(own) == 2


def test_what_a_run_says_is_no_tag_in_a_figure() -> None:
    """plotly reads some, links among them, in all that it shows."""
    events = [
        {**event, "worker": f"<a href='https://x'>{event['worker']}"} for event in Story().launch(2).train(2).events
    ]
    for event in events:
        event.update(
            {"workers": [f"<a href='https://x'>{one}" for one in event["workers"]]} if "workers" in event else {}
        )
    text = page("run", [*events, {**events[-1], "event": "error", "error": "</script><script>alert(1)</script>"}])
    drawn = json.dumps(figures_of(text))
    assert "&lt;a href=" in drawn
    assert "<a" not in drawn
    assert "<script>alert" not in text


def test_the_page_says_what_the_report_says() -> None:
    events = eventful()
    found, said = report(events), " ".join(Parsed(page("run", events)).words)
    assert f"{found.steps:,}" in said
    assert percent(found.ledger.goodput) in said
    assert found.weights_sha256 is not None
    assert found.weights_sha256 in said
    for part, spent in found.ledger.parts.items():
        assert (seconds(spent) in said) or not spent, part
    assert "4 → 3 → 4 → 2" in said
    assert "not finite from step 6 on" in said


@pytest.mark.parametrize(
    ("wrong", "last", "said"),
    [
        ({3}, "2 at the end", "not finite in 1 of 900 steps, the first of which is 3"),
        ({898, 899}, "not finite at the end", "not finite from step 898 on"),
        (set(), "2 at the end", ""),
    ],
)
def test_a_curve_says_how_it_really_ended(wrong: set[int], last: str, said: str) -> None:
    """However many steps a point of the drawing stands for."""
    applied = {"worker": "w0", "event": "step_applied", "epoch": 0, "count": 1}
    events = [
        {**applied, "t": float(step), "step": step, "values": {"loss": "nan" if step in wrong else 1.0 + (step == 899)}}
        for step in range(900)
    ]
    text = " ".join(Parsed(page("run", events)).words)
    assert f"loss: {last}" in text
    assert ("not finite " in text.replace("not finite at the end", "")) == bool(said)
    assert said in text


def test_everything_drawn_is_said_to_those_who_cannot_see_it() -> None:
    text = page("run", eventful())
    said = [a["aria-label"] for _, a in Parsed(text).seen if a.get("role") == "img"]
    assert len(said) == len(figures_of(text)) == 3
    assert all(said)


def long_run(workers: int, steps: int, view: int) -> list[Event]:
    """So many steps of so many workers, of which one is lost every `view` steps; old records are folded."""
    names = [f"host-{rank}-0" for rank in range(workers)]
    streams: dict[str, Compaction] = {}
    events: list[Event] = []
    gone = ""

    def tell(name: str, event: str, t: float, **facts: Any) -> None:
        record = {"t": t, "worker": name, "event": event, "claim": 1, "generation": generation, **facts}
        streams.setdefault(name, Compaction()).add(record)

    for generation in range(1, steps // view + 1):
        begin = float(generation * view)
        for rank, name in enumerate(names):
            if name not in streams:
                tell(name, "run_started", begin - 3.0, age_s=2.0)
            tell(name, "view_formed", begin - 0.5, workers=list(names), shares=[rank, rank + 1], rank=rank)
            if rank == 0 and generation > 1:
                facts = {"lost": gone, "cause": "SIGKILL", "died_t": begin - 0.8, "step": 1}
                tell(name, "fault_detected", begin - 0.5, **facts)
            tell(name, "loaded", begin - 0.4, step=0, epoch=0, from_claim=None, accepted=[], rank=rank)
            for step in range((generation - 1) * view, generation * view):
                values = {"values": {"loss": 1.0 / (step + 1)}} if rank == 0 else {}
                facts = {"step": step, "attempt": 0, "count": 8, "wait_s": 0.1, "rank": rank, **values}
                tell(name, "step_applied", begin + step - (generation - 1) * view, **facts)
            tell(name, "peer_lost", begin + view - 0.7, step=0, phase="x", error="e", missing=[], rank=rank)
        gone = names[generation % workers]
        names[generation % workers] = f"host-{generation % workers}-{generation}"
    for compaction in streams.values():
        events += compaction.items
    return sorted(events, key=lambda event: float(event["t"]))


@pytest.mark.parametrize(("workers", "steps", "view"), [(64, 4000, 1000), (8, 8000, 20), (200, 400, 100)])
def test_the_page_of_a_long_run_has_a_sane_size(workers: int, steps: int, view: int) -> None:
    """Many workers, many losses, many places: each alone must not make a page that no phone opens."""
    events = long_run(workers, steps, view)
    text = page("run", events)
    assert len(text) - sum(map(len, Parsed(text).scripts[-2:])) < 500_000
    assert Parsed(text).open == []


def test_no_loss_is_hidden_among_a_long_runs_joins_and_each_is_counted_by_its_cause_and_host() -> None:
    story = Story().launch(3).train(1)
    for at in range(2, 142, 2):
        story = story.regroup([0, 1]).train(at).regroup([0, 1], newcomers=1).train(at + 1)
    found = report(story.launch(2).events)
    text = page("long", story.events, found)
    assert text.count('<tr class="loss">') == found.peers_lost == 70
    assert "1 change: workers joined, or left in order" in text
    assert sum(times for _, _, times in sentences.losses_by_cause_and_host(found.view_changes)) == 70


def test_a_report_of_folded_records_has_the_totals_of_the_whole_and_says_what_it_no_longer_knows() -> None:
    events = long_run(4, 400, 100)
    found = report(events)
    assert (found.folded_steps, found.counted, found.saves, found.forgotten) == (1600, 3200, 0, False)
    assert (found.steps, found.redone) == (400, 0)
    assert found.ledger.goodput > 0.95
    assert "kept as sums only" in " ".join(Parsed(page("run", events)).words)

    own = [event for event in events if event["worker"] == "host-0-0"]
    others = [event for event in events if event["worker"] != "host-0-0"]
    assert report(sorted([*forget(own, 6), *others], key=lambda event: float(event["t"]))).forgotten


def test_text_has_contrast_in_both_themes() -> None:
    """WCAG AA: 4.5 to 1."""
    themes = page("run", eventful()).partition("</style>")[0].split("prefers-color-scheme: dark", 1)
    for theme in themes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})\b", theme))
        for ink in ("text", "soft", "good", "bad", "warn"):
            for ground in ("bg", "panel"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def contrast(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_the_command_writes_the_page_and_prints_stable_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for event in eventful():
        log = EventLog(tmp_path / "run", worker_id=event["worker"], clock=itertools.repeat(event["t"]).__next__)
        log.emit_named(**{name: fact for name, fact in event.items() if name not in ("t", "worker")})
        log.close()
    out = tmp_path / "page.html"

    assert main(["report", str(tmp_path / "run"), "--html", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert str(tmp_path) not in out.read_text()
    assert facts.keys() >= {"schema", "state", "steps", "redone", "goodput", "ledger", "workers", "failures"}
    assert facts["view_changes"] == facts["turns"], "as the key was called"
    assert facts["schema"] == 1
    assert sum(facts["ledger"].values()) == pytest.approx(facts["worker_seconds"])
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "Where the workers' time went" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run"), "--html", str(tmp_path)]) == 2
    assert "not written" in capsys.readouterr().err
