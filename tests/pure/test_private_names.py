"""An underscore ends at its file: whoever needs another object's private member has found something to publish."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Allowed:
    """Private names of torch, Python or a library that have no public counterpart, and the only places for them."""

    why: str
    names: str
    places: str


ALLOWED = (
    Allowed("documented by Python in spite of its underscore", "_exit _getframe _asdict", "elastic checkpoint"),
    Allowed("a module's registries, which its public iterators copy", "_buffers _parameters _modules", "elastic/state"),
    Allowed(
        "as above, and which buffers are not persistent",
        "_buffers _modules _non_persistent_buffers_set",
        "elastic/group/snapshot.py elastic/group/usual_buffers.py",
    ),
    Allowed("the count of writes to a tensor", "_version", "elastic/state"),
    Allowed(
        "one call for many copies, sums or products, as torch's optimizers make them",
        "_foreach_add_ _foreach_copy_ _foreach_mul",
        "elastic/group/buffers.py elastic/group/gradients.py elastic/group/snapshot.py elastic/group/usual_buffers.py "
        "elastic/state/rewound.py",
    ),
    Allowed(
        "hooks that a script has put on a parameter",
        "_backward_hooks _post_accumulate_grad_hooks",
        "elastic/state/trained_set.py",
    ),
    Allowed(
        "settings and counters of the compiler",
        "_dynamo _config _TorchCompileInductorWrapper",
        "elastic/state/compiled.py",
    ),
    Allowed("options of process groups", "_Options _devices _timeout", "elastic/group/form.py elastic/group/nccl.py"),
    Allowed("the end of a backward pass that others call", "_execution_engine", "elastic/group/backward_end.py"),
    Allowed(
        "over how much a cross entropy is a mean",
        "_saved_reduction _saved_total_weight _saved_weight",
        "elastic/loop/mean_over.py",
    ),
    Allowed("an operator's arguments, of which some are written", "_schema", "elastic/drill/inject/hooks.py"),
    Allowed("CUDA's word on forks", "_is_in_bad_fork", "elastic/launch/importing.py"),
    Allowed(
        "loader processes that a run ends and restarts",
        "_workers _worker_pids_set _remove_worker_pids _try_put_index _shutdown_workers",
        "elastic/data/loader_process.py",
    ),
    Allowed("where multiprocessing puts its files", "_config", "elastic/data/scratch.py"),
    Allowed("torchrun's flags", "_actions _local_ranks_filter _redirects _tee", "elastic/launch/arguments.py"),
    Allowed(
        "a script as __main__, and a process's end, as the interpreter does them",
        "_run_module_as_main _shutdown _run_exitfuncs",
        "elastic/launch/main_module.py elastic/launch/ending.py",
    ),
    Allowed("types that have no other name", "_SubParsersAction _Hash", "checkpoint/cli checkpoint/format"),
    Allowed("a storage's identity, an OrderedDict's attributes", "_cdata _metadata", "checkpoint/format"),
    Allowed("who accelerate takes for the main process", "_shared_state", "elastic/integrations/accelerate.py"),
    Allowed(
        "what transformers' Trainer knows beside its TrainerState",
        "_get_num_items_in_batch _get_output_dir _globalstep_last_logged _initial_global_step _loss_shifts_labels "
        "_total_loss_scalar _tr_loss",
        "elastic/integrations/transformers.py",
    ),
    Allowed(
        "what Lightning's Trainer knows beside its loops' and callbacks' states, and how it collects what is logged",
        "_ResultCollection _batches_that_stepped _call_callbacks_load_state_dict _call_callbacks_state_dict "
        "_call_callbacks_on_load_checkpoint _call_callbacks_on_save_checkpoint _call_lightning_module_hook "
        "_callback_metrics _logged_metrics _enable_version_counter _logger_connector _restarting _result "
        "_train_time_interval _val_check_time_interval",
        "elastic/integrations/lightning.py",
    ),
    Allowed("fsspec's session, and a path without its protocol", "_s3 _strip_protocol", "checkpoint"),
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def foreign(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of private names that a file uses and does not define."""
    tree = ast.parse(path.read_text())
    own = set(defined(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))


def defined(tree: ast.AST) -> Iterator[str]:
    """What a file gives a name to: functions, classes, variables, fields, attributes of `self`."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                yield node.attr


def is_allowed(path: str, name: str) -> bool:
    return any(name in one.names.split() and path.startswith(tuple(one.places.split())) for one in ALLOWED)


def test_no_file_uses_a_private_name_of_another_file() -> None:
    used = [
        (path.relative_to(ROOT).as_posix(), line, name)
        for room in ("elastic", "checkpoint")
        for path in (ROOT / room).rglob("*.py")
        for line, name in foreign(path)
    ]
    assert sorted(f"{path}:{line}: {name}" for path, line, name in used if not is_allowed(path, name)) == []
    unused = {name for one in ALLOWED for name in one.names.split()} - {name for _, _, name in used}
    assert unused == set(), "allowed, and not used any more"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("run._closing.close()", ["_closing"]),
        ("from elastic.loop.loop import _broke_off", ["_broke_off"]),
        ("class A:\n    def __init__(self): self._x = 1\n    def of(self, other): return other._x", []),
        ("a.__dict__, a.__class__.__name__", []),
    ],
)
def test_what_is_found_is_what_the_file_does_not_define(tmp_path: Path, source: str, found: list[str]) -> None:
    (tmp_path / "file.py").write_text(source)
    assert [name for _, name in foreign(tmp_path / "file.py")] == found
