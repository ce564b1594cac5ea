"""An underscore ends at its class: whoever needs another object's private member has found something to publish.

A private attribute belongs to `self`, to another object of the same class, or to a base class of the same file. All
else is found here: another class's in one file, a library's, and names in strings that getattr and the like are given.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Allowed:
    """Private names of torch, Python or a library that have no public counterpart, and the only places for them."""

    why: str
    names: str
    paths: str


ALLOWED = (
    Allowed("documented by Python in spite of its underscore", "_exit _getframe _asdict _fields", "elastic checkpoint"),
    Allowed("a module's registries, which its public iterators copy", "_buffers _parameters _modules", "elastic/state"),
    Allowed(
        "as above, and which buffers are not persistent",
        "_buffers _modules _non_persistent_buffers_set",
        "elastic/group/snapshot.py elastic/group/foreach_buffers.py",
    ),
    Allowed(
        "the count of writes to a tensor",
        "_version",
        "elastic/data/dataset_changes.py elastic/state elastic/group/snapshot.py elastic/loop/script_variables.py "
        "checkpoint/elastic_checkpoint/save/copying.py",
    ),
    Allowed(
        "one call for many copies, sums or products, as torch's optimizers make them",
        "_foreach_add_ _foreach_copy_ _foreach_mul",
        "elastic/group/buffers.py elastic/group/partial_sums.py elastic/group/snapshot.py "
        "elastic/group/foreach_buffers.py elastic/state/rewound.py",
    ),
    Allowed(
        "which layers are normalisation layers, and what spectral norm hangs in at a module",
        "_NormBase _SpectralNorm _forward_pre_hooks",
        "elastic/group/buffer_rules.py",
    ),
    Allowed(
        "hooks that a script has put on a parameter",
        "_backward_hooks _post_accumulate_grad_hooks",
        "elastic/state/trained_set.py",
    ),
    Allowed(
        "settings and counters of the compiler",
        "_dynamo _inductor _config _stance _TorchCompileInductorWrapper",
        "elastic/state/compiled.py",
    ),
    Allowed(
        "what the compiler has made, and where it looks for it",
        "_cache _seen_artifacts _serialize_single_cache _appending_byte_serializer _inductor _get_uncompiled_header",
        "elastic/state/compiled_artifacts.py",
    ),
    Allowed("what the compiler leaves at a module", "_orig_mod _compiled_call_impl", "elastic/state/compiled.py"),
    Allowed(
        "by which node of autograd's graph a loss is a sum",
        "_saved_reduction _saved_self _saved_other",
        "elastic/loop/plain/loss_means.py",
    ),
    Allowed(
        "how torch groups the gradients that it clips by value, which may be none, and takes the norm that it clips by",
        "_group_tensors_by_device_and_dtype _get_total_norm",
        "elastic/state/clipping.py",
    ),
    Allowed(
        "over what a loss is a mean, as autograd's graph has it",
        "_saved_reduction _saved_total_weight _saved_weight _saved_ignore_index _saved_self _saved_self_sym_numel "
        "_saved_other",
        "elastic/loop/plain/loss_means.py",
    ),
    Allowed(
        "Python's and NumPy's own generators, which are none of the script's",
        "_inst _rand",
        "elastic/data/own_generators.py",
    ),
    Allowed(
        "in which precision a unit of fully_shard computes, and whether it is offloaded",
        "_mp_policy _fsdp_param_groups",
        "elastic/state/sharding.py",
    ),
    Allowed("how torch's schedulers mark an optimizer", "_wrapped_by_lr_sched", "elastic/loop/plain/schedule.py"),
    Allowed("the stages of a stream of Hugging Face's datasets", "_ex_iterable", "elastic/data/stream_check.py"),
    Allowed("one node's part of such a stream", "_distributed", "elastic/data/hugging_face.py"),
    Allowed("options of process groups", "_Options _devices _timeout", "elastic/group/form.py elastic/group/nccl.py"),
    Allowed("the end of a backward pass that others call", "_execution_engine", "elastic/group/backward_end.py"),
    Allowed(
        "operators as they are called, and which of their arguments are written",
        "_python_dispatch _schema",
        "elastic/drill/inject/hooks.py",
    ),
    Allowed("CUDA's word on forks", "_is_in_bad_fork", "elastic/launch/fork_server/importing.py"),
    Allowed(
        "loader processes that a run ends and restarts",
        "_utils _workers _worker_pids_set _set_worker_pids _remove_worker_pids _try_put_index _shutdown_workers "
        "_on_queue_feeder_error",
        "elastic/data/loader_process.py",
    ),
    Allowed(
        "an iterator of DataLoader's with another wait, and its end",
        "_BaseDataLoaderIter _MultiProcessingDataLoaderIter _get_iterator _try_get_data _timeout _workers "
        "_index_queues _pin_memory _pin_memory_thread _pin_memory_thread_done_event",
        "elastic/data/torch_loader.py",
    ),
    Allowed(
        "what a DataLoader does first in a process",
        "_utils _set_worker_signal_handlers",
        "elastic/preemption/loader_processes.py",
    ),
    Allowed(
        "which examples an iterator of DataLoader's has chosen, for each batch that it gives out",
        "_BaseDataLoaderIter _DatasetKind _next_index _reset _dataset_kind _dataset",
        "elastic/drill/torchrun/watched.py",
    ),
    Allowed("where multiprocessing puts its files", "_config", "elastic/data/scratch.py"),
    Allowed("torchrun's flags", "_actions _local_ranks_filter _redirects _tee", "elastic/launch/arguments.py"),
    Allowed(
        "a script as __main__, and a process's end, as the interpreter does them",
        "_run_module_as_main _shutdown _run_exitfuncs",
        "elastic/launch/processes/script.py elastic/launch/processes/ending.py",
    ),
    Allowed(
        "threads that an interpreter's end would wait for",
        "_threads_queues",
        "checkpoint/elastic_checkpoint/storage/reads.py",
    ),
    Allowed(
        "glibc's, declared in nss.h: a process that asks no name server",
        "__nss_configure_lookup",
        "elastic/launch/rendezvous/store_process.py",
    ),
    Allowed("how argparse fills a description", "_fill_text", "checkpoint/elastic_checkpoint/cli/usage.py"),
    Allowed(
        "which flags a parser of argparse knows",
        "_option_string_actions",
        "checkpoint/elastic_checkpoint/command_line.py",
    ),
    Allowed(
        "types that have no other name",
        "_SubParsersAction _Hash",
        "checkpoint/elastic_checkpoint/cli checkpoint/elastic_checkpoint/format",
    ),
    Allowed(
        "a storage's identity, an OrderedDict's attributes", "_cdata _metadata", "checkpoint/elastic_checkpoint/format"
    ),
    Allowed("who accelerate takes for the main process", "_shared_state", "elastic/integrations/accelerate.py"),
    Allowed("which models accelerate has prepared", "_models", "elastic/integrations/accelerate.py"),
    Allowed("what a model of transformers is not to be split in", "_no_split_modules", "elastic/integrations"),
    Allowed(
        "where Lightning's loggers write, and by what",
        "_experiment _kwargs _prefix _version",
        "elastic/integrations/lightning_loggers.py",
    ),
    Allowed("how torchmetrics brings ranks' states together", "_reductions", "elastic/integrations/torchmetrics.py"),
    Allowed(
        "what transformers' Trainer knows beside its TrainerState",
        "_get_num_items_in_batch _get_output_dir _globalstep_last_logged _initial_global_step _total_loss_scalar "
        "_tr_loss",
        "elastic/integrations/transformers.py",
    ),
    Allowed(
        "the moments of transformers' Trainer that have no callback",
        "_evaluate _finalize_training _init_training_state _load_best_model _move_model_to_device "
        "_prepare_for_training _save _save_checkpoint",
        "elastic/integrations/transformers.py",
    ),
    Allowed(
        "ElasticMixin's, for the classes beside it: a public name would be one of the Trainer that a user extends",
        "_elastic _is_apart _items _loss_shifts_labels _progress _rows _shard _steps",
        "elastic/integrations/transformers.py",
    ),
    Allowed(
        "what Lightning's Trainer knows beside its loops' and callbacks' states, and how it collects what is logged",
        "_ResultCollection _batches_that_stepped _call_callbacks_load_state_dict _call_callbacks_state_dict "
        "_call_callbacks_on_load_checkpoint _call_callbacks_on_save_checkpoint _call_lightning_module_hook "
        "_accelerator_connector _layer_sync _callback_metrics _logged_metrics _enable_version_counter "
        "_device_mesh _logger_connector _restarting _result "
        "_train_time_interval _val_check_time_interval",
        "elastic/integrations/lightning.py",
    ),
    Allowed("fsspec's session, and a path without its protocol", "_s3 _strip_protocol", "checkpoint"),
    Allowed("fsspec's own walk, or a filesystem's listing in its place", "_find", "checkpoint"),
    Allowed("the end of a process that is to die at once", "_exit", "tests/benchmarks/data_correctness_lightning.py"),
    Allowed(
        "a benchmark times the parts of a step where they are, and no run publishes them for that",
        "_boundary _hooks _loop _queue _sums",
        "tests/benchmarks/parts.py tests/benchmarks/throughput.py tests/benchmarks/sharded_steps.py",
    ),
    Allowed(
        "connections of a simulated network end without the sockets that HubServer hears it from",
        "_nodes _undecided",
        "tests/benchmarks/scale.py",
    ),
)
ROOMS = ("elastic", "checkpoint", "recipes", "tests/benchmarks")
_BY_NAME = ("getattr", "hasattr", "setattr", "delattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def foreign(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of private names that are used where they do not belong."""
    tree = ast.parse(source)
    yield from _Scope({node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}).visit(tree)


