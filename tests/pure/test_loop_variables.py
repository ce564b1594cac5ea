"""What a loop keeps from turn to turn by itself is found in its source; what each turn makes anew is not."""

from __future__ import annotations

import linecache
import sys
import textwrap
from collections.abc import Iterator
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elastic.loop.refusals.loop_variables import Kept, LoopVariables, kept

_numbers = count()


class Run:
    """A run's loops, and nothing else of it: what the loop keeps is asked for where the script waits in its midst."""

    stepped = True

    def __init__(self, *, whole_turns: bool = False, over_steps: bool = False) -> None:
        self.found: Kept | None = None
        self._whole_turns = whole_turns
        self._over_steps = over_steps

    def batches(self) -> Iterator[int]:
        yield 1
        self.found = kept((self, None), whole_turns=self._whole_turns, over_steps=self._over_steps)
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


METER = """
class Meter:
    def __init__(self):
        self.sum = self.count = self.last = 0
    def update(self, value):
        self.last = value
        self.sum += value
        self.count += 1
meter = Meter()
"""
DECORATED = """
import functools
def timed(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)
    return wrapped
n = 0
@timed
def note(x):
    global n
    n += x
"""
BOUND = """
class T:
    @staticmethod
    def bump(s):
        s.n += 1
t, s = T(), T()
s.n = t.n = 0
"""
ALIAS = """
class T:
    def __init__(self):
        self.s = {}
    def note(self, x):
        s = self.s
        s[x] = 1
t = T()
"""


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
        ("history = {'loss': []}", "history['loss'].append(x)", ["history"]),
        ("import torch\ncounts = torch.zeros(3)", "counts[x] += 1", ["counts"]),
        ("import torch\ntotal = torch.zeros(1)", "total.add_(x)", ["total"]),
        ("best = None", "if best is None or x > best:\n    best = x", ["best"]),
        (METER, "meter.update(x)", ["meter.sum", "meter.count"]),
        (METER, "Meter.update(meter, x)", ["meter.sum", "meter.count"]),
        ("n = {'n': 0}\ndef note(x, *, log):\n    log['n'] += x", "note(x, log=n)", ["n"]),
        (DECORATED, "note(x)", ["n"]),
        ("class S:\n    __slots__ = ('n',)\nstate = S()\nstate.n = 0", "state.n += 1", ["state.n"]),
        (BOUND, "t.bump(s)", ["s.n"]),
        (ALIAS, "t.note(x)", ["t.s"]),
        ("e = 0", "try:\n    raise ValueError\nexcept ValueError:\n    e += 1", ["e"]),
        ("y = 0", "if x > 1:\n    y = 1\nif x > 2:\n    z = y\n", ["y"]),
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
        ("", "if x == 1:\n    y = 1\nelif x == 2:\n    y = 2\nelse:\n    raise ValueError(x)\ny += 1"),
        ("", "if x > 9:\n    continue\nelse:\n    y = x\ny += 1"),
        ("", "match x:\n    case 1:\n        y = 1\n    case _:\n        y = 2\ny += 1"),
        ("", "match [x, x]:\n    case [a, b]:\n        a += b"),
        ("", "if x > 1:\n    y = 1\nz = 0\nif x > 1:\n    y += z"),
        ("", "print([y := one for one in range(3)])\ny += 1"),
        ("buffer = [0]", "buffer[:] = [x]\nbuffer.append(x)"),
        ("seen = [0]", "seen.clear()\nseen.append(x)"),
        ("n = 1\ndef more(n):\n    n += 1\n    return n", "y = more(n)"),
        ("def note(s):\n    s = [1]\n    s.append(2)\nseen = []", "note(seen)"),
        ("def half(n):\n    n /= 2\n    return n", "y = half(x)"),
        ("", "try:\n    y = x\nexcept ValueError:\n    y = 0\ny += 1"),
        ("", "try:\n    raise ValueError\nexcept ValueError as e:\n    print(e)"),
    ],
)
def test_what_each_body_makes_anew_or_only_reads_is_not(before: str, body: str) -> None:
    assert of_body(body, before) == []


