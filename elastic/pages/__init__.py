"""Pages of HTML, each one file that asks the network for nothing: templates of Jinja, figures of plotly.js.

The browser runs the two scripts that stand here, and no other: each page names their SHA-256 in its Content-Security-
Policy. What a run says of itself (names of hosts and workers, messages of errors) is text in templates, which escape
it, and goes through `text_of` into figures, since plotly.js reads some tags in its labels.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from elastic.events import words

_HERE = Path(__file__).parent
# The bundle without maps and 3D: 1.2 MB of each page. plotly's Python package is 40 MB, and brings the one of 4.8 MB.
_SCRIPTS = ("plotly-basic.min.js", "draw.js")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart on a page, as plotly.js takes it.

    Args:
        title: The line above it.
        said: The same in words, for those who cannot see it.
        height: In pixels.
        traces: plotly's; a colour is a property of `base.html.j2`'s style, such as --line.
        layout: plotly's, beyond what all figures share (`draw.js`).
        note: How to read it.
    """

    title: str
    said: str
    height: int
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


def render(template: str, **said: Any) -> str:
    """Return the page that one of the templates beside this file makes of `said`."""
    return _environment().get_template(template).render(**said)


def text_of(label: str) -> str:
    """Return a label for a figure, in lines of a length that a screen has, and in which nothing else is a tag."""
    lines = textwrap.wrap(words.printable(label)[:2000], 90)
    return "<br>".join(html.escape(line, quote=False) for line in lines)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    scripts = [(_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    environment.globals.update(scripts=scripts, allowed=" ".join(f"'sha256-{digest}'" for digest in digests))
    environment.filters.update(seconds=words.seconds, percent=words.percent)
    return environment
