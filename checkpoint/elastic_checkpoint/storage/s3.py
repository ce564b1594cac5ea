"""What is particular to S3 through s3fs: listings that are listings, and retries that are left to retry.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastic_checkpoint.storage.failures import error_code

# Of S3's listings one at least, in each answer.
_OF_LISTINGS = {"Name", "Prefix", "IsTruncated", "KeyCount", "MaxKeys", "Contents"}


DELETED_AT_ONCE = 1000  # S3's own limit


def list_objects(filesystem: Any, path: str, root: str) -> dict[str, int]:
    """List as FsspecStorage.list does. Raises OSError where what answers is no S3, or there is no bucket.

    s3fs's own `find` takes any XML for a listing, and a server without one for an empty one.
    """
    bucket, _, prefix = path.partition("/")
    asked = {"Bucket": bucket, "Prefix": f"{prefix}/" if prefix else ""}
    within = len(root) - len(bucket)
    sizes: dict[str, int] = {}
    while True:
        answer = _of_s3(lambda: filesystem.call_s3("list_objects_v2", **asked))
        for one in answer.get("Contents", ()):
            if not one["Key"].endswith("/"):  # some tools mark a folder by such an object
                sizes[one["Key"][within:]] = one["Size"]
        if not answer.get("IsTruncated"):
            return dict(sorted(sizes.items()))
        token = answer.get("NextContinuationToken")
        if token in (None, asked.get("ContinuationToken")):
            raise OSError("the server lists a part of what is there, and does not say how to ask for the rest")
        asked["ContinuationToken"] = token


def _of_s3(list_objects: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call `list_objects`, and return the server's answer if it is a listing. Raises OSError for anything else."""
    try:
        answer = list_objects()
    except OSError as error:
        # A login page, a console or another service answers, at times with 200, and at times botocore calls that an
        # internal error of the server's.
        headers = _headers(getattr(error.__cause__, "response", {}))
        if error_code(error) == "500" and "xml" not in headers.get("content-type", "xml"):
            raise _no_s3(headers) from error
        raise
    if not _OF_LISTINGS & answer.keys():
        raise _no_s3(_headers(answer))
    return answer


def _headers(response: Any) -> dict[str, str]:
    found: dict[str, str] = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return found


def _no_s3(headers: Mapping[str, str]) -> OSError:
    """Return the error for an answer with these headers, which no S3 server gives."""
    kind, size = headers.get("content-type", "no content type"), headers.get("content-length", "unknown")
    return OSError(
        f"what answers is no S3 server: instead of a listing came {kind}, {size} bytes, as from a login page, a "
        "console or another service"
    )


def leave_retries_to_us(filesystem: Any) -> None:
    """Let retry.py alone try again."""
    # s3fs tries 5 times, and botocore below it 5 times each: 6 minutes of a hung server, which no deadline sees.
    filesystem.retries = 1
    filesystem.config_kwargs = {"retries": {"total_max_attempts": 1}, **filesystem.config_kwargs}


def is_s3(filesystem: Any) -> bool:
    """Return whether this filesystem serves s3:// URLs."""
    return "s3" in protocols(filesystem)


def protocols(filesystem: Any) -> tuple[str, ...]:
    """Return the names under which fsspec knows a filesystem; some have one, and some several."""
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
