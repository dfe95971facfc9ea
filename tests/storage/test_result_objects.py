"""Results stored in object storage: whole or not at all, visible only to their owner, limited per owner, deleted after they expire."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import NotFound, StorageError, StorageUnusable
from gateway.storage.object_bucket import Bucket
from gateway.storage.open_results import open_results
from gateway.storage.result_objects import ObjectResults
from tests.fakes.object_storage import BUCKET, MISSING_BUCKET, ObjectStorage, object_storage
from tests.fakes.running import free_port

pytestmark = [pytest.mark.s3, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def server() -> Generator[ObjectStorage]:
    with object_storage() as running:
        yield running


def store(server: ObjectStorage, prefix: str, *, max_bytes: int = 100_000, age: float = 0.0, **place: Any) -> ObjectResults:
    """A store whose clock is `age` seconds ahead."""
    chosen = server.place(prefix, **place)
    return ObjectResults(chosen, ttl_seconds=60, max_bytes_per_owner=max_bytes, clock=lambda: time.time() + age)


def keep(results: ObjectResults, owner: str, *body: bytes) -> str:
    return results.keep(owner, *body, mime_type="text/plain", origin="up__lines").id


@pytest.mark.attack(5)
def test_body_comes_back_whole_and_in_slices_to_its_owner_only(server: ObjectStorage) -> None:
    results, other = store(server, "whole"), store(server, "whole")
    kept = keep(results, "ada", b"01234", b"", b"56789\n")
    assert other.body("ada", kept) == b"0123456789\n"
    assert other.slice("ada", kept, 8, 100) == b"89\n"
    assert other.slice("ada", kept, 11, 1) == b""
    for owner, name in (("bob", kept), ("ada", "A" * 22), ("ada", "../ada"), ("ada", f"../{'A' * 19}"), ("ada", f"{kept}\n"), ("ada", "")):
        with pytest.raises(NotFound):
            other.find(owner, name)
    [name] = server.names("whole")
    assert name.endswith(f"/{kept}")
    assert "ada" not in name


def test_slices_across_the_pieces_of_a_large_result_are_exact(server: ObjectStorage) -> None:
    results = store(server, "pieces", max_bytes=10**8)
    body = b"".join(number.to_bytes(4, "big") for number in range(900_000))
    kept = keep(results, "ada", body[:1_500_000], body[1_500_000:])
    for start, length in ((0, 10), (1_048_570, 20), (2_097_152, 1_048_576), (3_599_990, 100), (0, len(body))):
        assert results.slice("ada", kept, start, length) == body[start : start + length]


def test_oldest_results_of_an_owner_are_evicted_across_stores(server: ObjectStorage) -> None:
    results = [store(server, "evicted") for _ in range(2)]
    other = keep(results[0], "bob", b"b" * 40_000)
    ids: list[str] = []
    for number in range(4):
        ids.append(keep(results[number % 2], "ada", bytes([65 + number]) * 40_000))
        time.sleep(1.1)  # the server's times are whole seconds
    left: list[int] = []
    for position, kept in enumerate(ids):
        try:
            results[0].find("ada", kept)
            left.append(position)
        except NotFound:
            continue
    assert left == [2, 3]
    assert results[1].find("bob", other).size == 40_000
    with pytest.raises(StorageError, match="maxResultBytesPerCaller"):
        keep(results[0], "ada", b"x" * 100_001)


def test_stores_that_write_at_once_keep_the_limit_together(server: ObjectStorage) -> None:
    threads = [threading.Thread(target=keep, args=(store(server, "at-once"), "ada", b"x" * 30_000)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sizes = [item.size for portion in Bucket(server.place("at-once")).list() for item in portion]
    assert 0 < sum(sizes) <= 100_000


def test_expired_result_is_unknown_before_the_sweep_and_then_deleted(server: ObjectStorage) -> None:
    kept = keep(store(server, "expired"), "ada", b"body")
    Bucket(server.place("expired")).put("notes/of-somebody-else", [b"x"])
    later = store(server, "expired", age=61)
    with pytest.raises(NotFound):
        later.find("ada", kept)
    store(server, "expired", age=58).sweep()
    assert store(server, "expired").body("ada", kept) == b"body"
    sweeps = [threading.Thread(target=store(server, "expired", age=61).sweep) for _ in range(2)]
    for sweep in sweeps:
        sweep.start()
    for sweep in sweeps:
        sweep.join()
    later.sweep()
    assert server.names("expired") == ["notes/of-somebody-else"]


@pytest.mark.parametrize("changed", ["last byte", "cut", "first line"])
def test_changed_object_is_as_unknown_as_a_missing_one(server: ObjectStorage, changed: str) -> None:
    prefix = f"changed-{changed.replace(' ', '-')}"
    results, bucket = store(server, prefix), Bucket(server.place(prefix))
    kept = keep(results, "ada", b"the body")
    [name] = server.names(prefix)
    found = bucket.read(name, 0, 10_000)
    assert found is not None
    bad = {"last byte": found.data[:-1] + b"!", "cut": found.data[:-1], "first line": b"x" + found.data}[changed]
    bucket.put(name, [bad])
    with pytest.raises(NotFound):
        results.body("ada", kept)


def test_names_in_any_script_fit_the_metadata_line(server: ObjectStorage) -> None:
    results = store(server, "scripts", max_bytes=10**8)
    for origin in ("🌕" * 600, "up__\ud800", '"' * 600, "\x00" * 600):
        kept = results.keep("ada", b"b" * 70_000_000 if "🌕" in origin else b"b", mime_type="🌕" * 300, origin=origin)
        assert results.slice("ada", kept.id, kept.size - 1, 1) == b"b"


def test_store_of_the_settings_has_the_same_results(server: ObjectStorage) -> None:
    results = store(server, "settings")
    kept = keep(results, "ada", b"body")
    assert open_results(results.settings).body("ada", kept) == b"body"


async def test_check_leaves_nothing_in_the_bucket(server: ObjectStorage) -> None:
    await store(server, "checked").check()
    assert server.names("checked") == []


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "missing bucket": ({"bucket": MISSING_BUCKET}, "the bucket does not exist"),
    "bucket of another user": ({"bucket": "other-bucket"}, "access is denied"),
    "secret key": ({"secret_key": "wrong-secret-key"}, "the secret key is wrong"),
    "access key": ({"access_key": "AKIAWRONG"}, "the access key is unknown"),
    "nobody listens": ({"endpoint": "http://127.0.0.1:{port}"}, "no connection"),
    "unknown host": ({"endpoint": "http://object-storage.invalid"}, "no connection"),
    "plain server": ({"endpoint": "https://127.0.0.1:{own}"}, "no connection"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_unusable_bucket_is_named_with_the_reason_and_no_secret(server: ObjectStorage, wrong: str) -> None:
    place, reason = WRONG[wrong]
    place = {key: value.format(port=free_port(), own=server.url.rpartition(":")[2]) for key, value in place.items()}
    results = store(server, "wrong", **place)
    began = time.monotonic()
    with pytest.raises(StorageUnusable) as refused:
        await results.check()
    assert time.monotonic() - began < 8
    text = str(refused.value)
    assert reason in text
    assert repr(place.get("bucket", BUCKET)) in text
    assert place.get("endpoint", server.url) in text
    assert server.secret_key not in text
    assert "wrong-secret-key" not in text
    with pytest.raises(StorageUnusable, match=reason):
        keep(results, "ada", b"body")


def test_server_that_does_not_answer_delays_only_the_first_call(server: ObjectStorage) -> None:
    results = store(server, "silent", timeout_seconds=3)
    kept = keep(results, "ada", b"body")
    server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(StorageUnusable, match="no answer within 2 s"):
            keep(results, "ada", b"more")
        assert time.monotonic() - began < 5
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(StorageUnusable, match="the next attempt is in"):
                results.find("ada", kept)
        assert time.monotonic() - began < 1
    finally:
        server.go_on()
    with pytest.raises(StorageUnusable):
        results.find("ada", kept)
    assert store(server, "silent").body("ada", kept) == b"body"


async def test_check_of_a_server_that_does_not_answer_ends_in_time(server: ObjectStorage) -> None:
    results = store(server, "silent", timeout_seconds=25)
    server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(StorageUnusable, match="no answer within"):
            await results.check()
        assert time.monotonic() - began < 8
    finally:
        server.go_on()


async def test_private_authority_is_trusted_by_its_certificate_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = tmp_path / "authority.pem"
    with object_storage(authority) as server:
        with pytest.raises(StorageUnusable, match="the server's certificate is not trusted"):
            await store(server, "tls").check()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        await store(server, "tls").check()
