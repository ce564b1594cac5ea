"""Sharded models in replicas of several workers have the bits of one plain process, whatever is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.state.compiled import compiler_name
from tests.kit.launch import Launch
from tests.kit.observed import assert_observed
from tests.kit.programs.sharded import MOMENTS

pytestmark = pytest.mark.nightly(sample=2, of="sharded models")

WITHIN_S = 300.0
STEPS = 5
PROGRAM = "tests.kit.programs.sharded"
SCRIPT = Path(__file__).parents[1] / "kit" / "programs" / "sharded.py"

PLAIN_LOOP = ("--plain",)
UNUSED = ("--unused",)
IN_PIECES = ("--micro-batch-size=1",)
FEW = ("--short=22",)  # the last batch of every three has two shares, and some replicas have none
SHORT = ("--short=13",)  # the last batch of every three has 11 examples of 24


@dataclass(frozen=True)
class Ended:
    """A run that has ended. results: what each of its workers printed; output: of the launch."""

    results: Sequence[dict[str, Any]]
    events: Sequence[Event]
    output: str

    def bits(self) -> set[tuple[str, ...]]:
        """What the workers hold, which is one thing."""
        return {(one["weights"], one["moments"], one["evaluated"], str(one["steps"])) for one in self.results}

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["event"] == kind]

    def redone(self) -> set[tuple[int, int]]:
        """The (step, attempt) that came round again."""
        return {(event["step"], event["attempt"]) for event in self.of("redo")}

    def read_from_storage(self) -> list[Event]:
        """Where a state was read, and not that of a new run."""
        return [event for event in self.of("loaded") if "digest" in event and event["from_claim"] is not None]

    def lived_through(self, ranks: Sequence[int]) -> bool:
        """Whether these of the first view's ranks were there all the time, and applied every step once."""
        first = min((event for event in self.of("view_formed")), key=lambda event: event["generation"])["workers"]
        applied: dict[str, list[int]] = {}
        for event in self.of("step_applied"):
            applied.setdefault(event["worker"], []).append(event["step"])
        return all(applied.get(first[rank]) == list(range(STEPS)) for rank in ranks)


def launched(
    url: Path, workers: int | None, *options: str, size: int | None = None, flags: Sequence[str] = ()
) -> Launch:
    """The program, alone, on torchrun's workers, or under `elastic run` in replicas of `size`."""
    if size is None:
        return Launch(PROGRAM, [url, *options], workers=workers, env={"OMP_NUM_THREADS": "1"})
    of_run = ["run", "--no-status", f"--nproc-per-node={workers}", f"--replica-size={size}", *flags]
    return Launch("elastic", [*of_run, SCRIPT, url, *options])


def ended(launch: Launch, url: Path) -> Ended:
    output = launch.succeed(within_s=WITHIN_S)
    found: list[dict[str, Any]] = []
    for line in output.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line[line.index("{") :]))
    events = read_events(url)
    assert_observed(events)
    return Ended(found, events, output)


Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(workers, *options, size=, flags=, url=): to its end, with status 0."""

    def to_its_end(workers: int | None, *options: str, url: str = "run", **how: Any) -> Ended:
        given = options if any(one.startswith("--steps=") for one in options) else (*options, f"--steps={STEPS}")
        with launched(tmp_path / url, workers, *given, **how) as launch:
            return ended(launch, tmp_path / url)

    return to_its_end


_WHOLE: dict[tuple[str, ...], set[tuple[str, ...]]] = {}


@pytest.fixture
def whole(run: Run) -> Callable[..., set[tuple[str, ...]]]:
    """The bits of one plain process, of a model that nobody has sharded."""

    def bits(*options: str) -> set[tuple[str, ...]]:
        if options not in _WHOLE:
            _WHOLE[options] = run(None, "--whole", *options, url="whole").bits()
            assert len(_WHOLE[options]) == 1
        return _WHOLE[options]

    return bits


SHAPES = [(None, None), (2, None), (3, None), (4, None), (6, None), (4, 2), (6, 2), (6, 3)]
"""(workers, of a replica); without the latter, torchrun's workers are one replica, or one process is."""


