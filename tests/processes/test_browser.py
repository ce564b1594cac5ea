"""Pages in a real browser: all of their figures are drawn, as plotly knows them, and nothing of a run's is run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from elastic.__main__ import main
from elastic.pages import Figure, render
from elastic.report.page import page
from tests.kit.html import Parsed, figures_of
from tests.kit.story import Story

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.nightly(sample=1, of="pages in a browser"),
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium"),
]
CHECK = """
for (const place of document.querySelectorAll(".plot")) {
  const {template, ...layout} = place.layout;
  const wrong = Plotly.validate(place.data, layout) || [];
  place.id = "checked " + (place.querySelector(".main-svg") ? "drawn" : "missing") + JSON.stringify(wrong);
}
"""


def shown(text: str, folder: Path) -> tuple[str, str]:
    """Return a page as the browser has it once its scripts are done, and what it complained of."""
    file = folder / "page.html"
    file.write_text(text)
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [*command, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", file.as_uri()],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def pages(folder: Path) -> dict[str, str]:
    story = Story().launch(4).train(2).read().regroup([0, 1, 2]).train(3).regroup([0, 1, 2], newcomers=1).train(8)
    events = story.launch(2).train(10).finish().events
    for event in events:
        if event["event"] == "step_applied":
            event["values"] = {"loss": "nan" if event["step"] == 5 else 1.0}
    job = ["--parameters=1B", "--batch-time=16s", "--nodes=8", "--across=100Gbit/s:5us"]
    for command in ("plan", "simulate"):
        assert main([command, *job, f"--plot={folder / command}.html"]) == 0
    return {
        "report": page("run", events),
        **{command: (folder / f"{command}.html").read_text() for command in ("plan", "simulate")},
    }


def test_every_figure_is_drawn_as_plotly_knows_it(tmp_path: Path) -> None:
    for name, text in pages(tmp_path).items():
        checked = re.sub(r'content="default-src[^"]*"', 'content=""', text)
        at = checked.rindex("</body>")
        dom, said = shown(f"{checked[:at]}<script>{CHECK}</script>{checked[at:]}", tmp_path)
        assert said == "", name
        assert dom.count('id="checked drawn[]"') == len(figures_of(text)) > 0, re.findall('id="checked[^>]*', dom)


def test_nothing_that_a_run_says_is_run_and_the_page_s_own_is_allowed(tmp_path: Path) -> None:
    evil = "<img src=x onerror=document.title='evil'><script>document.title='evil'</script>"
    figure = Figure(title=evil, said=evil, height=200, traces=[{"x": [1], "y": [1], "name": evil, "hovertext": [evil]}])
    text = render("charts.html.j2", title="tame", figures=[figure])
    dom, said = shown(text, tmp_path)
    assert said == ""
    assert "<title>tame</title>" in dom
    assert 'class="main-svg"' in dom

    at = text.rindex("</body>")  # what is there by a mistake of ours
    dom, said = shown(f"{text[:at]}<script>document.title='evil'</script>{text[at:]}", tmp_path)
    assert "<title>tame</title>" in dom
    assert "Content Security Policy" in said


def test_words_are_there_without_the_scripts() -> None:
    said = " ".join(Parsed(page("run", Story().launch(2).train(4).finish().events)).words)
    assert "4 applied, none redone" in said
    assert "its tables say the same" in said
