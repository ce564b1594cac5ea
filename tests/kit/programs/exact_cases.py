"""Trains the cases of tests.kit.cases one after the other; every rank leaves what came out in <folder>/rank-<r>.json.

python -m tests.kit.programs.exact_cases FOLDER [--mode fast] [--only NAME,NAME]; alone or under torchrun.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import elastic
from elastic.membership import environment
from tests.kit.cases import ALSO_FAST, CASES, Outcome, Training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", default="exact")
    parser.add_argument("--only", help="names, separated by commas")
    options = parser.parse_args()
    names = [name for name in CASES if options.mode == "exact" or name in ALSO_FAST]
    if options.only:
        names = [name for name in names if name in options.only.split(",")]

    outcomes: dict[str, Outcome] = {}
    for name in names:
        elastic.seed(11)
        training = Training(options.folder / name, options.mode)
        try:
            CASES[name](training)
        except Exception as error:
            raise RuntimeError(f"case {name} failed") from error
        outcomes[name] = training.outcome
    rank = environment.read().rank
    (options.folder / f"rank-{rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
