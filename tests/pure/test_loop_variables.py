"""What a loop keeps from turn to turn by itself is found in its source; what each turn makes anew is not."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from elastic.loop.refusals.loop_variables import Kept, kept

_numbers = count()


class Run:
    """A run's loops, and nothing else of it: what the loop keeps is asked for where the script waits in its midst."""

    stepped = True

    def __init__(self, *, whole_turns: bool = False) -> None:
        self.found: Kept | None = None
        self._whole_turns = whole_turns

    def batches(self) -> Iterator[int]:
        yield 1
        self.found = kept((self,), whole_turns=self._whole_turns)
        yield 2

    def __iter__(self) -> Iterator[list[int]]:
        for _ in self.batches():
            yield [1, 2]

    def epochs(self) -> Iterator[int]:
        yield 0


def found_in(script: str, run: Run, **variables: Any) -> tuple[list[str], list[str]]:
    """(all, by the share)"""
    path = f"/script-{next(_numbers)}.py"
    text = textwrap.dedent(script)
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    exec(compile(text, path, "exec"), {"run": run, "__name__": "__main__", **variables})
    assert run.found is not None
    return run.found.names, run.found.by_share


def of_body(body: str, before: str = "", **variables: Any) -> list[str]:
    names, _ = found_in(
        f"{textwrap.dedent(before)}\nfor x in run.batches():\n{textwrap.indent(textwrap.dedent(body), '    ')}",
        Run(),
        **variables,
    )
    return names


@pytest.mark.parametrize(
    ("before", "body", "names"),
    [
        ("n = 0", "n += 1", ["n"]),
        ("n = 0", "n = n + x", ["n"]),
        ("best = 9", "best = min(best, x)", ["best"]),
        ("best = 9", "if x < best:\n    best = x", ["best"]),
        ("old = 0", "new = x - old\nold = x", ["old"]),
        ("bad = 0", "if x > 1:\n    bad = 0\nelse:\n    bad += 1", ["bad"]),
        ("losses = []", "losses.append(x)", ["losses"]),
        ("losses = []", "losses = [*losses, x][-3:]", ["losses"]),
        ("seen = {}", "seen[x] = 1", ["seen"]),
        ("seen = set()", "seen |= {x}", ["seen"]),
        ("total = 0", "total = (y := total) + x", ["total"]),
        ("n = 0", "try:\n    n += 1\nfinally:\n    pass", ["n"]),
        ("n = 0", "with open('/dev/null'):\n    n += 1", ["n"]),
        ("n = 0", "match x:\n    case 1:\n        n += 1", ["n"]),
        ("from types import SimpleNamespace as D\nd = D(transform=D(p=1))", "d.transform.p *= 2", ["d.transform.p"]),
        ("class Node:\n    def next(self): return self\nnode = Node()", "node = node.next()", ["node"]),
        ("n = 0\ndef count():\n    global n\n    n += 1", "count()", ["n"]),
        ("seen = []\ndef note(y):\n    seen.append(y)", "note(x)", ["seen"]),
        (
            "class State:\n    n = 0\nstate = State()\nstate.n = 0\ndef note(s, y):\n    s.n += y",
            "note(state, x)",
            ["state.n"],
        ),
        (
            "class Data:\n    def harder(self):\n        self.level *= 2\ndata = Data()\ndata.level = 1",
            "data.harder()",
            ["data.level"],
        ),
        ("n = 0\ndef twice():\n    count()\ndef count():\n    global n\n    n += 1", "twice()", ["n"]),
    ],
)
def test_what_a_body_keeps_for_the_next_is_found(before: str, body: str, names: list[str]) -> None:
    assert of_body(body, before) == names


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("", "loss = x * 2\nloss += 1\nprint(loss)"),
        ("", "total = 0\nfor one in range(x):\n    total += one"),
        ("", "if x > 1:\n    y = 1\nelse:\n    y = 2\ny += 1"),
        ("lr = 1", "new = lr * x\nprint(new)"),
        ("groups = [{}]", "for g in groups:\n    g['lr'] = x"),
        ("", "y = [one for one in range(x)]\none = 1\nprint(one, y)"),
        ("", "f = lambda y: y + z\nz = 1\nf(z)"),
        ("", "x += 1"),
        ("from types import SimpleNamespace as Data\ndata = Data(epoch=0)", "data.epoch = x"),
        ("import random", "random.seed(x)\nrandom.extra = getattr(random, 'extra', 0)"),
        ("class Bar:\n    def update(self, n): pass\nbar = Bar()", "bar.update(1)"),
        ("n = 1\ndef more(n):\n    n += 1\n    return n", "y = more(n)"),
        ("def note(s):\n    s = [1]\n    s.append(2)\nseen = []", "note(seen)"),
        ("def half(n):\n    n /= 2\n    return n", "y = half(x)"),
        ("", "try:\n    y = x\nexcept ValueError:\n    y = 0\ny += 1"),
    ],
)
def test_what_each_body_makes_anew_or_only_reads_is_not(before: str, body: str) -> None:
    assert of_body(body, before) == []