def _ways() -> list[tuple[int | None, int | None, tuple[str, ...]]]:
    """Every shape with all that may be in a step at once, and by itself what differs in how a step is passed."""
    every = [(*shape, (*loop, *UNUSED, *SHORT)) for shape in SHAPES for loop in ((), PLAIN_LOOP)]
    some = [((3, None), IN_PIECES), ((4, 2), IN_PIECES), ((4, 2), (*IN_PIECES, *UNUSED)), ((4, 2), ())]
    return every + [(*shape, options) for shape, options in some]


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize(("workers", "size", "options"), _ways())
def test_every_shape_has_the_bits_of_one_process(
    run: Run,
    whole: Callable[..., set[tuple[str, ...]]],
    workers: int | None,
    size: int | None,
    options: tuple[str, ...],
) -> None:
    end = run(workers, *options, size=size)
    assert len(end.results) == (workers or 1)
    of_a_replica = size or workers or 1
    for one in end.results:
        count = len(end.results) // of_a_replica
        assert one["replica"] == [one["rank"] // of_a_replica, count, one["rank"] % of_a_replica, of_a_replica]
    assert end.bits() == whole(*options)
    assert not end.redone()
    assert not end.of("peer_lost")


INSIDE = [("--checkpointed=blocks",), ("--checkpointed=each",), ("--compiled",), ("--compiled", "--checkpointed=each")]


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize(("workers", "size"), [(2, None), (4, 2)])
@pytest.mark.parametrize("inside", INSIDE, ids=" ".join)
def test_blocks_that_are_recomputed_or_compiled_have_the_bits_of_one_process(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], workers: int, size: int | None, inside: tuple[str, ...]
) -> None:
    """With what is in a step at once besides: a layer that only some shares use, tied weights, members without one."""
    if "--compiled" in inside and compiler_name() is None:
        pytest.skip("needs a C++ compiler")
    options = (*inside, *UNUSED, *FEW, *(PLAIN_LOOP if size else ()))
    assert run(workers, *options, size=size).bits() == whole(*options)


@pytest.mark.parametrize("rank", [0, 1])
def test_members_save_together_whatever_one_of_them_knows_of_the_newest_save(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], rank: int
) -> None:
    """One that takes the state for saved leaves the others waiting for its part, for as long as a group's deadline."""
    end = run(2, f"--held={rank}", "--on-bad=skip")
    assert end.bits() == whole("--on-bad=skip")
    assert {event["step"] for event in end.of("saved")} == {0, 2, 4, STEPS}


def wrong(end: Ended) -> list[str]:
    """What is said of workers that compute wrongly, or other bits than before."""
    causes = [event["cause"] for event in end.of("fault_detected")]
    return [cause for cause in causes if cause.startswith("elastic.errors.ComputesWrongly: ")]


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("loop", [(), PLAIN_LOOP, ("--fast",)], ids=["steps", "batches", "fast"])
@pytest.mark.parametrize(("since", "rank"), [(0, 1), (3, 2)])
def test_a_member_that_computes_wrongly_is_found_before_a_save(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], loop: tuple[str, ...], since: int, rank: int
) -> None:
    """Another worker passes one of its shares, too; all go on from the newest save, in which nothing of it is."""
    end = run(4, *loop, f"--wrong={since}:{rank}", size=2)
    (cause,) = wrong(end)
    assert f"rank {rank} (on " in cause.splitlines()[0]
    assert f"of step {since}," in cause.splitlines()[0]
    assert len(end.bits()) == 1
    if "--fast" not in loop:
        assert end.bits() == whole(*loop)


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(("workers", "size"), [(1, 1), (3, None), (4, 2)])
def test_a_resume_in_any_shape_computes_the_step_behind_the_save_again_or_is_refused(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], tmp_path: Path, workers: int, size: int | None
) -> None:
    """What was computed there before it was killed lies beside the save; another script gives another gradient."""
    with launched(tmp_path / "run", 2, f"--steps={STEPS}", "--kill=3:noted:0,1:SIGKILL") as launch:
        assert launch.finish(within_s=WITHIN_S)
    with launched(tmp_path / "run", workers, f"--steps={STEPS}", "--bad=2:1.001", size=size) as launch:
        assert launch.finish(within_s=WITHIN_S)
        assert "step 2 reads the same, and gives other gradients than before the run was ended" in launch.output
    assert run(workers, size=size).bits() == whole()


KILLS = [(moment, rank) for moment in MOMENTS for rank in range(4)]


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize(("moment", "rank"), KILLS)
def test_a_replica_that_loses_a_worker_at_any_moment_costs_at_most_a_step(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], moment: str, rank: int
) -> None:
    """The other one goes on as it is, and what comes in the lost one's place gets its state from there."""
    end = run(4, f"--kill=2:{moment}:{rank}:SIGKILL", "--pause=0.05", size=2)
    assert end.bits() == whole()
    assert end.output.count(" ended: SIGKILL") == 1
    assert end.redone() <= {(2, 1), (3, 1)}
    assert len({step for step, _ in end.redone()}) <= 1
    assert end.lived_through((2, 3) if rank < 2 else (0, 1))
    assert not end.read_from_storage()
    assert len(end.of("run_started")) in (4, 6), "at most the lost replica was started again"


