"""`python -m elastic`."""

import sys

from elastic.launch.cli import main

sys.exit(main())
