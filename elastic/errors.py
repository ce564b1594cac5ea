"""What can go wrong, as one small tree. Each line says what the caller does.

    ElasticError
      ConfigError         the user can fix it before the run starts
      DataFileError       a data file is not what it was opened as, or not whole; write it again, or correct the URL
      WrittenByNewer      a later version of this package wrote it; read it by that one
      IdentityMismatch    the saved run is another run: fix the named fields, or accept them by name
      StartFailed         rank 0 could not start the run; its message, repeated here, says why
      StepError           the training loop breaks a rule of `Step`; fix the script
        CollectiveMismatch  the workers' scripts went different ways; fix the script
        NotLetIn            one that joins gives other bits than the others; the run goes on without it
        ComputesWrongly     most workers agree that this one is wrong; it ends, and is replaced
      CollectiveFailed    an exchange failed and no peer was lost: a fault of its tensors, or of ours
      RendezvousTimeout   too few workers by the deadline; the launcher restarts or the user looks
      ExampleError        the dataset or its collate function raised; fix it, or the example
      LoaderError         a loader process died; look at the machine's memory
      LoaderTimeout       the dataset's storage hangs; look at it
      AuditFailed         the ranks' loaders read what training should not; repair them (data/audit.py)
      AuditTimeout        some rank did not take part in an audit; call it on all (data/audit.py)
      PeerLost            an exchange failed; the loop forms a new view and redoes the step
      Stranded            the others stand where this worker cannot be brought; it exits and is replaced
      Evicted             a newer claim was taken: the run goes on elsewhere; exit, do not retry
      SavesFailed         too many saves in a row failed; exit, repair the storage, start again
      BadStep             a step's loss or gradient is not finite, or a spike, and on_bad= says to end there
      WeightsNotFinite    what was about to be saved is not finite; what was saved before stays the newest

Only loop/recovery.py turns `PeerLost` into a new view, or into a restart where the launcher can do no better.
"""

from __future__ import annotations

from typing import Any

CANNOT_DO = "elastic docs what-a-run-cannot-do"
UNTOUCHED = "  state  nothing was applied; the model is as it was before this step\n"
"""What a message says of the state where a step is refused."""


class ElasticError(Exception):
    """The base of everything that this package raises on purpose."""


class ConfigError(ElasticError, ValueError):
    """An argument, a script or an environment that cannot work, found before training starts."""


class DataFileError(ElasticError, ValueError):
    """A data file is not there, is not what it was opened as, is not whole, or has changed since."""


class WrittenByNewer(ElasticError, ValueError):
    """What a run has left beside its checkpoints was written by a later version of this package.

    Attributes:
        version: In which it is written.
    """

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"{what} is of version {version}; this elastic-exact reads up to {known}\n"
            "  state  the run is as it was\n"
            "  next   use the version of elastic-exact that wrote it, or a later one"
        )
        self.version = version


class IdentityMismatch(ElasticError):
    """Something that the bits of the result depend on differs from what the run was started with.

    Attributes:
        fields: Name -> (found here, recorded by the run).
    """

    def __init__(self, message: str, fields: dict[str, tuple[object, object]]) -> None:
        super().__init__(message)
        self.fields = fields


class StartFailed(ElasticError):
    """Another worker, the coordinator, could not start the run. Its own log has the full story."""


class StepError(ElasticError, RuntimeError):
    """The loop's body did what a step cannot carry, such as a second backward for one share."""


class CollectiveMismatch(StepError):
    """The workers' scripts went different ways: one evaluates, say, while the others take the next step.

    Attributes:
        doing: Rank -> what it was about to do, and where its script called for it.
    """

    def __init__(self, message: str, *, doing: dict[int, str]) -> None:
        super().__init__(message)
        self.doing = doing


class NotLetIn(StepError):
    """This worker joined, and gives other bits than the others: it has no part in the run any more.

    That shows in the first step that it has a part in; or its optimizers are set otherwise than theirs since it joined.
    """


