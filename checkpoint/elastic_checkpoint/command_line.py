"""The parser of every command here: what is wrong with its arguments is said in two lines, and without credentials.

What opens a storage is --storage-option KEY=VALUE in every command that takes a URL.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

USAGE = 2  # the exit status
_DAY_S = 86_400
_CHOICE = re.compile(r"invalid choice: '?(.*?)'? \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Names the flag that was mistyped and the nearest one; argparse prints its whole usage."""

    def __init__(self, *args: Any, hint: str = "", **kwargs: Any) -> None:
        """Make a parser; hint: what else a flag that is not known may be."""
        super().__init__(*args, **kwargs)
        self._hint = f"; {hint}" if hint else ""
        self._given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown flags here already, for of a subcommand's flags its own parser knows the nearest."""
        self._given = list(args or ())
        found, rest = super().parse_known_args(args, namespace)
        self._refuse_unknown([one for one in rest if one.startswith("-")])
        return found, rest

    def error(self, message: str) -> NoReturn:
        if "required" in message:  # argparse counts what is missing first, and a mistyped flag is why it is
            flags = [one for one in self._given if one.startswith("--") and one != "--"]
            self._refuse_unknown([one for one in flags if not self._is_known(one.partition("=")[0])])
        if (choice := _CHOICE.search(message)) is not None:
            message += _nearest(choice[1], re.findall(r"[\w.-]+", choice[2]))
        self._end(message)

    def _is_known(self, name: str) -> bool:
        return any(one == name or (self.allow_abbrev and one.startswith(name)) for one in self._option_string_actions)

    def _refuse_unknown(self, flags: Sequence[str]) -> None:
        if flags:
            name = flags[0].partition("=")[0]  # what follows may be a secret
            self._end(f"there is no {name}{_nearest(name, list(self._option_string_actions))}", self._hint)

    def _end(self, message: str, hint: str = "") -> NoReturn:
        from elastic_checkpoint.storage import redact  # only now: workers wait for the imports of `elastic run`

        self.exit(USAGE, f"{self.prog}: {redact(message)}\n  next  {self.prog} --help{hint}\n")


class StorageOption(NamedTuple):
    """An option of the storage.

    written  as on the command line; KEY=@FILE for a value that stood there, which may be a secret
    """

    key: str
    value: Any
    written: str


def add_storage_option(add_argument: Callable[..., object]) -> None:
    """Add --storage-option, a list of `StorageOption`, by a parser's or a group's `add_argument`."""
    add_argument(
        "--storage-option",
        type=_storage_option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for fsspec's filesystem, such as endpoint_url=http://... or anon=true; may be given several times. "
        "Others see the arguments of a command: credentials belong in the environment, or in a file, KEY=@FILE",
    )


def seconds_from(least: float) -> Callable[[str], float]:
    """Return the type of a flag that is so many seconds or more, up to a day: far longer ones overflow in a sleep."""

    def seconds(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= (found := float(text)) <= _DAY_S:
                return found
        raise argparse.ArgumentTypeError(f"expected {least:g} to {_DAY_S} seconds; found {text!r}")

    return seconds


def storage_options(given: argparse.Namespace) -> dict[str, Any]:
    """Return what was asked for by --storage-option, as `open_storage` takes it."""
    return {one.key: one.value for one in given.storage_option}


def _storage_option(text: str) -> StorageOption:
    """Return the option of a text: its value is text, but for true, false and a JSON object; or a file's, after @."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError("expected KEY=VALUE")  # what was found may be a secret
    of_file = value.startswith("@")
    if of_file:
        try:
            value = Path(os.path.expanduser(value[1:])).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise argparse.ArgumentTypeError(f"{key}=@FILE: the file cannot be read: {why}") from None
    written = text if of_file else f"{key}=@FILE"
    if value not in ("true", "false") and not value.startswith("{"):
        return StorageOption(key, value, written)
    try:
        return StorageOption(key, json.loads(value), written)
    except ValueError:
        raise argparse.ArgumentTypeError(f"the value of {key} is no JSON object") from None


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; the nearest is {near[0]}" if near else ""
