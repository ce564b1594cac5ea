"""Make token files of Python source, a byte each token: of the standard library, which every machine has.

    python recipes/gpt_data.py                      # runs/gpt-data/train.npy and val.npy
    python recipes/gpt_data.py --source ~/projects

Of every twenty files one is held out for validation. What trains on them is gpt.py.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import numpy as np

HELD_OUT = 20
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}


def main() -> None:
    options = arguments()
    files = [
        path
        for path in sorted(options.source.rglob("*.py"))
        if not SKIPPED & set(path.relative_to(options.source).parts)
    ]
    options.data.mkdir(parents=True, exist_ok=True)
    write(options.data / "train.npy", [path for number, path in enumerate(files) if number % HELD_OUT])
    write(options.data / "val.npy", files[::HELD_OUT])


def write(target: Path, files: list[Path]) -> None:
    """Write the files' bytes to one token file, one after the other, with a zero between them."""
    tokens = np.frombuffer(b"\0".join(path.read_bytes() for path in files), dtype=np.uint8)
    unfinished = target.with_name(f".{target.name}")
    np.save(unfinished, tokens)
    os.replace(unfinished, target)  # whoever finds it finds all of it
    print(f"{target}: {len(tokens):,} bytes of {len(files)} files")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", type=Path, default=Path(sysconfig.get_paths()["stdlib"]), help="a folder")
    parser.add_argument("--data", type=Path, default=Path("runs/gpt-data"), help="where the token files go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
