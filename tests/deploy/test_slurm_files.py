"""deploy/slurm and deploy/systemd: what stands in several places is the same, and the pages show the files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_jobs_differ_in_what_they_ask_slurm_for_alone() -> None:
    jobs = [path.read_text() for path in sorted((DEPLOY / "slurm").glob("*.sbatch"))]
    assert len(jobs) == 3
    assert len({job.partition("\n\n")[2] for job in jobs}) == 1
    assert all("\n#SBATCH --requeue\n#SBATCH --open-mode=append\n\n" in job for job in jobs)


def test_a_unit_tells_the_run_how_long_systemd_waits() -> None:
    unit = (DEPLOY / "systemd/elastic.service").read_text()
    (said,), (waits,) = re.findall(r"\bELASTIC_GRACE_S=(\d+)", unit), re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert said == waits


@pytest.mark.parametrize(
    "file", ["systemd/elastic.service", "systemd/user-data", "slurm/job.sbatch", "slurm/array.sbatch"]
)
def test_a_page_shows_the_file_itself(file: str) -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs/how-to").glob("*.md"))
    assert f'--8<-- "deploy/{file}"' in pages


def test_the_first_page_names_every_folder() -> None:
    table = (DEPLOY / "README.md").read_text()
    folders = [path.name for path in DEPLOY.iterdir() if path.is_dir()]
    assert [folder for folder in folders if f"]({folder}/)" not in table] == []
