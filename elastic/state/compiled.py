"""torch.compile under exact mode: a compiled function gives the same bits on every worker, whenever it was compiled.

torch's own ways depend on what a process has met before: a second size of an input makes kernels for any size, whose
code follows the first size met; after too many sizes the function runs uncompiled; max-autotune takes what was fastest
just then. Workers meet other sizes in another order, and a replacement compiles late.

Promises  while a run lasts, every size of an input has a kernel of its own, nothing falls back to eager mode, and no
          kernel is chosen by the clock. What was compiled before is compiled again.
          What asks for kernels for any size (dynamic=True, mark_dynamic), or for a stance that follows what came
          before, is found at its first use, and refused by name.
Leaves    settings to the identity (`settings`). This file, compilations.py and compiled_artifacts.py are the only ones
          that touch torch's compiler, of which much is private: tests/processes/test_compiled.py notices a change.
"""

from __future__ import annotations

import contextlib
import copy
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from elastic.errors import StepError
from elastic.membership.environment import compiler_settings
from elastic.state.compilations import watch

SIZES_MAX = 64
"""Of one function. More are refused: each costs a compilation."""
_FUNCTIONS_MAX = 4096
_HISTORIC = ("eager_then_compile", "aot_eager_then_compile", "eager_on_recompile")
_WITHOUT_EFFECT = (
    "trace",
    "compile_threads",
    "worker_",
    "debug",
    "fx_graph_",
    "autotune_local",
    "bundle",
    "verbose",
    "deterministic",
)


class Compiling(contextlib.AbstractContextManager["Compiling", None]):
    """A context in which torch compiles as exact mode needs it; the settings are this thread's, and given back.

    begun, ended  called around each compilation, which may take minutes
    """

    def __init__(self, *, begun: Callable[[], None], ended: Callable[[], None]) -> None:
        self._begun = begun
        self._ended = ended
        self._refused: str | None = None
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Compiling:
        import torch._dynamo  # any optimizer has done so, or will

        if torch._dynamo.utils.counters["frames"]:
            torch._dynamo.reset()  # what was compiled before had other settings
        dynamo, keep = torch._dynamo.config, self._closing
        settings = {
            "automatic_dynamic_shapes": False,  # no kernels for any size when a second one is met
            "specialize_float": True,
            "recompile_limit": max(SIZES_MAX, dynamo.recompile_limit),
            "accumulated_recompile_limit": max(_FUNCTIONS_MAX, dynamo.accumulated_recompile_limit),
            "fail_on_recompile_limit_hit": True,  # in place of going on uncompiled
            "suppress_errors": False,
        }
        keep.enter_context(dynamo.patch(settings))
        unwatch = watch(begins=self._begun, ended=self._ended)
        assert unwatch is not None
        keep.callback(unwatch)
        keep.enter_context(self._looks_at_inputs())
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def check(self, state: str) -> None:
        """Raise StepError where something compiled could differ between workers. `state` goes into the message."""
        if not torch._dynamo.utils.counters["frames"]:  # nothing is compiled; this is asked at every share
            return
        refused = self._refused or _stance() or _changed()
        if refused is not None:
            raise StepError(
                f"{refused}, which would make the result depend on what each worker has met before\n  state  {state}\n"
                '  next   leave that out: under Run each size is compiled by itself; or compute=Compute(mode="fast")'
            )

    @contextlib.contextmanager
    def _looks_at_inputs(self) -> Any:
        """Note for `check`, within the context, which of torch's graphs take inputs of any size."""
        wrapper = torch._TorchCompileInductorWrapper
        plain = wrapper.__call__

        # torch hands each graph to its compiler through this
        def call(compiler: Any, graph: Any, inputs: Any, *, config_patches: Any = None) -> Any:
            if _unsettled(graph):
                how = "torch.compile(dynamic=True)" if compiler.dynamic else "mark_dynamic, or a setting like it,"
                self._refused = self._refused or f"{how} asks for kernels that serve any size"
            # these settings hold for the graph's backward pass, too, which is compiled later, and maybe elsewhere
            settled = copy.copy(compiler)  # in its own settings, since torch before 2.12 takes no others here
            settled.config = {**compiler.config, **(config_patches or {}), "deterministic": True}
            return plain(settled, graph, inputs)  # type: ignore[no-untyped-call]

        wrapper.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            wrapper.__call__ = plain  # type: ignore[method-assign]


