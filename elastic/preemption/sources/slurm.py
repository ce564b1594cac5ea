"""Slurm: the end of the job's allocation. What Slurm says by a signal (--signal, preemption) comes as one.

`squeue` says how long the job has left, by no clock of ours, and follows a limit that is changed meanwhile. Where
there is none, SLURM_JOB_END_TIME stands in, which follows nothing. At the limit a job gets SIGTERM, and SIGKILL after
KillWait (30 s by default).
Source: sbatch(1), squeue(1), slurm.conf(5).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping

from elastic.errors import ConfigError
from elastic.preemption.firmware import Firmware
from elastic.preemption.notice import Notice
from elastic.preemption.sources.command_output import CommandFailed, output_of
from elastic.preemption.sources.source import Source, SourceFailed

LEAD_S = 120.0
_LEFT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_JOB = re.compile(r"\d+(_\d+)?")
_UNBOUNDED = ("UNLIMITED", "NOT_SET")
_EVERY_S = 300.0  # the controller of a large site is not to be asked often
_WITHIN_S = 10.0


class Slurm(Source):
    """The end of a job of Slurm's as a source.

    environ  of a job: SLURM_JOB_ID
    lead_s   how long before the end to leave
    """

    name = "slurm"
    variables = ("SLURM_",)
    found = "inside a job"

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        lead_s: float = LEAD_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._job = _job(environ)
        self._end = environ.get("SLURM_JOB_END_TIME", "")
        self._starts = environ.get("SLURM_RESTART_COUNT", "")
        self._lead_s = lead_s
        self._clock = clock
        self._wall = wall
        self._wanted = True
        self.every_s = 0.0

    @classmethod
    def of(cls, rest: str, environ: Mapping[str, str]) -> Slurm:
        """Make the source. rest: how many seconds before the end to leave."""
        return cls(environ, lead_s=_seconds(rest) if rest else LEAD_S)

    @classmethod
    def is_here(cls, machine: Firmware, environ: Mapping[str, str]) -> bool:
        return bool(environ.get("SLURM_JOB_ID"))

    def look(self) -> list[Notice]:
        """Tell of the job's end once it is near; set when to ask again."""
        left_s = self._left_s()
        if left_s is None:
            self.every_s = _EVERY_S
            return []
        if left_s > self._lead_s:
            # Not only when it is time: a limit may be changed meanwhile.
            self.every_s = min(_EVERY_S, left_s - self._lead_s)
            return []
        # Often from now on: a limit that is raised withdraws the notice.
        self.every_s = 30.0
        again = f", which was started again {self._starts} times before" if self._starts.isdigit() else ""
        why = f"Slurm's job {self._job} ends{again}"
        return [Notice(source=self.name, id="end", why=why, by_s=self._clock() + left_s)]

    def abort(self) -> None:
        self._wanted = False

    def _left_s(self) -> float | None:
        """Return the seconds that the job has left; None: as long as it likes. Raises SourceFailed."""
        if _JOB.fullmatch(self._job):
            try:
                asked = f"squeue --noheader --jobs={self._job} --format=%L 2>/dev/null"
                return left_s(output_of(asked, within_s=_WITHIN_S, wanted=lambda: self._wanted))
            except (CommandFailed, ValueError, OSError):
                pass  # it is said below, unless the environment knows
        if self._end.isdigit():
            return max(0.0, int(self._end) - self._wall())
        self.every_s = _EVERY_S
        raise SourceFailed(
            f"squeue does not say how long job {self._job!r} has left, and SLURM_JOB_END_TIME is not set: its end "
            "comes as SIGTERM only\n"
            "  next  put squeue on the PATH, or have Slurm send a signal earlier: sbatch --signal=TERM@120"
        )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"slurm:{text}; expected seconds before the end, above 0")
    return seconds


def _job(environ: Mapping[str, str]) -> str:
    """Return the id by which squeue tells of this job alone: that of one task of an array is the whole array's, too."""
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID", "")


def left_s(said: str) -> float | None:
    """Read squeue's %L, a line for each component of a job: return the least of what they have left.

    Each is [days-][hours:]minutes:seconds. None: there is no limit. Raises ValueError for anything else.
    """
    bounded = [left for line in said.strip().splitlines() or [""] if (left := _line_s(line)) is not None]
    return min(bounded, default=None)


def _line_s(line: str) -> float | None:
    """Read one line of %L; None: there is no limit. Raises ValueError."""
    text = line.strip()
    if text in _UNBOUNDED:
        return None
    found = _LEFT.fullmatch(text)
    if found is None:
        raise ValueError(f"squeue says {text[:80]!r}")
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
