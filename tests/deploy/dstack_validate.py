"""Reads a configuration as `dstack apply` does: dstack_validate.py FILE."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration

parse_apply_configuration(yaml.safe_load(Path(sys.argv[1]).read_text()))
