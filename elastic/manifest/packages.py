"""What is installed, as a lock file that pip installs, in some milliseconds.

Names of folders say it: `importlib.metadata` reads and parses a file of every distribution (0.2 s of 200 of them, with
the interpreter's lock held, which training wants).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

_INFO = re.compile(r"(?P<name>[^-]+)(?:-(?P<version>[^-]+))?(?:-py[\d.]+)?\.(?:dist|egg)-info")
_VERSION = re.compile(r"^Version: (\S+)", re.MULTILINE)
_HEAD = """\
# What was installed as the run was launched, for: pip install --requirement THIS
# A version with a build behind it (torch==2.11.0+cu128) is found in the index that it came from: --extra-index-url
"""


def lock(path: Sequence[str] | None = None) -> tuple[str, dict[str, str | None]]:
    """Return a lock file of all distributions on `path`, by default sys.path, and their versions by name."""
    found: dict[str, str] = {}
    versions: dict[str, str | None] = {}
    for folder in sys.path if path is None else path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:  # an archive, or gone
            continue
        for name in names:
            if (info := _INFO.fullmatch(name)) is not None:
                key = re.sub(r"[-_.]+", "-", info["name"]).lower()
                if key not in found:  # the first one is what is imported
                    of = Path(folder, name)
                    versions[key] = info["version"] or _version_in(of)
                    found[key] = _line(key, versions[key], of)
    return _HEAD + "".join(f"{found[key]}\n" for key in sorted(found)), dict(sorted(versions.items()))


def _line(name: str, version: str | None, info: Path) -> str:
    """Return the line of a distribution."""
    try:
        origin = json.loads((info / "direct_url.json").read_bytes())
    except (OSError, ValueError):
        return f"{name}=={version}" if version is not None else f"# {name}, of an unknown version"
    url, of_vcs = origin.get("url", ""), origin.get("vcs_info")
    if of_vcs:
        return f"{name} @ {of_vcs.get('vcs')}+{url}@{of_vcs.get('commit_id')}"
    if url.startswith("file:"):
        return f"# {name}=={version} was installed from {url}"
    return f"{name} @ {url}"


def _version_in(info: Path) -> str | None:
    """Return the version of a distribution whose folder does not name it."""
    for file in (info / "PKG-INFO", info):
        try:
            found = _VERSION.search(file.read_text(errors="replace"))
        except OSError:
            continue
        if found is not None:
            return found[1]
    return None