@pytest.mark.parametrize(
    ("body", "behind", "names"),
    [
        ("if x > 1:\n    best = x", "print(best)", ["best"]),
        ("if x > 1:\n    best = x", "if run.stepped:\n    save = [best]", ["best"]),
        ("if x > 1:\n    try:\n        best = x\n    finally:\n        pass", "y = best", ["best"]),
        ("for y in (x,):\n    if y > 1:\n        best = y\n        break", "print(best)", ["best"]),
        ("if x > 1:\n    state.best = x", "print(state.best)", ["state.best"]),
        ("if x > 1:\n    keep(x)", "print(kept)", ["kept"]),
        ("if x > 9:\n    continue\nbest = x", "print(best)", ["best"]),
        ("best = x", "print(best)", []),
        ("if x > 1:\n    best = x\nelse:\n    best = 0", "print(best)", []),
        ("if x > 1:\n    best = x", "best = 0\nprint(best)", []),
        ("if x > 1:\n    best = x", "for best in [1]:\n    print(best)", []),
        ("if x > 1:\n    best = x", "", []),
        ("if x > 9:\n    full = True\n    break", "print(full)", []),
        ("while x:\n    x -= 1\n    if x > 9:\n        raise ValueError(full := x)", "print(full)", []),
    ],
)
@pytest.mark.parametrize("within", ["{}", "if True:\n{}\nelse:\n    best = 0", "try:\n    pass\nfinally:\n{}"])
def test_what_only_some_turns_write_is_kept_where_it_is_read_behind_the_loop(
    within: str, body: str, behind: str, names: list[str]
) -> None:
    loop = f"for x in run.batches():\n{textwrap.indent(body, '    ')}\nelse:\n    done = 1\n{behind}"
    block = within.format(loop if within == "{}" else textwrap.indent(loop, "    "))
    before = "state, full, best, kept = SimpleNamespace(best=0), 0, 0, 0\ndef keep(y):\n    global kept\n    kept = y\n"
    assert found_in(before + block, Run(), SimpleNamespace=SimpleNamespace) == (names, names)


def test_where_an_epoch_begins_what_its_turns_leave_behind_begins_as_ever() -> None:
    script = """
    def train():
        for x in run.batches():
            if x > 1:
                last = x
        return last

    best = 9
    for epoch in run.epochs():
        if train() < best:
            best_epoch = epoch
    print(best_epoch)
    """
    assert found_in(script, Run(whole_turns=True)) == (["best_epoch"], ["last"])
    assert found_in(script, Run()) == (["last", "best_epoch"], ["last"])


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


def test_what_a_class_above_keeps_is_found() -> None:
    """By super(), from the loop's own function and from one that it calls."""
    names, by_share = found_in(
        """
        class Base:
            def __init__(self):
                self.seen, self.count = 0, 0

            def begin(self, x):
                self.count += 1

            def step(self, x):
                self.seen += x

        class Between(Base):
            pass

        class Trainer(Between):
            def begin(self, x):
                raise NotImplementedError

            def step(this, x):
                super().step(x)

            def train(this):
                for x in run.batches():
                    super().begin(x)
                    this.step(x)

        Trainer().train()
        """,
        Run(),
    )
    assert names == by_share == ["this.count", "this.seen"]


def test_what_a_function_counts_for_the_one_around_it_is_found() -> None:
    script = """
    def train():
        n = seen = 0
        def see(x):
            nonlocal n, seen
            n += 1
            seen = seen + x
            last = x
        for x in run.batches():
            see(x)

    train()
    """
    assert found_in(script, Run()) == (["n", "seen"], ["n", "seen"])


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
    assert found_in(script, Run(over_steps=True)) == (["n", "steps"], ["n"])


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
    script = """
    for x in run.batches():
        best.loss = min(best.loss, x)
        run.n = getattr(run, 'n', 0)
        run.n += 1
    """
    assert found_in(script, Run(), best=SimpleNamespace(loss=9))[0] == ["best.loss"]


def test_a_step_that_a_function_takes_is_no_share() -> None:
    script = """
    def one(step):
        global n
        for x in step:
            n += x

    n = done = 0
    for step in run:
        one(step)
        done += 1
    """
    assert found_in(script, Run(over_steps=True)) == (["n", "done"], ["n"])


def test_a_batch_that_is_iterated_over_is_a_share() -> None:
    script = """
    n = 0
    for x in run.batches():
        for y in range(x):
            y += 1
        n += 1
    """
    assert found_in(script, Run()) == (["n"], ["n"])


@pytest.mark.parametrize(
    ("guard", "by_share"),
    [
        ("if run.stepped:\n    n += 1", []),
        ("if run.stepped and x:\n    n += 1", []),
        ("if accelerator.sync_gradients:\n    n += 1", []),
        ("if not run.stepped:\n    continue\nn += 1", []),
        ("done = run.stepped\nif done:\n    n += 1", []),
        ("if not run.stepped:\n    pass\nelse:\n    n += 1", []),
        ("if not run.stepped:\n    n += 1", ["n"]),
        ("if run.stepped:\n    pass\nelse:\n    n += 1", ["n"]),
        ("if x or run.stepped:\n    n += 1", ["n"]),
        ("if run.stepped:\n    pass\nn += 1", ["n"]),
    ],
)
def test_what_a_guard_of_the_run_s_lets_through_is_once_a_step(guard: str, by_share: list[str]) -> None:
    body = textwrap.indent(guard, "    ")
    given = {"accelerator": SimpleNamespace(sync_gradients=True)}
    assert found_in(f"n = 0\nfor x in run.batches():\n{body}\n", Run(), **given) == (["n"], by_share)


@pytest.mark.parametrize(
    "batches", ["((x, x) for x in run.batches())", "[x for x in run.batches()]", "list(run.batches())"]
)
def test_what_an_epoch_keeps_is_not_kept_by_the_share(batches: str) -> None:
    script = f"""
    n = 0
    for epoch in run.epochs():
        batches = {batches}
        for x in batches:
            pass
        n += 1
    """
    assert found_in(script, Run()) == (["n"], [])


