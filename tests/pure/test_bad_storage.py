"""What a drill's storage did to a run, by the record of it."""

from __future__ import annotations

import json
from pathlib import Path

from elastic.drill.inject.bad_storage import summary, torn

COMMIT = "c00000001.s000000004-01a201412a3bd378a170"


def record(folder: Path, *torn_paths: str) -> Path:
    lines = [{"fault": "TornWrite", "operation": "write", "path": f"/runs/disturbed/{path}"} for path in torn_paths]
    (folder / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "record.jsonl"


def test_only_a_torn_manifest_excuses_a_checkpoint(tmp_path: Path) -> None:
    """Torn events and claims are no checkpoint's, and made the judge believe that one had been damaged: a run that went
    back behind a save was let through. Torn data must not be committed: their writer is told."""
    data = f"data/c00000001/{COMMIT.partition('.')[2]}/00000.safetensors"
    found = record(tmp_path, "events/vm-1-a.000000.jsonl", "claims/00000001.json", data, f"commits/{COMMIT}.json")
    assert torn(found) == [COMMIT]
    assert summary(found) == "4 writes torn"
    assert torn(tmp_path / "absent.jsonl") == []
