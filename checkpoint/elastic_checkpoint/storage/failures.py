"""What an error of a storage says: whether it may heal, what is to be done about it, which code the server gave."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

_RIGHTS = "the right to list, read, write and delete here"


_ADVICE_BY_ERRNO = {
    errno.EACCES: f"give this user or key {_RIGHTS}",
    errno.EPERM: f"give this user or key {_RIGHTS}; a local filesystem must support hard links, which FAT and some "
    "network mounts do not",
    errno.ENOSPC: "free some space, or keep fewer checkpoints",
    errno.EDQUOT: "the quota is used up: free some space, or keep fewer checkpoints",
    errno.EROFS: "the filesystem is mounted read-only: mount it writable, or use another URL",
    errno.ENOENT: "create the bucket or mount the folder, or correct the URL",
    errno.ELOOP: "a link leads back to itself: remove it, or correct the URL",
    errno.ENOTDIR: "a file lies where a folder is needed: correct the URL",
    errno.EISDIR: "a folder lies where a file is needed: correct the URL",
    errno.EFBIG: "this filesystem holds no file so large: use another one, or object storage",
    errno.ENAMETOOLONG: "use a shorter URL",
    errno.EXDEV: "the run's folder spans two filesystems: use a plain folder",
    errno.EOPNOTSUPP: "this filesystem has no hard links or no fsync: use another one, or object storage",
    errno.EMLINK: "this filesystem has no hard links: use another one, or object storage",
}


_WRONG_KEY = "check the key and the secret, in storage_options or in the environment: this server does not accept them"


_ADVICE_BY_NAME = {
    "NoCredentialsError": "no credentials were found: give them in storage_options or in the environment",
    "PartialCredentialsError": "the credentials are incomplete: give them in storage_options or in the environment",
    "ProfileNotFound": "correct the profile's name",
    "ParamValidationError": "correct the URL: the client library refuses the bucket's or the object's name",
    "UnsupportedOperation": "load from here as from anywhere, and save to a folder or an object store",
    "NoSuchBucket": "create the bucket, or correct the URL",
    "InvalidAccessKeyId": _WRONG_KEY,
    "SignatureDoesNotMatch": _WRONG_KEY,
    "AccessDenied": _ADVICE_BY_ERRNO[errno.EACCES],
    "403": f"check the key and the secret; if they are right, give this key {_RIGHTS}",
    "ExpiredToken": "the session token has expired: give a new one, in storage_options or in the environment",
    "RequestTimeTooSkewed": "set this machine's clock: it differs too much from the server's",
    "QuotaExceeded": _ADVICE_BY_ERRNO[errno.EDQUOT],
}


_OF_NAMES = {"KeyTooLongError", "InvalidBucketName", "InvalidObjectName", "ParamValidationError"}


# A server's 4xx blames the request, and repeating it is no use, but for these.
_PASSING_STATUS = (408, 409, 412, 425, 429)


_PASSING_CODES = {
    *("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"),
    *("BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"),  # damaged on the way
    "NoSuchUpload",  # the unfinished upload was swept away: the next attempt makes a new one
}


_REFUSED = "the server refuses this request: check the URL, the region and the other storage_options"


_NETWORK_MODULES = {
    *("botocore", "aiobotocore", "aiohttp", "urllib3", "requests", "google", "gcsfs", "azure", "fsspec"),
    "asyncio",  # whose TimeoutError is no OSError before Python 3.11
}


def advice(error: BaseException) -> str | None:
    """Return what to do about an error that trying again cannot heal, or None if it may heal."""
    code, status = error_code(error), _http_status(error)
    if code in _PASSING_CODES:
        return None
    for name in (code, type(error).__name__, type(error.__cause__).__name__):
        if name in _ADVICE_BY_NAME:
            return _ADVICE_BY_NAME[name]
    if isinstance(error, OSError):
        implied = {PermissionError: errno.EACCES, FileNotFoundError: errno.ENOENT, NotADirectoryError: errno.ENOTDIR}
        known = _ADVICE_BY_ERRNO.get(error.errno or implied.get(type(error), 0))
        if known is not None:
            return known
    return _REFUSED if status is not None and 400 <= status < 500 and status not in _PASSING_STATUS else None


def is_hopeless(error: BaseException) -> bool:
    """Return whether the name of the bucket or object is refused, so that no later operation on it can succeed."""
    return getattr(error, "errno", None) == errno.ENAMETOOLONG or bool(
        {error_code(error), type(error).__name__} & _OF_NAMES
    )


def error_code(error: BaseException | None) -> str | None:
    """Return the server's own code, such as "NoSuchBucket", of an error of botocore's or of one that it caused."""
    for response in _responses(error):
        if isinstance(response.get("Error"), dict):
            return str(response["Error"].get("Code"))
    return None


def answered_at(error: BaseException | None) -> float | None:
    """Return when the server said so, in unix seconds by its own clock, where the answer tells."""
    for response in _responses(error):
        date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        with suppress(TypeError, ValueError):
            return parsedate_to_datetime(date).timestamp()
    return None


def _http_status(error: BaseException) -> int | None:
    """Return the status of the HTTP answer that an error of botocore's or aiohttp's is about; None: there is none."""
    for response in _responses(error):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int):
            return status
    of_http = getattr(error, "status", None)  # aiohttp's ClientResponseError
    return of_http if isinstance(of_http, int) and type(error).__module__.startswith("aiohttp") else None


def _responses(error: BaseException | None) -> Iterator[dict[str, Any]]:
    """Yield the server's answers that this error and its cause hold, as botocore's errors do."""
    for one in (error, error.__cause__ if error else None):
        response: Any = getattr(one, "response", None)
        if isinstance(response, dict):
            yield response


def is_of_storage(error: BaseException) -> bool:
    """Return whether the storage failed, rather than somebody's code."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _NETWORK_MODULES
