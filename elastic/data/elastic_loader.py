"""A loader for loops of one's own, under plain DDP or FSDP: each example once an epoch, at whatever number of ranks.

Promises  a step's batch is a function of (seed, step): a run that restarts with other ranks goes on with the same
          batches, of the same global size, and loses and repeats nothing.
          Every rank gives a batch in every step, so that no rank waits for one that has none.
          The state counts batches that were trained on: those that the loop had when an optimizer last stepped. What
          is read ahead, by loader processes or by a loop that asks for one batch more, is not among them.
Leaves    which examples to data_plan.py, reading and collating to torch's DataLoader, waiting for its processes to
          torch_loader.py, saving to the script.

It is no DataLoader itself: Trainers would shard it a second time. It has what they, and scripts, read of one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakSet

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import IterableDataset

from elastic.data.data_plan import DataPlan, LastBatch, StepPlan
from elastic.data.torch_loader import TorchLoader
from elastic.errors import ConfigError, IdentityMismatch
from elastic.membership import environment

STATE_VERSION = 1
TIMEOUT_S = 600

_STEPS_MAX = 2**48
_NEXT = "  next   hand over what ElasticLoader.state_dict() gave"
_INSTEAD = {
    "shuffle": "leave it out: every epoch has an order of its own, from seed=",
    "sampler": "leave it out: the loader deals the examples out to the ranks itself",
    "batch_sampler": "leave it out, and give batch_size=, that of all ranks together",
    "drop_last": 'last_batch="drop", or "short" or "carry"',
}


def _of_torch(name: str) -> Any:
    """Return a property of the DataLoader within: what a framework sets, as Lightning does `worker_init_fn`, counts."""
    return property(
        lambda loader: getattr(loader.data_loader, name), lambda loader, value: setattr(loader.data_loader, name, value)
    )


class ElasticLoader:
    """DataLoader and DistributedSampler in one, whose place in the data outlives a change of the number of ranks.

    Iterating gives this rank's part of each batch, to the end of the epoch; the next iteration is the next epoch, or
    what was left of this one by a loop that broke off or a state that was loaded.

        loader = elastic.ElasticLoader(dataset, batch_size=256, num_workers=4)
        loader.load_state_dict(saved["loader"])
        for epoch in range(loader.epoch, epochs):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y) * loader.weight

    Args:
        dataset: With `dataset[i]` and `len(dataset)`.
        batch_size: Examples in a step, over all ranks: the same whatever their number, which need not divide it.
        seed: Of the order; that of an epoch follows from it.
        last_batch: The end of an epoch that fills no batch: "short" gives it as a smaller one, "drop" leaves it out,
            "carry" fills it up with the beginning of the next epoch.
        rank: Of those that share the batches; by default torch.distributed's or, where that is not set up, the
            launcher's, and asked anew by each iteration. Where ranks hold parts of a model: that among the replicas.
        world_size: Goes with `rank`.
        read_ahead: Say True where something between loader and loop asks for the next batch before the loop has trained
            on the one before, as a prefetcher of one's own or a `DataLoaderShard` of accelerate's does.
        options: What DataLoader takes beside these: `num_workers`, `collate_fn`, `pin_memory`, `persistent_workers`, ….
            `timeout`, how long to wait for loader processes, is 600 s unless given.

    What frameworks read of a DataLoader it has too, by the same names; `batch_size` is that of all ranks together,
    `len(sampler)` counts this rank's examples in the epoch, and to iterate over `sampler` is refused.

    Raises:
        ConfigError: An argument cannot work; the data set has a state of its own.
        LoaderError: A loader process died; from iterating, as the next one. Whoever iterates again has new processes.
        LoaderTimeout: The loader processes brought nothing for `timeout` seconds; likewise.
    """

    num_workers, timeout = _of_torch("num_workers"), _of_torch("timeout")
    collate_fn, worker_init_fn = _of_torch("collate_fn"), _of_torch("worker_init_fn")
    generator, multiprocessing_context = _of_torch("generator"), _of_torch("multiprocessing_context")
    pin_memory, pin_memory_device = _of_torch("pin_memory"), _of_torch("pin_memory_device")
    prefetch_factor, persistent_workers = _of_torch("prefetch_factor"), _of_torch("persistent_workers")
    in_order = True

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        seed: int = 0,
        last_batch: LastBatch = "short",
        rank: int | None = None,
        world_size: int | None = None,
        read_ahead: bool = False,
        **options: Any,
    ) -> None:
        _check(dataset, batch_size, last_batch, options)
        self.dataset = dataset
        self.batch_size = batch_size
        self._plan = DataPlan(
            dataset_length=len(dataset),
            batch_size=batch_size,
            virtual_workers=1,
            seed=seed,
            last_batch=last_batch,
            steps=_STEPS_MAX,
        )
        self._asked = (rank, world_size)
        if self._asked != (None, None):
            _rank_and_world_size(rank, world_size)
        self._read_ahead = read_ahead
        self._step = 0
        self._counted = False
        self._iteration = _Iteration(0, 0)
        if options.get("num_workers"):
            options.setdefault("timeout", TIMEOUT_S)
        self.drop_last = last_batch == "drop"
        self.data_loader = TorchLoader(dataset, self._awaited, batch_sampler=_BatchSampler(self._requests), **options)
        _loaders.add(self)

    @property
    def step(self) -> int:
        """Return how many batches were trained on, since the first epoch's first."""
        return self._step

    @property
    def epoch(self) -> int:
        """Return the next iteration's epoch or, during one, that of the batch that is next to be trained on; from 0."""
        return self._plan.step(self._beginning).epoch

    @property
    def weight(self) -> float:
        """Return the weight of the batch in the loop's hands: its part of the whole batch, times the ranks.

        A loss that is a mean over this rank's examples, times this, becomes under DDP's average of ranks the mean over
        the whole batch. It is 1 where the ranks divide the batch, and 0 where this rank has no part: it then gets a
        copy of rank 0's, which must not count.
        """
        current = self._iteration
        # Before the loop has a batch, the weight is that of the first.
        held = current.first + max(current.held(self._read_ahead) - 1, 0)
        step = self._plan.step(held)
        low, high = _part(step.count, current.rank, current.world_size)
        return (high - low) * current.world_size / step.count

    def trained(self) -> None:
        """Count what the loop was given as trained on. A step of any optimizer of torch's does that by itself.

        Call it after each update that no `torch.optim.Optimizer` makes: a replayed CUDA graph, an engine of its own.
        """
        current = self._iteration
        if current.given:
            self._step = current.first + current.held(self._read_ahead)
            self._counted = True

    def shares(self, epoch: int) -> Iterator[list[int]]:
        """Yield the examples of this rank's part of each batch of an epoch. Nothing is read, and the place stays."""
        rank, world_size = _rank_and_world_size(*self._asked)
        for step in range(self._plan.first_step_of(epoch), self._plan.first_step_of(epoch + 1)):
            yield _part_of(self._plan.step(step), rank, world_size)

    def state_dict(self) -> dict[str, Any]:
        """Return where the data stands: the same on every rank, and good for any number of them."""
        # One batch may wait for its update; with a second one in hand somebody forgot to count the first.
        if self._iteration.held(self._read_ahead) > 1 and not self._counted:
            warnings.warn(
                f"no optimizer has stepped since this loader began at step {self._step}, and it gave batches: its "
                "state counts none of them as trained on\n"
                "  next   save after the first update; if no torch.optim.Optimizer makes it, call loader.trained()",
                stacklevel=2,
            )
        return {"version": STATE_VERSION, "step": self._step, **self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next iteration gives the batch that was next. Ends an iteration that is going on.

        Raises:
            ConfigError: It is no state of an ElasticLoader.
            IdentityMismatch: It is that of one over other data, or with another seed or batch.
        """
        self._step = _checked(state, self._identity)
        self._counted = False
        # An empty one: whoever still iterates over the one before is told that it is over.
        self._iteration = _Iteration(self._step, self._step)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: scripts and Trainers call it on samplers, and the loader knows its epoch."""

    def __len__(self) -> int:
        """Count the batches in the epoch, also where the next iteration gives only the rest of it."""
        return self._plan.first_step_of(self.epoch + 1) - self._plan.first_step_of(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        begin = self._beginning
        end = self._plan.first_step_of(self._plan.step(begin).epoch + 1)
        self._iteration = _Iteration(begin, end, *_rank_and_world_size(*self._asked))
        return self._give(self._iteration)

    @property
    def sampler(self) -> _SamplerStandIn:
        """Return a stand-in to read: its length, and `set_epoch`, which does nothing. The indices are in `shares`."""
        first, batches = self._plan.first_step_of(self.epoch), len(self)
        # All batches of an epoch are full but the last.
        last = self._own_of(first + batches - 1) if batches else 0
        return _SamplerStandIn(self._own_of(first) * (batches - 1) + last, self._own_of(first))

    @property
    def batch_sampler(self) -> _SamplerStandIn:
        """Return another to read: its length counts batches, its `batch_size` this rank's examples in a full one."""
        return _SamplerStandIn(len(self), self.sampler.batch_size)

    def _own_of(self, step: int) -> int:
        """Count this rank's examples in a step."""
        low, high = _part(self._plan.step(step).count, *_rank_and_world_size(*self._asked))
        return high - low

    def _give(self, current: _Iteration) -> Iterator[Any]:
        """Yield one iteration's batches, and count them. Raises RuntimeError once a newer iteration has begun."""
        batches: Iterator[Any] | None = None
        while True:
            if self._iteration is not current:
                raise RuntimeError(
                    "this iteration is over: a newer one of the same loader has begun, or a state was loaded\n"
                    "  next   iterate over one at a time; a loader of its own for each loop"
                )
            if batches is None:  # only now: an iterator that is dropped unused starts no process
                batches = iter(self.data_loader)
            try:
                batch = next(batches)
            except StopIteration:
                current.ended = True
                return
            current.given += 1
            yield batch

    def _awaited(self) -> list[int]:
        """Return the request that is given next."""
        return self._request(self._iteration, self._iteration.first + self._iteration.given)

    @property
    def _beginning(self) -> int:
        """Return the first step of the next iteration."""
        # A loop that was left goes on behind what was trained on, and not behind what was read.
        return self._iteration.end if self._iteration.ended else max(self._step, self._iteration.first)

    @property
    def _identity(self) -> dict[str, Any]:
        """Return what a state must have equal with this loader."""
        plan = self._plan
        return {
            "dataset_length": plan.dataset_length,
            "batch_size": plan.batch_size,
            "seed": plan.seed,
            "last_batch": plan.last_batch,
            "order": plan.order_identity,
        }

    def _requests(self) -> Iterator[list[int]]:
        """Yield the requests of the iteration that begins."""
        current = self._iteration
        for step in range(current.first, current.end):
            yield self._request(current, step)

    def _request(self, current: _Iteration, step: int) -> list[int]:
        plan = self._plan.step(step)
        # Whoever has no part computes with rank 0's, at weight 0: DDP needs a backward pass of it.
        return _part_of(plan, current.rank, current.world_size) or _part_of(plan, 0, current.world_size)


@dataclass
class _Iteration:
    """One iteration, and how far the loop has come in it.

    first, end  its steps
    given       batches that were given
    ended       the loop asked for one more and learnt that there is none
    """

    first: int
    end: int
    rank: int = 0
    world_size: int = 1
    given: int = 0
    ended: bool = False

    def held(self, read_ahead: bool) -> int:
        """Count the batches that have been in the loop's hands, the present one included."""
        return self.given - (read_ahead and not self.ended and self.given > 0)


class _BatchSampler:
    """The batch sampler of the DataLoader within; it asks anew at the beginning of each iteration."""

    def __init__(self, requests: Callable[[], Iterator[list[int]]]) -> None:
        self._requests = requests

    def __iter__(self) -> Iterator[list[int]]:
        return self._requests()


class _SamplerStandIn:
    """A stand-in for the sampler of an ElasticLoader: it has a length, and gives no indices.

    batch_size  this rank's examples in a full batch
    """

    def __init__(self, length: int, batch_size: int) -> None:
        self._length = length
        self.batch_size = batch_size

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, as the loader's."""

    def __iter__(self) -> NoReturn:
        raise ConfigError(
            "a loader's sampler was iterated over, as to skip through it; an ElasticLoader goes on from its own state\n"
            "  state  the loader stands where it stood\n"
            "  next   load_state_dict() before the loop, and no skip; in transformers also\n"
            "         TrainingArguments(ignore_data_skip=True); for indices alone, loader.shares(epoch)"
        )


def _part_of(step: StepPlan, rank: int, world_size: int) -> list[int]:
    low, high = _part(step.count, rank, world_size)
    indices: list[int] = step.indices[low:high].tolist()
    return indices


def _part(count: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return a rank's place in a batch. Of more ranks than examples rank 0 has one: DDP takes its buffers."""
    return -(-rank * count // world_size), -(-(rank + 1) * count // world_size)


def _rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, world size): as given, or torch.distributed's, or the launcher's. Raises ConfigError."""
    if rank is None and world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        launch = environment.read()
        if launch.channel is not None and not launch.placed:
            raise ConfigError(
                "a worker of `elastic run` has no rank of its own: ranks come with views, which change\n"
                "  next   let elastic.Run read the data, or launch with torchrun"
            )
        return launch.rank, launch.world_size
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise ConfigError(
            f"rank = {rank!r} and world_size = {world_size!r}; expected both, 0 <= rank < world_size, or neither"
        )
    return rank, world_size


def _check(dataset: Any, batch_size: int, last_batch: LastBatch, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a data set or options that an ElasticLoader cannot work with."""
    for name in options.keys() & _INSTEAD:
        raise ConfigError(f"{name} = {options[name]!r}: an ElasticLoader takes none\n  next   {_INSTEAD[name]}")
    if not options.get("in_order", True):
        raise ConfigError(
            "in_order = False: a loader whose batches come in another order than they are counted in would lose some "
            "on a resume, and repeat others\n  next   leave it out"
        )
    if options.get("timeout") and not options.get("num_workers"):
        raise ConfigError(
            f"timeout = {options['timeout']!r} without num_workers: there are no loader processes to wait for\n"
            "  next   leave it out, or num_workers=1 or more"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"the dataset is a {type(dataset).__name__}; expected one with dataset[i] and len(dataset)\n"
            "  next   an order that resumes at any number of ranks needs random access: index the stream's examples"
        )
    if hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"):
        raise ConfigError(
            f"the data set, a {type(dataset).__name__}, has a state_dict of its own, which differs between ranks and "
            "loader processes;\nan ElasticLoader's state is one for any number of them, and does not carry it\n"
            "  next   ElasticLoader(torch.utils.data.Subset(data, range(len(data))), ...), which has none; what the "
            "script sets in\n         the data set, the same on every rank, it saves and loads beside the loader's: "
            '{"loader": loader, "data": data}'
        )
    if last_batch == "carry" and isinstance(batch_size, int) and batch_size > len(dataset):
        raise ConfigError(
            f'last_batch = "carry" and batch_size = {batch_size} of {len(dataset)} examples: some epochs would have no '
            f"batch of their own\n  next   batch_size <= {len(dataset)}, or a ConcatDataset of the data several times"
        )


def _checked(state: Any, identity: Mapping[str, Any]) -> int:
    """Return the state's step. Raises ConfigError or IdentityMismatch: it was read, and anything may be in it."""
    unchanged = "  state  the loader stands where it stood\n"
    if not isinstance(state, Mapping):
        raise ConfigError(f"a loader's state that is a {type(state).__name__}; expected a dict\n{unchanged}{_NEXT}")
    expected = {"version", "step", *identity}
    if state.keys() != expected:
        found = ", ".join(map(repr, sorted(map(str, state))[:10])) or "nothing"
        raise ConfigError(
            f"a loader's state of {found}; expected {', '.join(map(repr, sorted(expected)))}\n{unchanged}{_NEXT}"
        )
    if state["version"] != STATE_VERSION:
        raise ConfigError(
            f"a loader's state of version {_shown(state['version'])}; expected {STATE_VERSION}\n{unchanged}{_NEXT}"
        )
    differing = {
        name: (here, state[name])
        for name, here in identity.items()
        if type(state[name]) is not type(here) or state[name] != here
    }
    if differing:
        lines = "".join(
            f"  {name}  {_shown(saved)} in the state, {here!r} here\n" for name, (here, saved) in differing.items()
        )
        raise IdentityMismatch(
            f"the state of a loader that reads other batches: {', '.join(differing)} differ\n{lines}{unchanged}"
            "  next   make the loader as it was; for other data begin anew, without this state",
            fields=differing,
        )
    step = state["step"]
    if not (_is_count(step) and step < _STEPS_MAX):
        raise ConfigError(
            f"a loader's state at step {_shown(step)}; expected an integer from 0 to {_STEPS_MAX - 1}\n"
            f"{unchanged}{_NEXT}"
        )
    return int(step)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_loaders: WeakSet[ElasticLoader] = WeakSet()


def _stepped(*_: Any) -> None:
    # Of any optimizer: a second one in the same body sets the same place, and adds nothing.
    for loader in list(_loaders):
        loader.trained()


# For good, and once: torch iterates over its hooks, and a loader may be collected at any moment.
register_optimizer_step_post_hook(_stepped)