@pytest.mark.parametrize("moment", ["forward", "applied"])
def test_a_loss_in_a_loop_over_batches_costs_at_most_a_step(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], moment: str
) -> None:
    end = run(4, *PLAIN_LOOP, f"--kill=2:{moment}:3:SIGKILL", "--pause=0.05", size=2)
    assert end.bits() == whole(*PLAIN_LOOP)
    assert len({step for step, _ in end.redone()}) <= 1
    assert end.lived_through((0, 1))
    assert not end.read_from_storage()


@pytest.mark.parametrize("lost", ["0,2", "3,4", "1,5"])
def test_two_replicas_of_three_may_be_lost_at_once(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], lost: str
) -> None:
    end = run(6, f"--kill=2:second:{lost}:SIGKILL", "--pause=0.05", size=2)
    assert end.bits() == whole()
    assert end.output.count(" ended: SIGKILL") == 2
    assert {step for step, _ in end.redone()} <= {2}
    (lives,) = {0, 1, 2} - {int(rank) // 2 for rank in lost.split(",")}
    assert end.lived_through((2 * lives, 2 * lives + 1))
    assert not end.read_from_storage()


def test_a_replica_that_joins_receives_the_state_while_the_others_compute(
    run: Run, whole: Callable[..., set[tuple[str, ...]]]
) -> None:
    """Each of its workers from those at its place. It has no share of that step, and takes part in it."""
    end = run(4, "--kill=1:second:3:SIGKILL", "--pause=0.2", "--steps=9", size=2)
    assert end.bits() == whole("--steps=9")
    newcomers = {event["worker"] for event in end.of("transfer") if event["role"] == "takes"}
    applied = [event for event in end.of("step_applied") if event["worker"] in newcomers]
    joined = min(event["step"] for event in applied)
    without = {event["worker"] for event in applied if event["step"] == joined and not range(*event["shares"])}
    assert len(newcomers) == 2
    assert without == newcomers
    assert {event["role"] for event in end.of("transfer") if event["worker"] not in newcomers} == {"gives"}


def test_a_first_save_of_which_half_is_written_is_made_again(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], tmp_path: Path
) -> None:
    """By all who save: there is none before it that the run could go on from."""
    end = run(4, "--torn", size=2)
    assert end.bits() == whole()
    assert "torn" in (tmp_path / "run.faults").read_text().lower()
    assert not end.of("peer_lost")
    assert len(end.of("run_started")) == 4


def test_where_every_replica_is_lost_the_run_goes_on_from_storage(
    run: Run, whole: Callable[..., set[tuple[str, ...]]]
) -> None:
    end = run(4, "--kill=3:second:1,2:SIGKILL", "--save-every=1", size=2)
    assert end.bits() == whole()
    assert end.read_from_storage()


@pytest.mark.parametrize("rank", [1, 2])
def test_a_member_that_hangs_is_replaced_with_its_replica(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], rank: int
) -> None:
    """Its mate waits for it in a pass, and the others for both: it is the one that has stopped that goes."""
    end = run(4, f"--kill=2:second:{rank}:SIGSTOP", "--pause=0.05", size=2, flags=["--hang-limit=2"])
    assert end.bits() == whole()
    assert end.lived_through((2, 3) if rank < 2 else (0, 1))
    assert not end.read_from_storage()


DEAF = ["0", "3", "0,1", "2,3", "0,2", "1,2,3"]


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("loop", [(), PLAIN_LOOP], ids=["steps", "batches"])
@pytest.mark.parametrize("deaf", DEAF)
def test_whoever_misses_the_word_completes_the_step(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], deaf: str, loop: tuple[str, ...]
) -> None:
    """No state travels, it does not come round again, and nobody ends: one who heard it is enough."""
    end = run(4, *loop, f"--deaf=2:{deaf}", size=2)
    assert end.bits() == whole(*loop)
    assert {step for step, _ in end.redone()} <= {3}
    assert not end.of("transfer")
    assert len(end.of("run_started")) == 4
    assert end.lived_through(range(4))