def test_attributes_of_a_script_s_own_object_are_found_in_its_methods_too() -> None:
    names, by_share = found_in(
        """
        class Trainer:
            def __init__(self):
                self.seen, self.steps, self.lr, self.log = 0, 0, 1, []

            def train(self):
                for x in run.batches():
                    self.step(x)
                    if run.stepped:
                        self.steps += 1

            def step(self, x):
                self.loss = x * self.lr
                self.seen += x
                self.log.append(self.loss)

        Trainer().train()
        """,
        Run(),
    )
    assert names == ["self.seen", "self.log", "self.steps"]
    assert by_share == ["self.seen", "self.log"]


def test_what_is_written_once_a_step_is_not_kept_by_the_share() -> None:
    script = """
    n = steps = 0
    for x in run.batches():
        n += 1
        if run.stepped:
            steps += 1
    """
    assert found_in(script, Run()) == (["n", "steps"], ["n"])


def test_what_is_made_of_a_share_is_by_the_share_wherever_it_is_written() -> None:
    script = """
    mean, last, steps, log = 0, 0, 0, []
    for x in run.batches():
        loss = x * 2
        if run.stepped:
            mean = 0.9 * mean + 0.1 * loss
            steps += 1
            log.append(loss)
            last, before = steps, last
    """
    assert found_in(script, Run()) == (["mean", "steps", "log", "last"], ["mean", "log"])


def test_of_a_loop_over_steps_what_stands_in_the_inner_loop_is_by_the_share() -> None:
    script = """
    n = steps = 0
    for step in run:
        for x in step:
            n += 1
        steps += 1
    """
    assert found_in(script, Run()) == (["n", "steps"], ["n"])


EPOCHS = """
def train():
    total, seen = 0, 0
    for x in run.batches():
        total += x
        loss = x
    return total, loss

best, stale = 9, 0
for epoch in run.epochs():
    total, loss = train()
    if total < best:
        best, stale = total, 0
    else:
        stale += 1
    print(loss)
"""


def test_a_loop_over_epochs_keeps_the_best_and_one_over_batches_its_sum() -> None:
    assert found_in(EPOCHS, Run()) == (["total", "best", "stale"], ["total"])


def test_where_an_epoch_begins_its_own_sums_begin_as_ever() -> None:
    assert found_in(EPOCHS, Run(whole_turns=True)) == (["best", "stale"], ["total"])


def test_batches_may_come_through_a_generator_of_the_script_s() -> None:
    script = """
    def moved():
        sent = 0
        for x in run.batches():
            sent += 1
            yield x

    n = 0
    for x in moved():
        n += 1
    """
    assert found_in(script, Run()) == (["sent", "n"], ["sent", "n"])


def test_what_the_run_carries_is_let_pass() -> None:
    class Best:
        loss = 9

    best, model = Best(), Best()
    run = Run()
    script = (
        "for x in run.batches():\n    best.loss = min(best.loss, x)\n    model.n = model.loss\n    run.n = run.stepped"
    )
    assert found_in(script, run, best=best, model=model)[0] == ["best.loss"]


def test_without_source_nothing_is_found() -> None:
    run = Run()
    exec("n = 0\nfor x in run.batches():\n    n += 1", {"run": run, "__name__": "__main__"})
    assert run.found == Kept([], [])