@dataclass(frozen=True)
class _Scope:
    """Where a node stands. classes  of the file   own, inherited  names of the class around it, if there is one"""

    classes: Mapping[str, ast.ClassDef]
    own: frozenset[str] = field(default_factory=frozenset)
    inherited: frozenset[str] = field(default_factory=frozenset)

    def visit(self, node: ast.AST) -> Iterator[tuple[int, str]]:
        yield from self._of(node)
        for child in ast.iter_child_nodes(node):
            yield from (self._inside(child) if isinstance(child, ast.ClassDef) else self).visit(child)

    def _inside(self, node: ast.ClassDef) -> _Scope:
        inherited = self._inherited(node)
        return _Scope(self.classes, frozenset(defined(node)) | inherited, inherited)

    def _inherited(self, node: ast.ClassDef, below: tuple[str, ...] = ()) -> frozenset[str]:
        """What its bases in this file define; those of other files keep theirs to themselves."""
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        known = [self.classes[base.id] for base in bases if isinstance(base, ast.Name) and base.id in self.classes]
        below = (*below, node.name)
        names = [frozenset(defined(base)) | self._inherited(base, below) for base in known if base.name not in below]
        return frozenset().union(*names)

    def _of(self, node: ast.AST) -> Iterator[tuple[int, str]]:
        match node:
            case ast.Attribute(value=value, attr=name) if is_private(name) and not self._has(value, name):
                yield node.lineno, name
            case ast.Call(func=ast.Name(id=how), args=[value, ast.Constant(value=str(name)), *_]) if how in _BY_NAME:
                if is_private(name) and not self._has(value, name):
                    yield node.lineno, name
            case ast.FunctionDef() if any(map(computes_a_name, ast.walk(node))):
                yield from private_strings(node)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                parts = [*(getattr(node, "module", None) or "").split("."), *(alias.name for alias in names)]
                yield from ((node.lineno, part) for name in parts for part in name.split(".") if is_private(part))

    def _has(self, receiver: ast.expr, name: str) -> bool:
        of_base = isinstance(receiver, ast.Call) and ast.unparse(receiver.func) == "super"
        return name in (self.inherited if of_base else self.own)


