"""Notes what a step has read and computed, for whoever resumes there to compare with it (storage/step_digest.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from elastic.data.data_plan import StepPlan
from elastic.data.example_digest import digest_at
from elastic.group.sums import READ, Agreed
from elastic.loop.session import Session
from elastic.loop.steps.reading import Contribution, Reader
from elastic.loop.storage.step_digest import StepDigest, reads_otherwise


@dataclass(frozen=True)
class Prefixes:
    """Of each parameter a digest of it and those before it, of gradients and of weights; see bits.digest_of."""

    parameters: Sequence[str] = ()
    gradients: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


class StepNote:
    """What is noted of one step.

    computed  once it is exchanged: what whoever resumes there is to find; None: nobody will, or it is not known
    prefixes  where `computed` has their digests: of each of these parameters and those before it
    """

    def __init__(self, session: Session, plan: StepPlan) -> None:
        self._session = session
        self._config = session.context.config
        self._plan = plan
        self.computed: StepDigest | None = None
        self.prefixes = Prefixes()

    @property
    def is_taken(self) -> bool:
        """Return whether this step is noted: the one behind a save, and the run's last."""
        return self._plan.index in (self._session.state.saved, self._session.state.total_steps - 1)

    def read(self, own: Contribution, batch: Any, share: int, micro: int, ended: int) -> None:
        """Add a batch's digest to what the step's sums say of what was read; ended: how many shares end with it."""
        if (place := digest_at(batch, share, micro)) is not None:
            own.add({READ: np.array([place, ended, 1])})

    def exchanged(self, agreed: Agreed) -> None:
        """Note what the step has given, and compare it behind a resume. Raises IdentityMismatch."""
        self.computed, self.prefixes = None, Prefixes()
        if self.is_taken:
            sync, gradients = self._session.gradient_sync, 0
            if self._session.repeats and not agreed.left_out:
                self.prefixes = Prefixes(sync.parameter_names)
                gradients = sync.digest_of_gradients(self.prefixes.gradients)
            self.computed = StepDigest.of_step(self._plan, agreed.read, gradients, agreed.first)
            self._session.restorer.check_step(self.computed)

    def applied(self, weights: Iterable[torch.Tensor]) -> None:
        """Note the weights behind the step's update, and compare them behind a resume. Raises IdentityMismatch."""
        if self.computed is not None and self.computed.gradients:
            digest = self._session.gradient_sync.digest_of(weights, self.prefixes.weights)
            self.computed = replace(self.computed, weights=digest)
        self._session.restorer.applied(self.computed)

    def compare_with_end(self, reader: Reader) -> None:
        """Warn if the last step of a run that is made longer reads other values; nobody has read the one behind it."""
        last = self._session.restorer.last_read()
        if last is None or not last.shares or self._config.streams is not None or self._config.compute.mode != "exact":
            return
        plan, found = self._session.step_plan(last.step), [0, 0]
        for share in range(len(plan.sizes)):
            for micro, examples in enumerate(plan.micro_batches(share)):
                place = digest_at(reader.examples(examples), share, micro)
                found = [found[0] + (place or 0), found[1] + 1]
        if found != [last.digest, last.batches]:
            self._session.context.console.warn(reads_otherwise(last.step))
