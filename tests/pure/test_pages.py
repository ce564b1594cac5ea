"""The pages follow the code: what they link to is there, and what they list is all of it. `make docs` builds them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import elastic
import elastic.errors
import elastic_checkpoint
import elastic_checkpoint.errors
from elastic.events.declarations import COMMON, DECLARED
from elastic.membership.messages import messages
from elastic.report import command as report
from elastic_checkpoint.net.codec import Tagged

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])
LIVING = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "decisions"]
"""Those that say how it is, and not how it was on a day."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """The page without blocks of code and comments."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of its headings, as Python-Markdown and forges make them of plain words."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{name(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)} links to {link}"
        assert DOCS not in page.parents or DOCS in target.resolve().parents, f"{link} leads out of the site"


@pytest.mark.parametrize("page", LIVING, ids=name)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    """`elastic/loop/steps/step.py`, `tests/processes/test_loader*.py`, `checkpoint/elastic_checkpoint/runs/`"""
    for named in re.findall(r"`((?:elastic|checkpoint|tests|recipes|docs)/[\w/*.-]*)`", prose(page)):
        assert list(ROOT.glob(named.rstrip("/"))), f"{name(page)} names {named}"


def test_the_files_that_the_flows_name_are_there() -> None:
    """loop/steps/step: ARCHITECTURE.md follows a step and a loss from file to file, below `elastic/`."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    flows = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    named = re.findall(r"[a-z]\w*(?:/\w+)+", "".join(flows))
    assert len(flows) == 2
    assert len(named) > 20
    for path in named:
        assert any((ROOT / "elastic" / f"{path}{end}").exists() for end in ("", ".py")), f"a flow names {path}"


@pytest.mark.parametrize("page", LIVING, ids=name)
def test_the_functions_that_a_page_names_after_a_file_are_in_it(page: Path) -> None:
    """`elastic/loop/steps/step.py` (`Step.__iter__`, `Step`)"""
    for path, listed in re.findall(r"`([\w/]+\.py)` \((`[\w.]+`(?:, `[\w.]+`)*)\)", prose(page)):
        missing = set(re.findall(r"[\w.]+", listed)) - set(defined((ROOT / path).read_text()))
        assert not missing, f"{name(page)} names {missing} of {path}"


@pytest.mark.parametrize("page", [page for page in LIVING if page.parent.name == "internals"], ids=name)
def test_the_methods_and_attributes_that_a_page_on_internals_names_are_there(page: Path) -> None:
    """`Step.__iter__`, `CurrentStep.taken`, without a file beside it; of other classes than ours it is torch's."""
    for cls, member in re.findall(r"`([A-Z]\w*[a-z]\w*)\.(\w+)(?:\([^`]*)?`", prose(page)):
        assert cls in THEIR_CLASSES or member in our_members(cls), f"{cls}.{member}"


def test_no_class_of_ours_is_taken_for_one_of_others() -> None:
    assert not [cls for cls in THEIR_CLASSES if our_members(cls)]


THEIR_CLASSES = {"CacheArtifactManager", "Module", "Tensor", "Parameter", "Store", "PartialState", "Trainer"}


def our_members(cls: str) -> set[str]:
    return members_of_classes().get(cls, set())


@cache
def members_of_classes() -> dict[str, set[str]]:
    """Of each class of elastic and checkpoint: what its body defines, and what its methods set on self."""
    found: dict[str, set[str]] = {}
    for path in [*(ROOT / "elastic").rglob("*.py"), *(ROOT / "checkpoint").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(members(node))
    return found


def members(cls: ast.ClassDef) -> Iterator[str]:
    for one in cls.body:
        if isinstance(one, ast.FunctionDef):
            yield one.name
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id
        elif isinstance(one, ast.Assign):
            yield from (target.id for target in one.targets if isinstance(target, ast.Name))
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def defined(source: str) -> Iterator[str]:
    """Functions, classes, and their methods after their names."""
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_a_line_holds_one_sentence(page: Path) -> None:
    """So that a diff shows what changed, in a list, too. A row of a table may hold more."""
    assert not list(double(prose(page)))


def double(text: str) -> Iterator[str]:
    """Lines of more than one sentence, as far as a full stop and a capital tell."""
    for line in text.splitlines():
        if line.lstrip().startswith(("|", "#")):
            continue
        plain = re.sub(r"\s*\([^()]*\)", "", line)
        if re.search(r"[a-z)`\"]{2}[.!?] (?=[A-Z`])", plain):
            yield line


@pytest.mark.parametrize(
    "line",
    [
        "It is so. It was so.",
        "- It is `so`. It was.",
        "  1. It is so. Was it?",
        "It is (or was). It is.",
        "It is so. `so` it is.",
    ],
)
def test_a_second_sentence_is_found(line: str) -> None:
    assert list(double(line)) == [line]


@pytest.mark.parametrize(
    "line", ["- It is so.", "1. **A name.**", "| It is so. It was. | x |", "It is so (it was. It is)."]
)
def test_one_sentence_is_one(line: str) -> None:
    assert list(double(line)) == []


def test_the_table_of_the_protocol_holds_every_message_with_its_fields() -> None:
    page = DOCS / "internals" / "protocol.md"
    _, _, table = page.read_text().partition("<!-- table:")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines() if line.startswith("| `")]
    listed = Counter(
        (word.strip(" `"), sender.strip(), to.strip(), frozenset(re.findall(r"`(\w+)`", fields)))
        for word, sender, to, _, fields, _ in rows
    )

    def all_of(kinds: dict[str, type[Tagged]], sender: str, to: str) -> Counter[tuple[str, str, str, frozenset[str]]]:
        return Counter((word, sender, to, frozenset(kind.__struct_fields__)) for word, kind in kinds.items())

    of_worker, of_agents = dict(messages.FROM_WORKER), ("leave", "hint", "moved_on")
    known = (
        all_of(of_worker, "worker", "hub")
        + all_of({w: k for w, k in messages.TO_ITS_AGENT.items() if w not in of_worker}, "worker", "agent")
        + all_of({w: k for w, k in messages.TO_HUB.items() if w not in of_worker}, "agent", "hub")
        + all_of({"where_is_the_hub": messages.WhereIsTheHub}, "agent", "agent")
        + all_of(dict(messages.TO_AGENT), "hub", "agent")
        + all_of({w: k for w, k in messages.TO_WORKER.items() if w not in of_agents}, "hub", "worker")
        + all_of({w: messages.TO_WORKER[w] for w in of_agents}, "agent", "worker")
    )
    assert listed == known


