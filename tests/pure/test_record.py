"""A run's record has each step once, whoever wrote it and how often; two records of a step say what differs, and where.

Lines as workers write them, and what is read from them.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from elastic import Compute
from elastic.data.example_digest import quick_digest
from elastic.errors import WrittenByNewer
from elastic.group.sums import Agreed
from elastic.record import Part, StepRecord, read_record, share_digests
from elastic.record.reading import of_lines
from elastic.record.recorder import Recorder
from elastic.record.step_record import FORMAT, VERSION, encoded
from elastic.state import bits


def line(step: int, claim: int = 1, **known: Any) -> dict[str, Any]:
    """A step's line, as it is read again from what a worker wrote."""
    written = {"step": step, "claim": claim, "count": 24, "sums": {"loss": 0.1 * (step + 1)}, **known}
    found: dict[str, Any] = json.loads(encoded(written))
    return found


def shares(*digests: tuple[int, int]) -> tuple[int, ...]:
    return tuple(share_digests.packed(share, read, gave) for share, (read, gave) in enumerate(digests))


def step(**known: Any) -> StepRecord:
    found = StepRecord.of(line(7, **known))
    assert found is not None
    return found


def test_steps_that_two_coordinators_wrote_are_there_once() -> None:
    """The one that was killed had written some; the next one writes all that it has, and knows no norm of them."""
    first = [line(at, norm=float(at)) for at in range(5)]
    found = of_lines([*first, *(line(at) for at in range(3, 9))])
    assert list(found.steps) == [*range(9)]
    assert (found.missing, found.twice) == ([], [])
    assert [one.norm for one in found.steps.values()][:6] == [0.0, 1.0, 2.0, 3.0, 4.0, None]


def test_steps_that_a_resume_has_not_done_again_are_not_there() -> None:
    found = of_lines([line(at, 1) for at in range(20)] + [line(at, 2) for at in range(10, 13)])
    assert list(found.steps) == [*range(13)]
    assert [one.claim for one in found.steps.values()] == [1] * 10 + [2] * 3
    assert found.twice == []


def test_a_step_that_is_done_over_and_comes_to_something_else_is_told() -> None:
    found = of_lines([line(at, 1) for at in range(5)] + [line(3, 2), line(4, 2, sums={"loss": 0.25})])
    [(at, older, newer, apart)] = found.twice
    assert (at, older, newer) == (4, 1, 2)
    assert [part for part, _ in apart] == [Part.SUMS]
    assert found.steps[4].sums == {"loss": 0.25}


def test_what_is_not_on_record_is_told() -> None:
    assert of_lines([line(2), line(3), line(7)]).missing == [(0, 2), (4, 7)]


def test_a_later_version_is_refused_and_foreign_lines_are_passed_over() -> None:
    with pytest.raises(WrittenByNewer, match=f"the record is of version {VERSION + 1}") as refused:
        of_lines([{"format": FORMAT, "version": VERSION + 1}])
    assert refused.value.version == VERSION + 1
    odd: list[dict[str, Any]] = [
        {"step": True, "claim": 1},
        {"step": 1},
        {"step": 1, "claim": 1, "shares": "no number"},
    ]
    assert of_lines([*odd, line(0)]).steps.keys() == {0}


def test_a_norm_that_comes_later_belongs_to_its_step() -> None:
    """Of a GPU it is known one step later, in a line of its own."""
    late = json.loads(encoded({"step": 0, "claim": 1, "norm": 2.5}))
    found = of_lines([line(0), line(1), late])
    assert (found.steps[0].norm, found.steps[0].sums) == (2.5, {"loss": 0.1})


def test_the_share_that_differs_is_named_and_whether_its_examples_do() -> None:
    one = step(shares=shares((1, 2), (3, 4), (5, 6)))
    assert one.differs(one) == []
    apart = one.differs(step(shares=shares((1, 2), (3, 9), (5, 6))))
    assert apart == [(Part.GAVE, "another loss or sum comes from share 1")]
    apart = one.differs(step(shares=shares((1, 2), (9, 9), (9, 9))))
    assert [part for part, _ in apart] == [Part.READ, Part.GAVE]
    assert apart[0][1] == "other values are read by shares 1, 2"
    assert one.differs(step(shares=shares((1, 0), (0, 4), (0, 0)))) == [], "what is not known is no difference"


@pytest.mark.parametrize("value", [0.1, -0.0, 5e-324, math.nan, math.inf, -math.inf, 3, [1.0, math.nan]])
def test_sums_come_back_bit_by_bit(value: Any) -> None:
    one = step(sums={"loss": value})
    assert one.differs(step(sums={"loss": value})) == []
    assert repr(one.sums["loss"]) == repr(value)
    assert one.differs(step(sums={"loss": 0.0})) != []


def test_the_last_bit_of_a_norm_and_each_digest_count() -> None:
    one = step(norm=1.0, gradients=17, weights=18)
    assert [part for part, _ in one.differs(step(norm=math.nextafter(1.0, 2.0)))] == [Part.GRADIENTS]
    assert [part for part, _ in one.differs(step(gradients=18, weights=17))] == [Part.GRADIENTS, Part.WEIGHTS]
    assert one.differs(step(norm=1.0)) == []
    assert [part for part, _ in one.differs(step(passed_over="loss is nan", first=0))] == [Part.END]


def test_what_is_not_known_of_both_steps_is_not_compared() -> None:
    known = step(shares=shares((1, 2)), norm=0.5, weights=7)
    assert known.compared(step(shares=shares((1, 2)), norm=0.25)) == {Part.READ, Part.GAVE, Part.SUMS, Part.GRADIENTS}
    assert known.compared(step(shares=shares((1, share_digests.gave([], {"\0own": 1.0}))), sums={})) == {Part.READ}


