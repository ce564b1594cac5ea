"""What a run is configured with: its arguments in one shape (config.py), the rare ones in groups (argument_groups.py).

Each of them can work: checks.py.
"""

from elastic.config.argument_groups import Mode
from elastic.config.config import Config

__all__ = ["Config", "Mode"]
