"""`Bucket`: reads and writes objects in a bucket of an object storage (S3 API), with a deadline for each operation.

`result_objects` uses it. Every method except `check` blocks, so async code calls it in a thread.

Decided: the client library is obstore (MIT; extra `s3`), imported on first use. Because: it is one wheel of 6 MB per platform that needs
no other packages, and wraps the Rust crate `object_store` of the Apache Arrow project; its version 0.12.1 is of October 2026. Instead of:
boto3 (30 MB), aiobotocore (needs exactly one version of botocore), or own code for signatures and credentials. Revisit when: obstore has
had no release for a year, or a supported Python has no wheel.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from gateway.errors import StorageUnusable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Store

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
"""Maximum seconds to wait for a connection to the object storage."""

CHECK_SECONDS = 6.0
"""Maximum seconds of `Bucket.check`, so that a gateway whose bucket cannot be used ends within ten seconds."""

PAUSE_SECONDS = 5.0
"""Seconds for which operations fail at once after the object storage was not reached, so that not every call waits for a deadline."""

LOG_SECONDS = 2.0
"""Minimum seconds between two log lines about an unusable object storage."""

PROBE_FOLDER = "probe"
"""Folder of the objects with which `Bucket.check` tests a bucket."""

PORTION = 1_000
"""Number of objects in a portion of a listing: the most that one response of the S3 API contains."""

_RETRIES = 2

_REASONS = {
    "AccessDenied": "access is denied",
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "the access key is unknown",
    "NoSuchBucket": "the bucket does not exist",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "SignatureDoesNotMatch": "the secret key is wrong",
}
"""Error codes of the S3 API, in words."""

_CERTIFICATES = "SSL_CERT_FILE"
"""Environment variable with the path of a file with further certificates of authorities, which other outgoing connections use, too."""

_ENVIRONMENT = ("all_proxy", "http_proxy", "https_proxy", "no_proxy", "ssl_cert_file")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """The address of a bucket, and the credentials for it. Values that are `None` come from the environment, as for other S3 clients."""

    bucket: str
    prefix: str = ""
    """Folder in the bucket that contains all objects; empty for the whole bucket."""
    endpoint: str | None = None
    """URL of the server, without the bucket's name."""
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    path_style: bool = True
    """Whether requests have the bucket's name in the path of the URL; if false, it is a part of the host name."""
    timeout_seconds: float = 20.0
    """Maximum seconds of one operation, with its repetitions."""

    @property
    def url(self) -> str:
        """The URL of the server, without the bucket's name. Only for messages if neither the settings nor the environment have one."""
        return self.chosen_endpoint or f"https://s3.{self.region or os.environ.get('AWS_REGION') or 'us-east-1'}.amazonaws.com"

    @property
    def chosen_endpoint(self) -> str | None:
        """The URL of the server in the settings, else in the environment variables of S3 clients, else `None`."""
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        return self.endpoint or next(filter(None, map(os.environ.get, names)), None)

    def to_settings(self) -> dict[str, Any]:
        """Return the fields, and the environment variables that the client library reads, so that another process can use the bucket.

        The result contains secrets.
        """
        return {**asdict(self), "environment": _client_environment(os.environ)}


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in a listing."""

    name: str
    """Name below the prefix of the bucket, with `/` between folders."""
    size: int
    """Size in bytes."""
    modified: float
    """Time of the last change by the server's clock, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A range of the bytes of an object, with facts about the whole object."""

    data: bytes
    size: int
    """Size of the whole object in bytes."""
    modified: float
    """Time of the last change by the server's clock, in seconds since the epoch."""


