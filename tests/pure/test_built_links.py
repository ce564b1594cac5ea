"""Links are checked on the pages as they are built: what a page takes from another file is checked nowhere else."""

from __future__ import annotations

import runpy
from pathlib import Path


def test_a_dead_link_on_a_built_page_is_named(tmp_path: Path) -> None:
    (tmp_path / "how").mkdir()
    (tmp_path / "index.html").write_text('<a href="how/a.html#here">a</a> <a href="https://example.org/x">far</a>')
    (tmp_path / "how" / "a.html").write_text(
        '<p id="here"><a href="../index.html">up</a><a href="docs/b.md">b</a><a href="../index.html#gone">c</a>'
    )
    dead_links = runpy.run_path("docs/hooks.py")["dead_links"]
    assert dead_links(tmp_path) == ["how/a.html: docs/b.md", "how/a.html: ../index.html#gone"]


def test_what_a_page_loads_from_another_host_is_named(tmp_path: Path) -> None:
    """The site is read from a disk, too, where nobody may be asked; a link that is followed is the reader's wish."""
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="a.css"><script src="https://unpkg.com/shim"></script>'
        '<img src="//b.example/i.png"><a href="https://c.example">c</a>'
    )
    loaded_from_elsewhere = runpy.run_path("docs/hooks.py")["loaded_from_elsewhere"]
    assert loaded_from_elsewhere(tmp_path) == ["a.html: https://unpkg.com/shim", "a.html: //b.example/i.png"]
