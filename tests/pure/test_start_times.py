"""`elastic run --timing`: which moment counts, of several workers, and what is said of them."""

from __future__ import annotations

from elastic.launch.workers.start_times import IMPORTED, IN_RUN, LOADED, STARTED, StartTimes
from elastic.membership.progress import Phase, Record


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_each_moment_is_that_of_the_last_worker_and_the_table_is_said_once() -> None:
    """One that is slow to start holds up all, and shows."""
    said: list[str] = []
    clock = Clock()
    times = StartTimes(2, said.append, clock=clock)
    age_s = clock.now_s - times._begun_s  # of pytest's process
    for later_s, what in ((1, LOADED), (4, IMPORTED)):
        clock.now_s = 100.0 + later_s
        times.mark(what)
    for later_s, what in ((5, STARTED), (6, STARTED), (7, IN_RUN), (9, IN_RUN)):
        clock.now_s = 100.0 + later_s
        times.count(what)
    for later_s, steps in ((10, (40, None)), (11, (40, 40)), (12, (41, 40)), (16, (42, 41)), (17, (43, 42))):
        clock.now_s = 100.0 + later_s
        times.look((str(n), Record(generation=1, step=-1 if at is None else at)) for n, at in enumerate(steps))

    (table,) = said
    first, *rows = table.splitlines()
    at = [float(row.split()[0]) - round(age_s, 2) for row in rows]
    assert [round(one) for one in at] == [1, 4, 6, 9, 11, 16]
    assert first.startswith(f"from the command to a step of 2 workers: {16 + age_s:.2f} s, ")


def test_a_worker_that_reads_the_storage_does_not_hold_the_state_yet() -> None:
    """What it read counted as a step that it had applied."""
    said: list[str] = []
    times = StartTimes(1, said.append, clock=Clock())
    times.look([("one", Record(generation=1, step=0, phase=Phase.LOADING))])
    times.look([("one", Record(generation=1, step=40, phase=Phase.BETWEEN))])
    assert said == []
    times.look([("one", Record(generation=1, step=41))])
    assert said[0].splitlines()[-2].endswith("they hold the state")
