r"""Bytes that lie where others may write, and that only those who know the run's secret can have put there.

    elastic sealed 1\n   HMAC-SHA256 of (purpose, path, content)   content

The content of an object of this form is handed out only if its code fits: to that path, by that key. Whoever can write
to the storage can remove it, or put back what was there before; nothing else of theirs is ever believed.
"""

from __future__ import annotations

import hmac

_HEAD = b"elastic sealed 1\n"
_CODE_BYTES = 32
OVERHEAD_BYTES = len(_HEAD) + _CODE_BYTES


class NotAuthentic(Exception):
    """Whoever wrote this did not know the secret, or it is torn."""


def seal(content: bytes, *, key: bytes, path: str) -> bytes:
    """Return the content with its code. `path` is where it will lie: the same bytes elsewhere are not authentic."""
    return b"".join((_HEAD, _code(content, key, path), content))


def unseal(sealed: bytes, *, key: bytes, path: str) -> bytes:
    """Return the content of sealed bytes that lie at `path`. Raises NotAuthentic."""
    code, content = sealed[len(_HEAD) : OVERHEAD_BYTES], sealed[OVERHEAD_BYTES:]
    if not sealed.startswith(_HEAD) or not hmac.compare_digest(code, _code(content, key, path)):
        raise NotAuthentic("it was not written by someone who knows the run's secret, or it was changed since")
    return content


def _code(content: bytes, key: bytes, path: str) -> bytes:
    code = hmac.new(key, len(path.encode()).to_bytes(8, "big"), "sha256")
    code.update(path.encode())
    code.update(content)
    return code.digest()
