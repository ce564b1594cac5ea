"""The update of a loop that steps its optimizers itself: which of its calls count, and when the update is over.

    before a step's gradients are exact   optimizer.step, scaler.unscale_, .step and .update do nothing
    from then on                          they do what they do; the update is over when every optimizer that was given a
                                          gradient has stepped, or, with a scaler, when it is updated (it skips the
                                          optimizers on inf, on all workers alike)
    where a peer's state came instead     the optimizers and the scaler do nothing, once; the rest of the body runs
    where the step is passed over         likewise, and the schedulers do nothing either until the body's end

Optimizers and scalers get a `step` of their own while the loop runs. Schedulers are schedule.py's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from elastic.config import Config
from elastic.errors import CANNOT_DO, UNTOUCHED, StepError
from elastic.group.sums import Agreed
from elastic.loop.plain.schedule import OwnSchedules, check_scheduled
from elastic.loop.plain.step import PlainStep
from elastic.state.clipping import let_nothing_be_clipped

_of_runs: WeakSet[torch.optim.Optimizer] = WeakSet()


def known_as_of_a_run(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Know an optimizer as of a run that is open here, which saves and gives what it trains; return what ends that."""
    _of_runs.add(optimizer)
    return functools.partial(_of_runs.discard, optimizer)


class OwnUpdate:
    """The update that the loop's own code carries out.

    begins    is called with an update's beginning
    ends      is called when it is over, with what the exchange gave
    stepping  a context for an optimizer's own step
    was_asked the loop's own code has read exact gradients, as `run.updating` lets it
    """

    def __init__(
        self,
        config: Config,
        *,
        begins: Callable[[], None],
        ends: Callable[[PlainStep, Agreed], None],
        stepping: Callable[[torch.optim.Optimizer], AbstractContextManager[None]],
    ) -> None:
        self._config = config
        self._begins = begins
        self._ends = ends
        self._stepping = stepping
        self._step: PlainStep | None = None
        self._agreed: Agreed | None = None
        self.was_asked = False
        self._given: set[str] = set()  # the optimizers that the exchange gave a gradient
        self._stepped: set[str] = set()
        self._schedules = OwnSchedules(config.schedulers, self._is_past_the_exchange)
        self._stepped_in: WeakKeyDictionary[torch.optim.Optimizer, Any] = (
            WeakKeyDictionary()
        )  # body, of others' optimizers
        self._undo: list[Callable[[], None]] = []
        self._ungated = False

    def install(self) -> None:
        """Replace the methods whose calls count at times. Raises ConfigError for an optimizer's unknown schedule."""
        check_scheduled(self._config)
        let_nothing_be_clipped()
        for name, optimizer in self._config.optimizers.items():
            self._replace(optimizer, "step", self._gated_step(name, optimizer))
            self._replace(optimizer, "zero_grad", self._gated_zero_grad(name, optimizer))
        self._schedules.install()
        if self._config.update.scaler is not None:
            for name in ("unscale_", "step", "update"):
                self._replace(self._config.update.scaler, name, self._gated_scaler(name))

        self._undo.append(register_optimizer_step_pre_hook(self._check_known).remove)

    def remove(self) -> None:
        self._ungated = True
        self._schedules.remove()
        while self._undo:
            self._undo.pop()()

    def asks_whether_open(self) -> bool:
        """Return whether `.grad` is exact, and waits for the loop's own code, which asks in order to read it.

        What it makes of it belongs to the update: a worker that takes the step over has no gradients to make it of.
        """
        self.was_asked |= self._agreed is not None
        return self._agreed is not None

    def next_step(self, step: PlainStep | None) -> None:
        self._step, self._stepped = step, set()
        self._schedules.next_step(step)

    def opens(self, step: PlainStep, agreed: Agreed) -> None:
        """Begin the update: gradients are exact."""
        self._agreed, self.was_asked = agreed, False
        self._given = {name for name, one in self._config.optimizers.items() if _has_gradients(one)}
        self._begins()

    def check_closed(self, step: PlainStep) -> None:
        """Raise StepError where the loop's body has left the update undone, or a schedule behind."""
        if self._agreed is not None:
            missing = self._missing()
            call = f"step() of {', '.join(map(repr, missing))}" if missing else "scaler.update()"
            raise StepError(
                f"the loop's body ended with the gradients of step {step.current.index} exact, and without {call}\n"
                "  state  the update is not complete; nothing of it was saved\n"
                "  next   step every optimizer after every backward: until a step's last share that does nothing, and "
                "one that was\n         given no gradient need not. The run adds gradients up by itself: batch_size= "
                "is what one update counts,\n         Data(micro_batch_size=) bounds memory"
            )
        self._schedules.check_closed(step)

    def notes(self, error: BaseException) -> Iterator[str]:
        """Yield what this has to say to an error of the loop's own code."""
        if self._agreed is not None or self._step is None or self._step.current.applied:
            return
        is_none = isinstance(error, (AttributeError, TypeError)) and "NoneType" in str(error)
        if is_none or (isinstance(error, RuntimeError) and "non-empty" in str(error)):  # torch.stack of no gradients
            yield (
                "elastic: .grad is None until a step's last share: guard what reads it with `if run.updating:`; for "
                f"SAM, or gradients of single examples, see {CANNOT_DO}"
            )
        if isinstance(error, AssertionError) and "inf checks" in str(error):
            yield "elastic: hand the scaler over: update=Update(scaler=scaler)"

    # what the loop calls

    def _check_known(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Raise StepError for an optimizer that the run does not know.

        It is of the model's parameters, or of others that are trained from one body to the next. One that is made in a
        body, and steps in that alone, keeps nothing.
        """
        if any(optimizer is known for known in [*self._config.optimizers.values(), *self._config.extra.values()]):
            return
        names = {id(parameter): name for name, parameter in self._config.parameters().items()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in names:
                    raise StepError(
                        f"a {type(optimizer).__name__} that the run does not know steps {names[id(parameter)]}\n"
                        "  found  its state would be neither saved nor given to newcomers, and it would step in every "
                        f"body\n{UNTOUCHED}"
                        "  next   hand it over: Run(optimizer={'first': ..., 'second': ...}), and step it behind "
                        "backward: in a\n         hook of the backward pass no gradient is the whole batch's yet "
                        f"({CANNOT_DO})"
                    )
        if optimizer in _of_runs:
            return
        step = None if self._step is None else self._step.current
        body = step and (step.index, step.attempt, step.batch.share, step.batch.piece)
        if self._stepped_in.setdefault(optimizer, body) != body:
            raise _stranger(optimizer)

    def _gated_step(self, name: str, optimizer: torch.optim.Optimizer) -> Any:
        """Return a `step` that steps the optimizer where that is due."""
        original = optimizer.step

        @functools.wraps(original)
        def step(_: Any, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
            if self._ungated:
                return original(*(() if closure is None else (closure,)), *args, **kwargs)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
                args = (functools.partial(_same, loss), *args)
            if not self._is_due(name):
                return loss
            if name in self._given and not _has_gradients(optimizer):
                self._refuse_no_gradients(name)
            with self._stepping(optimizer):
                result = original(*args, **kwargs)
            self._has_stepped(name)
            return result

        return step

    def _gated_zero_grad(self, name: str, optimizer: torch.optim.Optimizer) -> Any:
        """Return a `zero_grad` that refuses to clear exact gradients before their optimizer's step."""
        original = optimizer.zero_grad

        @functools.wraps(original)
        def zero_grad(_: Any, *args: Any, **kwargs: Any) -> None:
            if self._agreed is not None and name not in self._stepped and not self._ungated:
                raise self._gradients_gone(f"zero_grad() of {name!r} was called")
            if self._ungated or _has_gradients(optimizer):  # at most once a step: torch's looks take longer
                original(*args, **kwargs)

        return zero_grad

    def _gated_scaler(self, name: str) -> Any:
        """Return a method of the scaler's that does nothing until gradients are exact."""
        scaler = self._config.update.scaler
        original = getattr(scaler, name)

        @functools.wraps(original)
        def gated(_: Any, *args: Any, **kwargs: Any) -> Any:
            if self._ungated:
                return original(*args, **kwargs)
            if self._agreed is None:
                if name == "update" and (step := self._step) is not None and (step.current.taken or step.passed_over):
                    step.leave_to_the_script()
                return None
            if name == "update" and self._missing():
                return None  # check_closed says which is missing
            result = original(*args, **kwargs)
            if name == "step":
                self._stepped |= {key for key, one in self._config.optimizers.items() if one is args[0]}
            if name == "update":
                self._close()
            return result

        return gated

    # the state of the update

    def _is_past_the_exchange(self) -> bool:
        step = self._step
        if self._agreed is not None or step is None:
            return True
        return step.current.applied and (step.over or step.passed_over is None)

    def _is_due(self, name: str) -> bool:
        """Return whether a call of this optimizer's step counts. Raises StepError where none is due."""
        step = self._step
        if self._agreed is None and step is not None and not step.current.applied:
            return False
        if step is None or name in self._stepped:
            again = "" if step is None else f" a second time in step {step.current.index}"
            raise StepError(
                f"optimizer.step() was called{again or ' outside the loop'}, and each step of a run updates once\n"
                "  state  what was applied stays; nothing is lost\n"
                "  next   call it once for each batch of run.batches()"
            )
        if self._agreed is None:  # taken over: the state that came has it; passed over; or it was given no gradient
            self._stepped.add(name)
            if self._config.update.scaler is None:
                step.leave_to_the_script()
            return False
        return True

    def _missing(self) -> list[str]:
        """Return the optimizers whose step the update lacks: of those with a gradient, or of all where none has one."""
        due = self._given or set(self._config.optimizers)
        return sorted(due - self._stepped)

    def _has_stepped(self, name: str) -> None:
        self._stepped.add(name)
        if self._config.update.scaler is None and not self._missing():
            self._close()

    def _close(self) -> None:
        """End the update, which is complete."""
        step, agreed, self._agreed = self._step, self._agreed, None
        assert step is not None
        assert agreed is not None
        self._ends(step, agreed)

    def _refuse_no_gradients(self, name: str) -> None:
        raise self._gradients_gone(f"no parameter of optimizer {name!r} has a gradient")

    def _gradients_gone(self, found: str) -> StepError:
        """Return the error for exact gradients that are gone before their optimizer has stepped."""
        at = "" if self._step is None else f" of step {self._step.current.index}"
        state = UNTOUCHED
        if self._stepped:
            stepped = ", ".join(map(repr, sorted(self._stepped)))
            state = f"  state  {stepped} has stepped: the update is torn; nothing of it was saved\n"
        return StepError(
            f"{found} between the last backward pass{at} and its optimizer.step()\n{state}"
            "  next   call zero_grad() before backward, or after that optimizer's step()"
        )

    def _replace(self, thing: Any, name: str, function: Any) -> None:
        """Replace a method by one of the object's own, until `remove`."""
        had = thing.__dict__.get(name)
        ours = MethodType(function, thing)
        setattr(thing, name, ours)

        def undo() -> None:
            if thing.__dict__.get(name) is not ours:
                return  # whoever has wrapped it in the meantime keeps it: it lets all pass then
            if had is None:
                delattr(thing, name)
            else:
                setattr(thing, name, had)

        self._undo.append(undo)


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether any parameter of the optimizer has a gradient."""
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _same(value: Any) -> Any:
    return value


def _stranger(optimizer: torch.optim.Optimizer) -> StepError:
    """Return the error for an optimizer that trains from body to body what none of the run's models has."""
    return StepError(
        f"a {type(optimizer).__name__} that the run does not know steps in one body of the loop after another, "
        "and what it trains\nis in none of the run's models\n"
        "  found  it would step once a share, by that share's gradient alone, on each worker by others; and be "
        "neither saved\n         nor given to newcomers\n"
        "  state  what the run has applied stays\n"
        "  next   hand both over: Run(model={'first': ..., 'second': ...}, optimizer={'first': ..., "
        "'second': ...})"
    )
