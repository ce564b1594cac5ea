"""Bugs in what is saved, and in what a run goes on from."""

from __future__ import annotations

from typing import Any

from tests.kit.planted.bug import Act, planted


@planted("elastic.loop.storage.saver:Saver.read", plan="resumed", caught_by={"state", "durable"})
def resume_at_the_wrong_step(right: Any, act: Act) -> Any:
    """A run that goes on takes the state for that of one step less."""

    def read(self: Any) -> Any:
        from dataclasses import replace

        found = right(self)
        if found is None:
            return None
        act()
        return replace(found[0], step=found[0].step - 1), *found[1:]

    return read


@planted("elastic_checkpoint.save.ranks:save_now", plan="cut", caught_by={"durable"})
def commit_before_the_data(right: Any, act: Act) -> Any:
    """A checkpoint is listed before its data are there, and a kill comes in between."""

    def save_now(storage: Any, save: Any) -> Any:
        from elastic_checkpoint.format.draft import StoredObject
        from elastic_checkpoint.format.hashing import CHUNK_BYTES, chunk_hashes, xxh3
        from elastic_checkpoint.format.tensors import pack

        act()
        files = [bytes(pack(shard, save.tensors, bytearray(max(save.plan.sizes)))) for shard in save.plan.shards]
        objects = [StoredObject(len(file), xxh3(file), CHUNK_BYTES, tuple(chunk_hashes(file))) for file in files]
        storage.put_new(save.draft.id.manifest_key, save.draft.manifest(objects))
        _later(lambda: [storage.put(save.draft.id.shard_key(index), file) for index, file in enumerate(files)])
        return save.commit

    return save_now


_WAITING: list[Any] = []


def _later(write: Any) -> None:
    """When the next save comes, or the process ends in order."""
    import atexit

    _write_what_waits()
    _WAITING.append(write)
    atexit.unregister(_write_what_waits)
    atexit.register(_write_what_waits)


def _write_what_waits() -> None:
    while _WAITING:
        _WAITING.pop(0)()


@planted("elastic_checkpoint.save.commit:write_object", plan="alone", caught_by={"checkpoint"})
def list_a_checkpoint_without_a_shard(right: Any, act: Act) -> Any:
    """An object is never written, nobody counts, and the checkpoint is listed."""

    def write_object(storage: Any, id: Any, index: int, file: Any) -> Any:
        stored = right(storage, id, index, file)
        if id.step and index == 0:
            act()
            storage.delete(id.shard_key(index))
        return stored

    return write_object


@list_a_checkpoint_without_a_shard.also("elastic_checkpoint.save.commit:commit")
def _(right: Any, act: Act) -> Any:
    return lambda storage, draft, objects, **_: storage.put_new(draft.id.manifest_key, draft.manifest(objects))


@planted("elastic.state.train_state:TrainState.objects", plan="alone", caught_by={"final"})
def save_without_momentum(right: Any, act: Act) -> Any:
    """A checkpoint holds the weights, and zeros for the optimizer's averages."""

    def objects(self: Any) -> Any:
        found = dict(right(self))
        state = found["optimizer"].state_dict()
        if state["state"]:
            act()
            kept = {key: {**entry, "exp_avg": entry["exp_avg"] * 0.0} for key, entry in state["state"].items()}
            found["optimizer"] = {**state, "state": kept}
        return found

    return objects


@planted("elastic_checkpoint.runs.retention:Sweeper.sweep", plan="alone", caught_by={"checkpoint"})
def sweep_what_is_needed(right: Any, act: Act) -> Any:
    """A sweep removes an object of a checkpoint that stays."""

    def sweep(self: Any, **asked: Any) -> Any:
        from elastic_checkpoint.runs.history import read_history

        removed = right(self, **asked)
        kept = read_history(self._storage, self._log).lineage[-1]
        if kept.step:
            act()
            self._storage.delete(kept.shard_key(0))
        return removed

    return sweep


@planted("elastic_checkpoint.runs.own_claim:OwnClaim._ask", plan="launched twice", caught_by={"writer"})
def ignore_the_claim(right: Any, act: Act) -> Any:
    """A second launch takes the run from a living one, and that one goes on as if it had not."""

    def ask(self: Any, holders: Any) -> frozenset[int]:
        act()
        return frozenset()

    return ask


@ignore_the_claim.also("elastic_checkpoint.runs.newer_claim:newer_claim")
def _(right: Any, act: Act) -> Any:
    return lambda storage, claim, nonce: None


@ignore_the_claim.also("elastic_checkpoint.runs.newer_claim:left_out_by")
def _(right: Any, act: Act) -> Any:
    return lambda storage, id: None


@planted("elastic_checkpoint.runs.own_claim:take", plan="launched twice", caught_by={"finished"})
def leave_a_claim_behind(right: Any, act: Act) -> Any:
    """A second launch that is refused leaves its claim, and the living run takes that for its successor's."""

    def take(storage: Any, *, free: Any, **rest: Any) -> Any:
        from elastic_checkpoint.errors import ClaimHeld

        refused = []

        def asked(holders: Any) -> frozenset[int]:
            try:
                return frozenset(free(holders))
            except ClaimHeld as held:
                refused.append(held)
                act()
                return frozenset(holder.number for holder in holders)

        claim = right(storage, free=asked, **rest)
        if refused:
            raise refused[0]
        return claim

    return take


@leave_a_claim_behind.also("elastic_checkpoint.runs.newer_claim:both_proven_dead")
def _(right: Any, act: Act) -> Any:
    return lambda endpoint, nonce, moved: None


@planted("elastic.loop.storage.saver:Saver.claim", plan="launched twice, waits", caught_by={"durable"})
def read_before_the_claim(right: Any, act: Act) -> Any:
    """A second launch reads the newest state at once and claims when the first one has ended, whose work it buries."""

    def claim(self: Any, *nodes: Any, **options: Any) -> Any:
        import time

        from elastic_checkpoint.errors import ClaimHeld

        until_s = time.monotonic() + 60
        while True:
            try:
                return right(self, *nodes, **options)
            except ClaimHeld:
                if not hasattr(self, "early"):
                    self.early = self.read()
                    act()
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)

    return claim


@read_before_the_claim.also("elastic.loop.storage.saver:Saver.read")
def _(right: Any, act: Act) -> Any:
    def read(self: Any) -> Any:
        return self.early if hasattr(self, "early") else right(self)

    return read