@pytest.mark.parametrize(
    "fault",
    [
        "--deaf=2:0,1,2,3",
        "--lacks=2:0",
        "--lacks=2:0,2",
        "--misses=2:0",
        "--misses=2:3",
        "--finds-out=2:0",
        "--finds-out=2:1,2",
    ],
)
def test_a_step_that_nobody_knows_to_be_whole_comes_again_on_all(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], fault: str
) -> None:
    """Also where one member alone finds out, and its mate waits for its word, or goes to its next pass."""
    end = run(4, fault, size=2)
    assert end.bits() == whole()
    assert end.redone() == {(2, 1)}
    assert not end.of("transfer")
    assert len(end.of("run_started")) == 4
    assert end.lived_through(range(4))


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("action", ["skip", "rollback"])
@pytest.mark.parametrize(("steps", "bad"), [(5, "3:nan"), (13, "11:1e6")], ids=["no number", "spike"])
@pytest.mark.parametrize("loop", [(), PLAIN_LOOP], ids=["steps", "batches"])
def test_bad_steps_are_passed_over_alike(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], action: str, steps: int, bad: str, loop: tuple[str, ...]
) -> None:
    """A replica's workers judge by a norm that all parts have gone into, and go back together."""
    options = (*loop, f"--on-bad={action}", f"--bad={bad}", f"--steps={steps}")
    end = run(4, *options, f"--kill={steps - 1}:forward:1:SIGKILL", "--pause=0.05", size=2)
    assert end.bits() == whole(*options)
    assert {event["step"] for event in end.of("passed_over")} == {int(bad.partition(":")[0])}
    assert run(3, *options, url="by three").bits() == whole(*options)


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(
    ("workers", "size", "options"),
    [(3, None, SHORT), (4, 2, SHORT), (4, 2, (*IN_PIECES, *PLAIN_LOOP)), (6, 3, ()), (6, 2, FEW)],
)
def test_fast_mode_computes_what_as_many_workers_do_that_hold_the_whole_model(
    run: Run, workers: int, size: int | None, options: tuple[str, ...]
) -> None:
    """Of the same batches, with the same random numbers; the sums are torch's own, in another order."""
    end = run(workers, "--fast", "--sgd", *UNUSED, *options, size=size)
    ((_, _, evaluated, steps),) = end.bits()
    assert steps == str(STEPS)
    ((_, _, expected, _),) = run(workers, "--fast", "--sgd", "--whole", *UNUSED, *options, url="whole").bits()
    assert float.fromhex(evaluated) == pytest.approx(float.fromhex(expected), rel=1e-5)


def test_a_loss_in_fast_mode_costs_at_most_a_step(run: Run) -> None:
    end = run(4, "--fast", "--kill=2:second:3:SIGKILL", "--pause=0.05", "--micro-batch-size=1", size=2)
    assert len(end.bits()) == 1
    assert {step for step, _ in end.redone()} == {2}
    assert end.lived_through((0, 1))
    assert not end.read_from_storage()


RESUMES = [
    ((3, None), (None, "whole"), (2, None), (None, None), (4, 2)),
    ((None, "whole"), (4, 2), (3, None), (6, 3), (None, "whole")),
]


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("shapes", RESUMES, ids=["saved by 3", "saved by a plain process"])
@pytest.mark.parametrize("options", [(), (*UNUSED, *SHORT)], ids=["plain", "unused and short"])
def test_what_one_shape_has_saved_is_resumed_in_any_other(
    run: Run, whole: Callable[..., set[tuple[str, ...]]], shapes: Sequence[Any], options: tuple[str, ...]
) -> None:
    for number, (workers, size) in enumerate(shapes, start=1):
        given = [*options, "--whole"] if size == "whole" else options
        end = run(workers, *given, f"--steps={number}", size=None if size == "whole" else size)
        assert {one["steps"] for one in end.results} == {number}
    assert end.bits() == whole(*options)


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(("bug", "fault"), [("no vote", "--finds-out=2:0"), ("word first", "--lacks=2:0,2")])
def test_an_engine_with_a_planted_bug_does_not_pass(tmp_path: Path, bug: str, fault: str) -> None:
    """Without a vote a member waits in its next pass for its mate, for good; a word that comes before the sums is that
    of workers which cannot update, and a step is lost of which no replica holds all. Either costs workers, where the
    engine loses none."""
    with launched(
        tmp_path / "run", 4, fault, f"--bug={bug}", f"--steps={STEPS}", size=2, flags=["--hang-limit=2"]
    ) as it:
        it.wait_for(
            lambda: " is stuck" in it.output or " ended: " in it.output, "a worker that is lost", within_s=WITHIN_S
        )