def test_steps_of_two_lines_are_on_record_after_a_thousand(tmp_path: Path) -> None:
    """Of a GPU the norm comes once the step is on record. Without a save, a thousand steps are all that may be lost."""
    config: Any = SimpleNamespace(
        url=str(tmp_path), storage_options={}, plan=SimpleNamespace(virtual_workers=4), compute=Compute()
    )
    recorder = Recorder(config, "host-17-abcdef", lambda _: None)
    agreed = Agreed({"loss": 1.5}, 128, (0,), (0,), (0,), (), (), 0)
    for at in range(1000):
        recorder.add(at, 1, agreed, coordinates=True)
        recorder.norm(at, 2.5)
    until_s = time.monotonic() + 60
    while not list(tmp_path.glob("record/*.jsonl")):
        assert time.monotonic() < until_s, "nothing is written"
        time.sleep(0.01)
    recorder.close()
    assert len(read_record(tmp_path).steps) == 1000


def test_parameters_of_equal_names_are_named_once(tmp_path: Path) -> None:
    """The steps of a GAN take turns between two sets of them, which are found anew each time."""
    config: Any = SimpleNamespace(
        url=str(tmp_path), storage_options={}, plan=SimpleNamespace(virtual_workers=4), compute=Compute()
    )
    recorder = Recorder(config, "host-17-abcdef", lambda _: None)
    agreed = Agreed({"loss": 1.5}, 128, (0,), (0,), (0,), (), (), 0)
    names = ["generator", "judge"]
    for at in range(3):
        recorder.add(at, 1, agreed, coordinates=True, parameters=(*names,))
        recorder.close()
    [segment] = tmp_path.glob("record/*.jsonl")
    assert len(segment.read_bytes().splitlines()) == 1 + 3


def test_a_shares_number_fits_into_the_row() -> None:
    largest = share_digests.packed(share_digests.SHARES_MAX - 1, (1 << 64) - 1, (1 << 64) - 1)
    assert largest < 1 << 63
    assert share_digests.unpacked(largest) == (share_digests.SHARES_MAX - 1, (1 << 24) - 1, (1 << 24) - 1)
    assert share_digests.unpacked(share_digests.packed(0, 1 << 24, 0)) == (0, 1, 0), "0 is for what is not known"


def test_a_batch_is_digested_by_its_values() -> None:
    batch = (torch.arange(6.0), {"text": ["a", "b"], "ids": np.arange(3)}, None, 1.5)
    again = (torch.arange(6.0), {"text": ["a", "b"], "ids": np.arange(3)}, None, 1.5)
    other = (torch.arange(6.0), {"text": ["a", "c"], "ids": np.arange(3)}, None, 1.5)
    assert quick_digest(batch, 1) == quick_digest(again, 1) != 0
    assert quick_digest(other, 1) != quick_digest(batch, 1)
    assert quick_digest((torch.arange(6.0), torch.ones(2)), 1) != quick_digest((torch.ones(2), torch.arange(6.0)), 1)


@pytest.mark.parametrize(
    "batch", [object(), torch.zeros(1 << 17), torch.zeros(4, 4).t(), torch.zeros(2).to_sparse(), [0] * (1 << 20)]
)
def test_a_batch_that_would_cost_something_is_not_digested(batch: Any) -> None:
    assert quick_digest((torch.ones(1), batch), 1) == 0


def test_a_segment_names_its_parameters_and_later_ones_theirs() -> None:
    """A script may add layers: what is on record before them keeps its names."""
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "mode": "exact", "virtual_workers": 4}
    written = [
        *({**head, "parameters": ["a"]}, {"step": 0, "claim": 1, "weight_prefixes": [7]}),
        *({**head, "parameters": ["a", "b"]}, {"step": 1, "claim": 1, "weight_prefixes": [7, (1 << 40) + 3]}),
    ]
    found = of_lines(json.loads(encoded(one)) for one in written)
    assert [one.parameters for one in found.steps.values()] == [("a",), ("a", "b")]
    assert [one.weight_prefixes for one in found.steps.values()] == [(7,), (7, 3)]
    assert replace(found.steps[1], weight_prefixes=(7, 4)).tensor_apart(found.steps[1]) == "b, after step 1"


@pytest.mark.parametrize("version", [None, "1", 1.5, True])
def test_a_damaged_head_is_passed_over(version: Any) -> None:
    head = {"format": FORMAT, "version": version, "mode": 3, "parameters": 7}
    assert list(of_lines([head, line(0)]).steps) == [0]


def test_prefixes_tell_the_first_tensor_that_differs_and_leave_the_digest_as_it_is() -> None:
    def prefixes(*tensors: torch.Tensor | None) -> list[int]:
        found = list[int]()
        assert bits.digest_of(tensors, found) == bits.digest_of(tensors)
        return found

    a, b, c = torch.arange(3.0), torch.arange(4), None
    whole = prefixes(a, b, c)
    assert prefixes(a, b, c) == whole
    assert [here == there for here, there in zip(whole, prefixes(a, b + 1, c), strict=True)] == [True, False, False]
    assert [here == there for here, there in zip(whole, prefixes(a, b, a), strict=True)] == [True, True, False]
    of_sums = bits.prefixes_of_sums([1, -2, 3])
    there = bits.prefixes_of_sums([1, -2, 4])
    assert [here == there for here, there in zip(of_sums, there, strict=True)] == [True, True, False]