def defined(node: ast.ClassDef) -> Iterator[str]:
    """What a class gives a name to: its functions, classes, variables and fields, and attributes of `self`."""
    for one in node.body:
        match one:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield one.name
            case ast.Assign() | ast.AnnAssign():
                yield from (name.id for name in ast.walk(one) if isinstance(name, ast.Name) and _stores(name))
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def _stores(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def computes_a_name(node: ast.AST) -> bool:
    """Whether it is getattr or the like, of a name that stands elsewhere."""
    match node:
        case ast.Call(func=ast.Name(id=how), args=[_, name, *_]):
            return how in _BY_NAME and not isinstance(name, ast.Constant)
    return False


def private_strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Private names as strings of their own, of which one may be the name that is computed."""
    named = {id(one.args[1]) for one in ast.walk(node) if isinstance(one, ast.Call) and len(one.args) > 1}
    for one in ast.walk(node):
        match one:
            case ast.Constant(value=str(text)) if id(one) not in named and re.fullmatch(r"_[A-Za-z]\w*", text):
                yield one.lineno, text


def is_allowed(path: str, name: str) -> bool:
    return any(name in one.names.split() and path.startswith(tuple(one.paths.split())) for one in ALLOWED)


def test_no_file_uses_a_private_name_of_another_class() -> None:
    used = [
        (path.relative_to(ROOT).as_posix(), line, name)
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for line, name in foreign(path.read_text())
    ]
    assert sorted(f"{path}:{line}: {name}" for path, line, name in used if not is_allowed(path, name)) == []
    unused = [
        f"{what} in {one.paths}"
        for one in ALLOWED
        for what in (*one.names.split(), *one.paths.split())
        if not any(
            name in one.names.split() and path.startswith(tuple(one.paths.split())) and what in (name, *_above(path))
            for path, _, name in used
        )
    ]
    assert unused == [], "allowed, and not used any more"


def _above(path: str) -> list[str]:
    """The path, and the folders in which it is."""
    return [path, *(parent.as_posix() for parent in Path(path).parents)]


CLASS = """
class A:
    def __init__(self): self._x = 1
    def of(self, other): return {}
class B:
    _y = 2
def _free(): ...
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("run._closing.close()", ["_closing"]),
        ("from elastic.loop.loop import _broke_off", ["_broke_off"]),
        ("from torch._inductor import config", ["_inductor"]),
        ("import torch._dynamo.config", ["_dynamo"]),
        (CLASS.format("other._x"), []),
        (CLASS.format("self._x"), []),
        (CLASS.format("other._y"), ["_y"]),
        (CLASS.format("self._y"), ["_y"]),
        (CLASS.format("other._free"), ["_free"]),
        (CLASS.format("getattr(self, '_x')"), []),
        (CLASS.format("getattr(other, '_y', None)"), ["_y"]),
        (CLASS.format("[getattr(other, name) for name in ('_y', 'z')]"), ["_y"]),
        (CLASS.format("hasattr(other, '_free')"), ["_free"]),
        (CLASS.format("hasattr(other, '__len__')"), []),
        ("def _stance(): return frames._stance.stance", ["_stance"]),
        ("class A(Base):\n    def _save(self): super()._save()", ["_save"]),
        ("class A(Base):\n    def _save(self): super(A, self)._save()", ["_save"]),
        ("class Base:\n    def _save(self): ...\nclass A(Base):\n    def _save(self): super()._save()", []),
        ("class A(Base):\n    def save(self): self._save()", ["_save"]),
        ("class A:\n    _x = 1\ndef f(self): return self._x", ["_x"]),
        ("class A(A):\n    def f(self): return self._x", ["_x"]),
        ("a.__dict__, a.__class__.__name__", []),
    ],
)
def test_what_is_found_is_what_the_class_does_not_define(source: str, found: list[str]) -> None:
    assert [name for _, name in foreign(source)] == found