class Bucket:
    """Reads and writes objects below the prefix of one bucket. An object is written as a whole, or not at all.

    Every method raises `StorageUnusable` if the operation fails, with the bucket, the server and the reason, and without secrets.
    """

    def __init__(self, place: BucketPlace) -> None:
        """Store the settings. The first operation imports the client library."""
        self.place = place
        self._lock = threading.Lock()
        self._store: S3Store | None = None
        self._paused_until = float("-inf")
        self._pause_reason = ""
        self._logged_at = float("-inf")

    def put(self, name: str, parts: Sequence[bytes]) -> None:
        """Write an object that consists of `parts`. Other processes see the whole object, or none, also if this process dies."""

        def write(store: S3Store) -> None:
            import obstore

            # One request for the whole object: a multipart upload that is cut off would leave hidden parts in the bucket.
            obstore.put(store, name, list(parts), use_multipart=False)

        self._run(write)

    def read(self, name: str, start: int, length: int) -> ObjectPart | None:
        """Return up to `length` bytes of an object (at least 1), beginning at `start`; `None` if the object does not exist."""

        def read(store: S3Store) -> ObjectPart | None:
            import obstore

            try:
                found = obstore.get(store, name, options={"range": (start, start + length)})
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None
            return ObjectPart(found.bytes().to_bytes(), found.meta["size"], found.meta["last_modified"].timestamp())

        return self._run(read)

    def list(self, folder: str = "") -> Iterator[Sequence[ObjectInfo]]:
        """Yield all objects in a folder, in portions; without `folder`, all objects below the prefix. Each portion has its own deadline."""

        def begin(store: S3Store) -> Iterator[Sequence[Any]]:
            import obstore

            return obstore.list(store, prefix=folder, chunk_size=PORTION)  # pyright: ignore[reportUnknownMemberType]  # another form needs arrow

        portions = self._run(begin)
        while True:
            portion = self._run(lambda _: next(portions, None))
            if portion is None:
                return
            yield [ObjectInfo(item["path"], item["size"], item["last_modified"].timestamp()) for item in portion]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects. An object that does not exist is no error, so several processes may delete the same object."""

        def delete(store: S3Store) -> None:
            import obstore

            obstore.delete(store, list(names))

        if names:
            self._run(delete)

    async def check(self) -> None:
        """Write, read, list and delete a small object, within `CHECK_SECONDS`."""
        quick = Bucket(replace(self.place, timeout_seconds=min(self.place.timeout_seconds, CHECK_SECONDS / 2)))
        try:
            with anyio.fail_after(CHECK_SECONDS):
                await anyio.to_thread.run_sync(quick._probe, abandon_on_cancel=True)
        except TimeoutError:
            quick._paused_until = math.inf  # the thread begins no further request
            raise self._failed(f"no answer within {CHECK_SECONDS:g} s") from None

    def _probe(self) -> None:
        name, body = f"{PROBE_FOLDER}/{secrets.token_urlsafe(16)}", secrets.token_bytes(32)
        self.put(name, [body])
        found = self.read(name, 0, len(body))
        listed = any(item.name == name for portion in self.list(PROBE_FOLDER) for item in portion)
        self.delete([name])
        if found is None or found.data != body or not listed:
            raise self._failed("an object that was just written is not found unchanged; Moongate needs a server with consistent reads")

    def _run(self, job: Callable[[S3Store], T]) -> T:
        if (left := self._paused_until - time.monotonic()) > 0:
            raise self._failed(f"{self._pause_reason}; the next attempt is in {left:.0f} s")
        store = self._opened()
        try:
            return job(store)
        except Exception as error:
            reason, is_reached = _reason(error, self.place)
            if not is_reached:
                self._pause_reason, self._paused_until = reason, time.monotonic() + PAUSE_SECONDS
            raise self._failed(reason) from None

    def _opened(self) -> S3Store:
        with self._lock:
            if self._store is None:
                try:
                    self._store = _open_store(self.place)
                except ImportError:
                    text = 'Results in object storage (`storage.results`) need the client library: `pip install "moongate[s3]"`.'
                    raise StorageUnusable(text, passes=False) from None
                except Exception as error:
                    raise self._failed(_reason(error, self.place)[0]) from None
            return self._store

    def _failed(self, reason: str) -> StorageUnusable:
        """Return the error for an operation that failed, and log it at most once in `LOG_SECONDS`, because clients do not see its text."""
        text = (
            f"The bucket {self.place.bucket!r} at {self.place.url} cannot be used: {reason}. "
            "Check `storage.results` and `storage.s3`, and that the server can be reached."
        )
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.warning("object storage unusable bucket=%s endpoint=%s reason=%r", self.place.bucket, self.place.url, reason)
        return StorageUnusable(text)


def _open_store(place: BucketPlace) -> S3Store:
    from obstore.store import S3Store

    config: dict[str, Any] = {"virtual_hosted_style_request": not place.path_style}
    keys = {"region": place.region, "access_key_id": place.access_key, "secret_access_key": place.secret_key}
    config |= {name: value for name, value in {**keys, "session_token": place.session_token}.items() if value is not None}
    endpoint = place.chosen_endpoint
    if endpoint is not None:
        parts = urlsplit(endpoint)
        host = parts.netloc if place.path_style else f"{place.bucket}.{parts.netloc}"
        # The specific key takes precedence over the variables in the environment.
        config["aws_endpoint_url_s3"] = config["endpoint"] = parts._replace(netloc=host).geturl().rstrip("/")
    # A retry begins in the first third of the time, and each request has two thirds.
    third = place.timeout_seconds / 3
    client: ClientConfig = {
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=min(CONNECT_SECONDS, third)),
        "timeout": timedelta(seconds=2 * third),
        "user_agent": "moongate",
    }
    if (file := os.environ.get(_CERTIFICATES)) and Path(file).is_file():
        client["root_certificate"] = Path(file).read_bytes()
    return S3Store(
        place.bucket,
        prefix=place.prefix or None,
        config=config,  # pyright: ignore[reportArgumentType]  # a `TypedDict` of these keys
        client_options=client,
        retry_config={
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=third),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=0.5), "base": 2},
        },
    )


def _reason(error: Exception, place: BucketPlace) -> tuple[str, bool]:
    """Return why an operation of the client library failed, and whether the server was reached.

    The library's exceptions have the answer of the server only in their text, which is never shown, because it contains the answer's body.
    """
    text = str(error)
    if "/latest/api/token" in text or "/latest/meta-data" in text:
        wanted = "set `storage.s3.accessKey` and `storage.s3.secretKey`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return f"there are no credentials: {wanted}", True
    if (code := re.search(r"<Code>(\w{1,60})</Code>", text)) is not None:
        name = code.group(1)
        return f"{_REASONS.get(name, 'the server refused the request')} ({name})", True
    if (status := re.search(r"status code: (\d{3})", text)) is not None:
        return f"the server answered with HTTP status {status.group(1)}", True
    if "kind: Timeout" in text:
        return f"no answer within {place.timeout_seconds * 2 / 3:.3g} s", False
    if "certificate" in text.lower():
        return "the server's certificate is not trusted", False
    if "HTTP error" in text:
        return "no connection" if "kind: Connect" in text else "the connection broke", False
    return "the request failed", True


def _client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that the client library reads: credentials, region, proxies and certificates."""
    return {name: value for name, value in environ.items() if name.startswith("AWS_") or name.lower() in _ENVIRONMENT}
