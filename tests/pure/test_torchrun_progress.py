"""What a script shows of its progress is known from the run without faults: lines, saves, points of TensorBoard's."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from elastic.drill.torchrun.progress import Points, Watch, line_keys, new_lines, only_in, waits

UNDISTURBED = [(0.0, f"epoch 0 batch {at} loss {1 / (at + 1):.4f}") for at in range(8)]


def test_a_line_is_new_the_first_time_that_one_of_the_undisturbed_run_comes() -> None:
    """Of a resume the losses may be others, and what tells of it is none of that run's lines."""
    with_faults = [
        *((float(at), f"epoch 0 batch {at} loss {0.9 / (at + 1):.4f}") for at in range(5)),
        (10.0, "restart 1: all start again"),
        (11.0, "goes on from batch 3"),
        *((12.0 + at, f"epoch 0 batch {at} loss nan") for at in range(3, 8)),
    ]
    assert new_lines(with_faults, line_keys(UNDISTURBED)) == [0.0, 1.0, 2.0, 3.0, 4.0, 17.0, 18.0, 19.0]


def test_a_start_has_taken_so_long_as_from_the_last_sign_to_the_first_new_one() -> None:
    signs = [1.0, 2.0, 9.5, 20.0]
    assert waits(signs, [4.0, 15.0, 30.0]) == [7.5, 10.5, None]
    assert waits([], [4.0]) == [None]


def test_points_that_came_twice_or_not_at_all_are_counted() -> None:
    whole = Points(Counter({("loss", at): 1 for at in range(10)}), [])
    with_faults = Points(Counter({("loss", at): 1 + (3 <= at < 5) for at in range(9)}), [])
    assert with_faults.beside(whole) == "11, 2 more than once, 1 missing"
    assert whole.beside(whole) == "10"


def test_a_line_that_is_sought_is_found_until_a_fault_has_struck_at_it(tmp_path: Path) -> None:
    """Lines that were searched are not searched again; whoever is to be struck may be gone, and the next look finds it.

    The second fault at a text strikes at a line behind those of the first.
    """
    watch = Watch(tmp_path, lines=[(0.0, "epoch 1"), (1.0, "epoch 2")])
    assert not watch.says("epoch 3", since=0)
    watch.lines += [(2.0, "epoch 3"), (3.0, "epoch 4")]
    assert watch.says("epoch 3", since=0)
    assert watch.says("epoch 3", since=0)
    assert not watch.says("epoch 3", since=4)
    watch.lines.append((4.0, "epoch 3"))
    assert watch.says("epoch 3", since=4)
    assert watch.says("epoch 1", since=0)


def test_saves_are_files_that_come_or_change_and_are_no_text(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output"
    run.mkdir()
    output.write_text("epoch 0\nepo")
    watch = Watch(run)

    def look() -> int:
        watch._scanned_s = 0.0
        watch.look(output)
        return len(watch.saves)

    assert look() == 0
    (run / "log.csv").write_text("1")
    (run / "events.out.tfevents.1.host").write_text("1")
    assert look() == 0
    (run / "last.pt").write_text("1")
    assert look() == 1
    assert look() == 1
    (run / "new.pt").write_text("two")
    os.replace(run / "new.pt", run / "last.pt")
    assert look() == 2
    output.write_text("epoch 0\nepoch 1\n")
    look()
    assert [line for _, line in watch.lines] == ["epoch 0", "epoch 1"]
    assert watch.says("poch 1", since=0)
    assert not watch.says("epoch 0", since=1)


def test_files_that_only_faults_leave_are_known_by_their_names_without_numbers(tmp_path: Path) -> None:
    for name in ("undisturbed/step-5/model.pt", "disturbed/step-7/model.pt", "disturbed/last.pt.new"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert only_in(tmp_path / "disturbed", tmp_path / "undisturbed") == ["last.pt.new"]