def explained(error: BaseException) -> StepError | None:
    """Return an error that says more than torch's for a function compiled too often; None for any other error."""
    if type(error).__name__ != "FailOnRecompileLimitHit":
        return None
    return StepError(
        f"a function was compiled for {SIZES_MAX} different inputs and was given another one (torch's log names it "
        "above); torch would go on with it uncompiled, which has other bits\n"
        "  state  the model is as it was before this step\n"
        "  next   pad inputs to a few lengths, and pass numbers that change (a step, a learning rate) as tensors; or "
        'use compute=Compute(mode="fast")'
    )


def settings(models: Mapping[str, torch.nn.Module]) -> dict[str, Any] | None:
    """Return what decides the code of compiled functions; None where nothing has asked torch to compile yet."""
    if not is_compiled(models) and "torch._inductor.compiler_bisector" not in sys.modules:
        return None
    from torch._inductor import config as inductor

    changed = [
        f"{name} = {value!r}"
        for name, value in sorted(inductor.save_config_portable().items())
        if not name.startswith(_WITHOUT_EFFECT) and value != inductor._config[name].default  # type: ignore[attr-defined]
    ]
    compilers = [
        f"{f'{key}.{name}'.rstrip('.')}: {_described(module)}"
        for key, model in sorted(models.items())
        for name, module in model.named_modules()
        if _asked(module) is not None
    ]
    return {"models": compilers, "inductor": changed, "variables": compiler_settings(), "compiler": compiler_name()}


def is_compiled(models: Mapping[str, torch.nn.Module]) -> bool:
    """Return whether torch.compile was asked for on any of the models' modules."""
    return any(_asked(module) is not None for model in models.values() for module in model.modules())


def _asked(module: torch.nn.Module) -> Any:
    """Return what runs in a module's place if torch.compile(module) or module.compile() was called; else None."""
    if hasattr(module, "_orig_mod"):
        return module
    return getattr(module, "_compiled_call_impl", None)


def _described(module: torch.nn.Module) -> str:
    """Return a module's own compiler settings, as far as they differ from torch's."""
    from torch._inductor import config as inductor

    now, ours = inductor.get_config_copy(), _asked(module).get_compiler_config()
    if ours is None:
        return "another compiler than inductor"
    return (
        ", ".join(f"{name}={value!r}" for name, value in sorted(ours.items()) if now.get(name) != value) or "as usual"
    )


def compiler_name() -> str | None:
    """Return the name and version of the C++ compiler, whose code no other one makes; None: there is none."""
    from torch._inductor import cpp_builder, exc

    with contextlib.suppress(exc.InvalidCxxCompiler):
        found = cpp_builder.get_compiler_version_info(cpp_builder.get_cpp_compiler())
        named = re.search(r"(gcc|clang) version [^\s_]+", found)
        return named.group() if named is not None else found[-80:]
    return None


def _unsettled(graph: torch.fx.GraphModule) -> bool:
    """Return whether an input's size, or a number, is a symbol: its kernels would serve any value."""
    values = [node.meta.get("example_value") for node in graph.graph.nodes if node.op == "placeholder"]
    tensors = [one for one in values if isinstance(one, torch.Tensor)]
    sizes = {str(size) for one in tensors for size in one.shape}
    # where a view begins in its memory may be a symbol: no kernel asks for it
    beginnings = {str(one.storage_offset()) for one in tensors}
    numbers = {str(one) for one in values if isinstance(one, (torch.SymInt, torch.SymFloat))} - beginnings
    return bool(numbers) or not all(size.isdecimal() for size in sizes)


def _stance() -> str | None:
    """Return a complaint where torch.compiler's stance makes code depend on what came before, else None."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    stance = frames._stance.stance if frames is not None else "default"
    return f"torch.compiler.set_stance({stance!r}) is set" if stance in _HISTORIC else None


def _changed() -> str | None:
    """Return a complaint where the settings are not ours, else None: each thread has settings of its own."""
    if not torch._dynamo.config.automatic_dynamic_shapes:
        return None
    return "the settings of torch's compiler were changed while the run was open, or this is another thread"
