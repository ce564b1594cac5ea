"""A node under plain torchrun that stands ready, its imports done: `python -m` this FILE ARGUMENTS… is torchrun with
these arguments once FILE is there, as elastic/drill/inject/latecomer.py is `elastic run`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from torch.distributed.run import main

_LOOK_S = 0.02

if __name__ == "__main__":
    parent = os.getppid()
    while not Path(sys.argv[1]).exists():
        if os.getppid() != parent:
            sys.exit(1)
        time.sleep(_LOOK_S)
    main(sys.argv[2:])
