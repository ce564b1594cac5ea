"""Shows what the shares of one step come to, as the step is computed again: the observer of `elastic replay`.

It hooks a run from outside: the losses that are passed back, each parameter's gradient as a share's backward pass gives
it, the batches. What it has seen is in a file as the step's exchange begins, and once more with the step's line of the
record; then the process ends, before the script's code behind the step.
"""

from __future__ import annotations

import json
import os
import pdb  # noqa: T100  what --pdb asks for
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import xxhash

import elastic
from elastic.data.example_digest import quick_digest
from elastic.drill.inject.recording_dataset import RecordedBatch, RecordingCollate, RecordingDataset
from elastic.events.observer import ObservedRun, Observer
from elastic.record import share_digests
from elastic.record.step_record import encoded
from elastic.reproduce.observer import Elsewhere, Redirecting, told
from elastic.state.bits import sum_of_bits

_VARIABLE = "ELASTIC_REPLAY"
_HERE = Path(elastic.__file__).parent
_ROWS = 25  # of the profiler's table


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is to be seen of which step.

    share  ends behind this one; None: behind the step
    into   the file for what was seen
    debugs, profiles, detects  stop in a debugger, under torch's profiler, with its anomaly detection
    """

    step: int
    into: str
    share: int | None = None
    debugs: bool = False
    profiles: bool = False
    detects: bool = False

    def environment(self) -> dict[str, str]:
        """Return the variables that tell it to the process."""
        return {_VARIABLE: json.dumps(vars(self))}


@dataclass
class SeenShare:
    """What a share came to.

    losses      that were passed back, of each of its micro-batches, as they were passed
    gradients   parameter's name -> (norm, sum of its bits)
    read        see share_digests
    not_finite  its examples that hold numbers that are not finite
    """

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, tuple[float, int]] = field(default_factory=dict)
    indices: list[int] = field(default_factory=list)
    not_finite: list[int] = field(default_factory=list)
    read: int = 1

    def document(self, share: int) -> dict[str, Any]:
        sums = repr(sorted((name, bits) for name, (_, bits) in self.gradients.items())).encode()
        return {
            "share": share,
            "loss": repr(sum(self.losses)) if self.losses else None,
            "norm": repr(sum(norm**2 for norm, _ in self.gradients.values()) ** 0.5),
            "gradients": xxhash.xxh3_64_hexdigest(sums) if self.gradients else None,
            "first_not_finite": next((name for name, (norm, _) in self.gradients.items() if not isfinite(norm)), None),
            "read": share_digests.unpacked(share_digests.packed(share, self.read, 0))[1],
            "indices": self.indices,
            "not_finite": self.not_finite,
        }


def observer(_: str) -> Observer:
    """Return the observer of a step that is computed again."""
    return Replaying(Elsewhere.told(), Asked(**told(_VARIABLE)))


class Replaying(Redirecting):
    """Watches a run until a step, and ends it there."""

    def __init__(self, to: Elsewhere, asked: Asked) -> None:
        super().__init__(to)
        self._asked = asked
        self._shares: dict[int, SeenShare] = {}
        self._share: int | None = None  # the one at work, of the step that is asked for
        self._begun = False
        self._profiler: Any = None
        self._nodes: list[Any] = []  # where gradients come; torch forgets those that nobody holds

    def cross_checks(self, part: float | None) -> float | None:
        return None  # each share is passed once

    def dataset(self, dataset: Any) -> Any:
        return RecordingDataset(dataset)

    def collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        return RecordingCollate(collate_fn)

    def batch(self, batch: Any, *, step: int, share: int, attempt: int) -> Any:
        assert isinstance(batch, RecordedBatch)
        if self.is_meant and step == self._asked.step:
            seen = self._shares.setdefault(share, SeenShare())
            seen.indices += batch.indices
            seen.not_finite += _not_finite(batch)
            digest = quick_digest(batch.batch, 1)
            known = digest and seen.read
            seen.read = 0 if not known else digest if seen.read == 1 else share_digests.both(seen.read, digest)
        return batch.batch

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        if not self.is_meant or run.step_index != self._asked.step or moment not in ("data", "forward", "exchange"):
            return
        ends = moment == "exchange" or (moment == "data" and self._share is not None and share != self._share)
        if ends and self._share == self._asked.share is not None:
            self._end()
        if moment == "data" and not self._begun:
            self._begin(run)
        if moment == "forward":
            self._share = share
            if self._asked.debugs and self._asked.share in (None, share):
                _debug(_script_frame())
        elif moment == "exchange":
            self._stop_profiler()
            self._tell()
            self._share = None

    def recorded(self, line: Mapping[str, Any]) -> None:
        if self.is_meant and self._begun and line["step"] == self._asked.step:
            self._tell(line)
            self._end()

    def _begin(self, run: ObservedRun) -> None:
        """Watch from here on."""
        self._begun = True
        models = run.model if isinstance(run.model, Mapping) else {"": run.model}
        for name, model in models.items():
            for of_model, parameter in model.named_parameters():
                if parameter.requires_grad:  # a hook of the parameter's own would be one that has come in a step
                    hook = self._hook(f"{name}.{of_model}" if name else of_model)
                    node: Any = torch.autograd.graph.get_gradient_edge(parameter).node
                    node.register_prehook(hook)
                    self._nodes.append(node)
        passed_back = torch.Tensor.backward

        def backward(loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
            if self._share is not None and loss.numel() == 1:
                self._shares[self._share].losses.append(float(loss.detach()))
            try:
                passed_back(loss, *arguments, **options)  # type: ignore[no-untyped-call]
            except Exception:  # as anomaly detection raises: the share that it comes of is to be seen
                self._tell()
                raise

        torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]
        if self._asked.detects:
            torch.autograd.set_detect_anomaly(True)
        if self._asked.profiles:
            self._profiler = torch.profiler.profile(record_shapes=True)
            self._profiler.start()

    def _hook(self, name: str) -> Callable[[tuple[torch.Tensor, ...]], None]:
        def came(given: tuple[torch.Tensor, ...]) -> None:
            (gradient,) = given
            if self._share is not None:
                of_share = self._shares[self._share].gradients
                norm, bits = of_share.get(name, (0.0, 0))
                more = float(torch.linalg.vector_norm(gradient.detach().double()))
                of_share[name] = (norm**2 + more**2) ** 0.5, bits + int(sum_of_bits(gradient))

        return came

    def _stop_profiler(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
            trace = f"replay-step-{self._asked.step}.json"
            profiler.export_chrome_trace(str(Path(self._asked.into).parent / trace))
            print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=_ROWS), file=sys.stderr)

    def _tell(self, line: Mapping[str, Any] | None = None) -> None:
        """Write what was seen, with the step's line of the record once it is known."""
        found = {"step": self._asked.step, "shares": [one.document(at) for at, one in sorted(self._shares.items())]}
        if line is not None:
            found["line"] = json.loads(encoded(line))
        Path(self._asked.into).write_text(json.dumps(found))

    def _end(self) -> NoReturn:
        """End the process: what the script does behind the step is no part of it."""
        self._stop_profiler()
        if not Path(self._asked.into).exists():
            self._tell()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _not_finite(batch: RecordedBatch) -> list[int]:
    """Return the examples of a batch that hold numbers that are not finite."""
    found: set[int] = set()
    parts = [batch.batch]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part
        elif isinstance(part, torch.Tensor) and part.dim() > 0 and len(part) == len(batch.indices):
            rows = torch.isfinite(part).flatten(1).all(1) if part.dim() > 1 else torch.isfinite(part)
            found |= {index for index, well in zip(batch.indices, rows.tolist(), strict=True) if not well}
    return sorted(found)


def _script_frame() -> FrameType:
    """Return the nearest frame that is not of this package: the loop that is about to get the batch."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(_HERE):
        frame = frame.f_back
    assert frame is not None
    return frame


def _debug(frame: FrameType) -> None:
    """Have the debugger stop at the next line of this frame."""
    debugger = pdb.Pdb(nosigint=True)
    debugger.reset()
    above: FrameType | None = frame
    while above is not None:
        above.f_trace = debugger.trace_dispatch
        debugger.botframe = above
        above = above.f_back
    debugger.set_next(frame)
    sys.settrace(debugger.trace_dispatch)