class ComputesWrongly(StepError):
    """This worker gives other bits than most, or holds others: it ends, and another one takes its place.

    Attributes:
        host: The machine's name.
        rank: This worker's, in the view in which that was found.
        exit_status: That of its process under `elastic run`.
    """

    exit_status = 77

    def __init__(self, message: str, *, host: str, rank: int) -> None:
        super().__init__(message)
        self.host = host
        self.rank = rank


class CollectiveFailed(ElasticError, RuntimeError):
    """A collective failed while all peers were there, so that another view would not help."""


class RendezvousTimeout(ElasticError, TimeoutError):
    """The workers of a view did not all arrive by the deadline.

    Attributes:
        missing: The ranks that did not arrive.
    """

    def __init__(self, message: str, missing: list[int]) -> None:
        super().__init__(message)
        self.missing = missing


class ExampleError(ElasticError, RuntimeError):
    """The dataset or the collate function raised. Fix it, or the example; the message ends with its traceback.

    Attributes:
        epoch: That of the example; None where the collate function failed.
        index: That of the example, likewise.
        read_for: What it was read for, such as "step 12"; None where the loader's caller has not said.
        may_be_left_out: Whether `on_bad_example="skip"` would have helped.
        trace: That of a loader process, as text; "" where the error has a cause to show.
    """

    def __init__(self, message: str, *, epoch: int | None = None, index: int | None = None, trace: str = "") -> None:
        super().__init__(message)
        self.epoch = epoch
        self.index = index
        self.trace = trace
        self.read_for: str | None = None
        self.may_be_left_out = False

    def __str__(self) -> str:
        read_for = "" if self.read_for is None else f"\n  read for  {self.read_for}"
        state = "nothing was applied with it; the model is as it was before"
        trace = f"\n\nIn a loader process:\n{self.trace}" if self.trace else ""
        return f"{super().__str__()}{read_for}\n  state     {state}\n  next      {self._next()}{trace}"

    def _next(self) -> str:
        alone = "that function, or its examples" if self.index is None else f"it; dataset[{self.index}] alone shows it"
        if self.may_be_left_out and self.index is not None:
            alone += '. data=elastic.Data(on_bad_example="skip") leaves such examples out'
        return f"repair {alone}"


class LoaderError(ElasticError, RuntimeError):
    """A loader process died. The worker cannot go on; restart it, and look at the machine's memory."""


class LoaderTimeout(ElasticError, TimeoutError):
    """No batch came from the loader processes by the deadline.

    Attributes:
        request: The examples that were waited for, as data_plan.py has them.
    """

    def __init__(self, message: str, *, request: Any) -> None:
        super().__init__(message)
        self.request = request


class PeerLost(ElasticError, ConnectionError):
    """A collective failed: a peer died, was cut off, or did not answer by the deadline.

    Attributes:
        step: Index of the step whose exchange failed, or None outside a step.
        phase: What was being exchanged, in words.
    """

    def __init__(self, message: str, *, step: int | None, phase: str) -> None:
        super().__init__(message)
        self.step = step
        self.phase = phase


class Stranded(ElasticError):
    """The other workers stand where this one cannot be brought; a newcomer in its place can."""


class Evicted(ElasticError):
    """A newer claim was taken: the run goes on elsewhere, and this worker writes nothing more."""


class SavesFailed(ElasticError):
    """So many saves in a row failed that the run stops rather than compute what may be lost.

    Attributes:
        saved: Steps applied in the newest checkpoint of this coordinator, or None where it has made none.
        step: Steps applied when the run stopped.
    """

    def __init__(self, message: str, *, saved: int | None, step: int) -> None:
        super().__init__(message)
        self.saved = saved
        self.step = step


class BadStep(ElasticError):
    """A step's loss or gradient is not finite, or a spike, and the run ends before its update, as `on_bad=` says.

    Attributes:
        step: Its index.
        why: What was found, in words.
    """

    def __init__(self, message: str, *, step: int, why: str) -> None:
        super().__init__(message)
        self.step = step
        self.why = why


class WeightsNotFinite(ElasticError):
    """A weight is infinite or not a number where the state was about to be saved. It is not saved.

    Attributes:
        parameter: The name of the first such weight.
        step: How many steps are applied.
    """

    def __init__(self, message: str, *, parameter: str, step: int) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.step = step
