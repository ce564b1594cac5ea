"""What a script keeps beside the run is looked for while it waits for its next step, or batch; and when.

In a loop over batches that is refused which depends on how many of them a worker has. A loop over steps makes the same
of it on each worker; there it is only lost with a worker, and not given to one that joins. Where it is made of the
model each time that it is used, as an evaluation's copy, that does no harm, and nobody sees from here whether it is: so
it is told of, once. But a module that changes, and is then asked in a body, is a teacher: that is refused.

A look takes some µs for each module of the run's, and of the script's that is looked at: so it is made in a process's
first steps, where an epoch begins, and now and then. Whatever fails in one is passed over: it must not end a run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from elastic.config import Config
from elastic.errors import StepError
from elastic.loop.refusals.kept_copies import KeptCopies
from elastic.loop.refusals.loop_variables import LoopVariables
from elastic.loop.refusals.other_averages import OtherAverages
from elastic.loop.refusals.other_modules import OtherModules, Unhanded
from elastic.loop.refusals.other_optimizers import OtherOptimizers
from elastic.loop.refusals.wrapped_optimizers import WrappedOptimizers
from elastic.state.modules import modules, roots

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST = 3  # steps
_EVERY, _EVERY_OF_STEPS = 16, 64  # a loop over steps has epochs that it does not name


class Looks:
    """
    in_body  whether the script has a batch in hand, and has not passed it back
    say      tells people, once for all workers; `warn`, of this worker alone
    """

    def __init__(
        self, config: Config, *, in_body: Callable[[], bool], say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        extra = config.extra
        handed = (*config.models.values(), *config.schedulers.values(), *extra.values(), *config.optimizers.values())
        if config.scaler is not None:
            handed += (config.scaler,)

        def known() -> dict[str, torch.nn.Module]:
            return roots(config.models, extra)

        self._in_body = in_body
        self._thread = threading.get_ident()
        self._known = known
        self._say = say
        self._other_modules = OtherModules(known, extra)
        self._other_averages = OtherAverages(config.parameters, lambda: _buffers(config), extra)
        self._other_optimizers = OtherOptimizers(config.parameters, lambda: [*config.optimizers.values()])
        self._wrapped_optimizers = WrappedOptimizers(config.optimizers.values(), handed)
        self._kept_copies = KeptCopies(known, extra, tell=say)
        self._loop_variables: LoopVariables | None = LoopVariables(
            lambda: [*handed, *(one for *_, one in modules(known()))],
            by_share=not config.one_batch_a_step,
            say=say,
            warn=warn,
        )
        self._steps = self._last = 0
        self._first = 0, True
        self._closely = True
        self._told: set[str] = set()

    def open(self) -> Callable[[], None]:
        """Returns what ends it."""
        close = self._other_modules.open()

        def end() -> None:
            close()
            for module, (asks, _) in [*_asked.items()]:
                if asks == self._asks:
                    _asked.pop(module)
                    _hooks.pop(module).remove()

        return end

    def begin(self, step: int, *, begins_epoch: bool, over_steps: bool) -> bool:
        """Whether there is to be a look in this step of this process."""
        self._steps += 1
        if self._steps == 1:
            self._first = step, begins_epoch
        if over_steps:
            begins_epoch = begins_epoch and self._steps - self._last >= _EVERY
        self._closely = self._steps <= _FIRST or begins_epoch
        due = self._steps % (_EVERY_OF_STEPS if over_steps else _EVERY) == 0
        if not (self._closely or due or self._kept_copies.looks_again):
            return False
        self._last = self._steps
        return True

    def at_batches(self, step: int, *, by_epochs: bool, joined_as: int | None) -> None:
        """In that step.

        by_epochs  the script has a loop over epochs, and for each of them another one over batches
        joined_as  this worker's rank as it came to others; None: it began with them
        Raises StepError for what would be silently different.
        """
        with _passed_over():
            for found in self._other_modules.changed(step, closely=self._closely):
                raise found.by_batches()
        with _passed_over():
            self._kept_copies.look(step)
        self._look_at_variables(over_steps=False, by_epochs=by_epochs, joined_as=joined_as)
        if self._steps > _FIRST:
            self._other_averages.forget()
            return
        with _passed_over():
            for found in self._other_averages.changed(step):
                raise found.by_batches()
        with _passed_over():
            self._wrapped_optimizers.look()

    def at_steps(self, step: int, *, joined_as: int | None) -> None:
        """Likewise. Raises nothing; a module that has changed does from here on, where it is asked in a body."""
        with _passed_over():
            for found in self._other_modules.changed(step, closely=self._closely):
                self._tell(found)
        with _passed_over():
            self._kept_copies.look(step)
        self._look_at_variables(over_steps=True, by_epochs=False, joined_as=joined_as)
        with _passed_over():
            for name, kind, of in self._other_optimizers.new():
                self._say(
                    f"{name} is another optimizer of {of} than the run has, a new {kind}\n"
                    "  found  the run steps the one that it was handed; unless update= steps this one, it has no "
                    "effect\n"
                    "  next   change the run's own between steps: its param_groups, its state, add_param_group()"
                )
        if self._steps > _FIRST:
            self._other_averages.forget()
            return
        with _passed_over():
            for found in self._other_averages.changed(step):
                self._tell(found)

    def _look_at_variables(self, *, over_steps: bool, by_epochs: bool, joined_as: int | None) -> None:
        if self._steps > 1 and self._loop_variables is not None:  # a process's first step is begun sooner without it
            first, begins_epoch = self._first
            whole = begins_epoch and by_epochs
            self._loop_variables.look(first, whole_turns=whole, over_steps=over_steps, joined_as=joined_as)
            self._loop_variables = None

    def _tell(self, found: Unhanded) -> None:
        if found.name not in self._told:
            self._told.add(found.name)
            self._say(found.by_steps())
        module = None if found.module is None else found.module()
        if module is not None:
            with _passed_over():  # one of torch.jit's takes no hooks
                self._refuse_in_bodies(found, module)

    def _refuse_in_bodies(self, found: Unhanded, module: torch.nn.Module) -> None:
        """It, and what of it has changed: a script may call a part of it."""
        own = {id(one) for *_, one in modules(self._known())}
        places = {""}
        for name in found.names:
            *above, _ = name.split(".")
            places |= {".".join(above[:depth]) for depth in range(1, len(above) + 1)}
        for one in map(module.get_submodule, sorted(places)):
            if id(one) not in own and one not in _asked:
                _hooks[one] = one.register_forward_pre_hook(_refuse_in_body)
                _asked[one] = self._asks, found

    def _asks(self) -> bool:
        return threading.get_ident() == self._thread and self._in_body()


_asked: WeakKeyDictionary[torch.nn.Module, tuple[Callable[[], bool], Unhanded]] = WeakKeyDictionary()
_hooks: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()


def _refuse_in_body(module: torch.nn.Module, _: Any) -> None:
    """A hook of modules that were told of. Of a copy, or one that was pickled, nothing is known."""
    if torch.compiler.is_compiling():  # the compiler traces hooks; what it makes of the module asks nobody
        return
    asks, found = _asked.get(module, (None, None))
    if asks is not None and found is not None and asks():
        raise found.by_steps_that_ask()


def _buffers(config: Config) -> dict[str, torch.Tensor]:
    """Of one model, by the names of its state_dict."""
    return dict(next(iter(config.models.values())).named_buffers()) if len(config.models) == 1 else {}


@contextmanager
def _passed_over() -> Iterator[None]:
    """What an object of the script's does when it is looked at, it may do by itself, too."""
    try:
        yield
    except StepError:
        raise
    except Exception:
        return
