"""What the pages tell a user to write works as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_ten_lines_that_test_a_script(tmp_path: Path) -> None:
    """recipes/DRILLS.md, on the small script of the tests."""
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "recipes/DRILLS.md").read_text(), re.DOTALL)
    (tmp_path / "test_train.py").write_text(block)
    shutil.copy(ROOT / "tests/kit/programs/small.py", tmp_path / "train.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'runs'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