def test_the_map_of_rooms_names_every_room() -> None:
    _, _, table = (ROOT / "ARCHITECTURE.md").read_text().partition("## The map of rooms")
    named = set(re.findall(r"^\| `((?:checkpoint/)?\w+/(?:\w+/)?)` \|", table, re.MULTILINE))
    packages = [path.parent for top in ("elastic", "checkpoint") for path in ROOT.glob(f"{top}/**/__init__.py")]
    assert not {f"{name(room)}/" for room in packages if name(room).removeprefix("checkpoint/").count("/") <= 1} - named


def test_the_reference_holds_every_public_name() -> None:
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    assert {"elastic.errors", "elastic_checkpoint.errors"} <= shown
    missing = {f"elastic.{one}" for one in elastic.__all__ if not hasattr(elastic.errors, one)}
    missing |= {
        f"elastic_checkpoint.{one}" for one in elastic_checkpoint.__all__ if not hasattr(elastic_checkpoint.errors, one)
    }
    missing |= set(classes_for_frameworks())
    assert not missing - shown


def classes_for_frameworks() -> Iterator[str]:
    """The public ones. Their modules are read, and not imported: a framework need not be here."""
    for path in (ROOT / "elastic" / "integrations").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield f"elastic.integrations.{path.stem}.{node.name}"


def test_the_reference_holds_every_event_with_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """The site takes what the command prints (docs/hooks.py)."""
    _, _, events = (DOCS / "reference" / "commands.md").read_text().partition("## Events\n")
    (command,) = re.findall(r"^<!-- output: elastic report (.*?) -->$", events, re.MULTILINE)
    assert report.main([command]) == 0
    shown = capsys.readouterr().out
    common, *sections = re.split(r"^### ", shown, flags=re.MULTILINE)
    facts = {section.split("`")[1]: facts_in(section) for section in sections}
    assert facts_in(common) == {fact.name for fact in COMMON}
    assert facts == {event.name: {fact.name for fact in event.facts} for event in DECLARED.values()}


def facts_in(section: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


@pytest.mark.parametrize("page", LIVING, ids=name)
def test_an_event_that_a_page_names_is_one(page: Path) -> None:
    """an event `save_interval`, the event `cut_short`"""
    assert set(re.findall(r"\bevents? `(\w+)`", prose(page))) <= DECLARED.keys()


def test_every_decision_has_its_date_and_is_listed() -> None:
    decisions = DOCS / "decisions"
    pages = {page.name for page in decisions.glob("20*.md")}
    assert set(re.findall(r"\]\((20[^)]*)\)", (decisions / "index.md").read_text())) == pages
    for page in pages:
        assert f"Decided on {page[:10]}" in (decisions / page).read_text(), page


def test_the_page_on_sharded_models_says_which_arguments_are_refused_beside_them() -> None:
    refused = re.compile(r"\b((?:Data|Update|Compute|Saving|Checks)\(\w+)=")
    (rows,) = re.findall(r"^## What is refused$(.*?)^## ", (DOCS / "how-to/shard-a-model.md").read_text(), re.M | re.S)
    code = (ROOT / "elastic/config/check_sharding.py").read_text()
    assert Counter(refused.findall(rows)) == Counter(refused.findall(code))
