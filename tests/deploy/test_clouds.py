"""deploy/aws, gcp, dstack and sky: each file passes what reads it in earnest."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from botocore.session import Session

from tests.kit.deploy_tools import DEPLOY, Said, tool

HERE = Path(__file__).parent
# Neither cfn-lint nor AWS's own description of the service knows these words.
ALLOCATION = {"capacity-optimized", "capacity-optimized-prioritized", "lowest-price", "price-capacity-optimized"}

AWS, TEMPLATE, GROUP = "aws/group.yaml", "gcp/instance-template.json", "gcp/group.json"
DSTACK, SKY = "dstack/task.dstack.yml", "sky/task.yaml"


AT_NIGHT = pytest.mark.nightly(of="SkyPilot")  # 460 MB


def checked(kind: str, file: Path, home: Path) -> Said:
    """kind: its path in deploy/"""
    if kind == AWS:
        return tool("cfn-lint", file)
    if kind in (TEMPLATE, GROUP):
        of = "InstanceTemplate" if kind == TEMPLATE else "InstanceGroupManager"
        return tool("python", HERE / "google_validate.py", of, file)
    if kind == DSTACK:
        return tool("python", HERE / "dstack_validate.py", file)
    quiet = {**os.environ, "HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    return tool("python", HERE / "sky_validate.py", file, of="sky", env=quiet)


@pytest.mark.parametrize("kind", [AWS, TEMPLATE, GROUP, DSTACK, pytest.param(SKY, marks=AT_NIGHT)])
def test_what_reads_it_in_earnest_takes(kind: str, tmp_path: Path) -> None:
    said = checked(kind, DEPLOY / kind, tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_group_asks_for_what_there_is() -> None:
    text = (DEPLOY / AWS).read_text()
    (allocation,) = re.findall(r"SpotAllocationStrategy: (\S+)", text)
    assert allocation in ALLOCATION
    types = re.findall(r"InstanceType: (\S+)", text)
    assert len(types) > 1
    known = Session().get_service_model("ec2").shape_for("InstanceType").enum
    assert [one for one in types if one not in known] == []
