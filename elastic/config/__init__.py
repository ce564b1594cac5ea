"""What a run is configured with: its arguments in one shape (config.py), each of which can work (checks.py)."""

from elastic.config.config import Config, Mode

__all__ = ["Config", "Mode"]
