"""`python -m checkpoint` is the command `checkpoint`."""

import sys

from checkpoint.cli import main

sys.exit(main())
