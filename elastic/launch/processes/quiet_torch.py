"""Makes torch's C++ in this process say errors only, after it was loaded.

A store whose host has left is the agent's to report, in one sentence, and not its client's, in a stack of C++ for each
attempt. The variable that says so (TORCH_CPP_LOG_LEVEL) is read once, when torch is loaded, and would then hold of the
workers that are forked from this process, too.

`FLAGS_caffe2_log_level` of libc10 is not documented (torch 2.9 to 2.13): where it is missing, torch says what it says.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

VARIABLE = "TORCH_CPP_LOG_LEVEL"
_FLAG, _ERROR = "FLAGS_caffe2_log_level", 2


def say_errors_only() -> bool:
    """Have torch say errors only, unless the user has set the variable; return whether it could be done."""
    import torch

    level = log_level(Path(torch.__file__).parent / "lib" / "libc10.so")
    if level is None or VARIABLE in os.environ:
        return False
    level.value = _ERROR
    return True


def log_level(library: Path) -> ctypes.c_int | None:
    """Return the log level of the library as it is loaded here: 0 all, 1 warnings, 2 errors; None: it has none."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), _FLAG)
    except (OSError, ValueError):
        return None