@pytest.mark.parametrize("wait", ["while (x := next(batches, None)) is not None:", "for x in Ahead(batches):"])
def test_batches_may_come_one_by_one(wait: str) -> None:
    script = f"""
    class Ahead:
        def __init__(self, batches):
            self.batches = batches
        def __iter__(self):
            return self
        def __next__(self):
            return next(self.batches)

    n, batches = 0, run.batches()
    {wait}
        n += 1
    """
    assert found_in(script, Run()) == (["n"], ["n"])


def test_a_function_of_another_module_has_names_of_its_own() -> None:
    other = ModuleType("other_of_test_loop_variables")
    sys.modules[other.__name__] = other
    path = f"/script-{next(_numbers)}.py"
    text = "n = 0\ndef count(x):\n    global n\n    n += x\n"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    exec(compile(text, path, "exec"), vars(other))
    try:
        script = "n = 5\nfor x in run.batches():\n    y = n\n    count(x)"
        assert found_in(script, Run(), count=vars(other)["count"])[0] == ["other_of_test_loop_variables.n"]
    finally:
        del sys.modules[other.__name__]


class Rude:
    """Whatever is asked of it, it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    @property
    def count(self) -> int:
        raise RuntimeError


class OfInstances:
    def __get__(self, thing: Any, kind: type) -> Any:
        raise RuntimeError


class Described:
    note = OfInstances()


def test_nothing_of_the_script_s_is_run_for_it() -> None:
    script = """
    n = 0
    for x in run.batches():
        n += 1
        if x > 5:
            rude.count += 1
            rude.other.append(x)
            described.note(x)
    """
    assert found_in(script, Run(), rude=Rude(), described=Described())[0] == ["n", "rude.count"]


DEEP = {
    "chain": "    if x == -1:\n        pass\n" + "".join(f"    elif x == {n}:\n        n += 1\n" for n in range(400)),
    "sum": f"    n = {'+'.join(['n'] * 700)}\n",
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
def test_a_source_that_is_too_deep_is_passed_over(body: str) -> None:
    told: list[str] = []
    variables = LoopVariables(tuple, by_share=True, say=told.append, warn=told.append)

    class Looks(Run):
        def batches(self) -> Iterator[int]:
            yield 1
            variables.look(0, whole_turns=False, over_steps=False, joined_as=None)
            self.found = Kept([], [])
            yield 2

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own
    try:
        assert found_in(f"n = 0\nfor x in run.batches():\n{body}", Looks()) == ([], [])
    finally:
        sys.setrecursionlimit(limit)
    assert told == []


METRIC = """
class Metric:
    def __call__(self, value): pass
    def update(self, value): pass
    def compute(self): pass
    def reset(self): pass
metric = Metric()
"""


@pytest.mark.parametrize(
    ("behind", "names"),
    [
        ("metric(y)\nmetric.compute()\nmetric.reset()", []),
        ("metric.update(y)\nif y:\n    metric.reset()\nelse:\n    metric.reset()", []),
        ("metric.update(y)", ["metric"]),
        ("metric.reset()\nmetric.update(y)", []),
        ("metric.update(y)\nif y:\n    metric.reset()", ["metric"]),
        ("metric.update(y)\nif y:\n    continue\nmetric.reset()", ["metric"]),
        ("metric.update(y)\nmetric.reset()\nmetric.update(y)", ["metric"]),
    ],
)
def test_a_metric_that_each_epoch_ends_by_a_reset_is_not_kept(behind: str, names: list[str]) -> None:
    """It evaluates, and is as it was built wherever a worker comes in."""
    loop = "for y in range(2):\n    for x in run.batches():\n        pass\n"
    assert found_in(METRIC + loop + textwrap.indent(behind, "    "), Run())[0] == names


def test_a_metric_of_the_batches_is_kept_by_the_share_until_its_reset() -> None:
    loop = "for y in range(2):\n    for x in run.batches():\n        metric.update(x)\n    metric.reset()"
    assert found_in(METRIC + loop, Run()) == (["metric"], ["metric"])


def test_without_source_nothing_is_found() -> None:
    run = Run()
    exec("n = 0\nfor x in run.batches():\n    n += 1", {"run": run, "__name__": "__main__"})
    assert run.found == Kept([], [])


@pytest.mark.parametrize(("by_share", "said"), [(False, 0), (True, 1)])
def test_of_one_batch_a_step_nothing_is_counted_by_shares(by_share: bool, said: int) -> None:
    told: list[str] = []
    variables = LoopVariables(tuple, by_share=by_share, say=told.append, warn=told.append)

    def batches() -> Iterator[int]:
        yield 1
        variables.look(0, whole_turns=False, over_steps=False, joined_as=None)
        yield 2

    n = 0
    for _ in batches():
        n += 1
    assert (n, len(told)) == (2, said)
