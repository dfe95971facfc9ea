"""The log on stderr: one line per event, no forged lines, no secrets, nothing on stdout."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.telemetry.logging import MASK, SecretMask, configure_logging, escape_controls

logger = logging.getLogger("gateway.tests.logging")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("gateway")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)
    logging.captureWarnings(capture=False)


def test_event_is_one_line_with_time_level_and_logger() -> None:
    out = io.StringIO()
    configure_logging("info", stream=out)
    logger.info("started %s", "docs")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO gateway\.tests\.logging started docs\n", out.getvalue())


@pytest.mark.attack(27)
def test_control_characters_and_tracebacks_stay_on_the_line() -> None:
    out = io.StringIO()
    configure_logging("info", stream=out)
    logger.info("name %s", "a\nFORGED\r\x1b[31mred\x07\u2028\u202eevil\x9b\x00\t")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].endswith(r"a\nFORGED\r\x1b[31mred\x07\u2028\u202eevil\x9b\x00\t")
    assert r"two\nlines" in lines[1]


@pytest.mark.attack(28)
def test_registered_secrets_never_reach_the_log() -> None:
    mask = SecretMask()
    secret = 'p"a/ss\nwörd+1'
    mask.register_secret(secret)
    out = io.StringIO()
    configure_logging("debug", mask=mask, stream=out)
    logger.debug("plain %s", secret)
    logger.debug("url https://x/?t=%s", "p%22a%2Fss%0Aw%C3%B6rd%2B1")
    logger.debug("dict %r json %s", {"k": secret}, '{"k":"p\\"a/ss\\nw\\u00f6rd+1"}')
    try:
        raise RuntimeError(f"refused {secret}")
    except RuntimeError:
        logger.exception("failed")
    assert out.getvalue().count(MASK) == 5
    assert not any(part in out.getvalue() for part in ("wörd", "w%C3%B6rd", "w\\u00f6rd"))


def test_longer_secret_that_holds_a_shorter_one_is_hidden_whole() -> None:
    mask = SecretMask()
    mask.register_secret("abcdef")
    mask.register_secret("abcdef-ghijkl")
    assert mask.mask("x abcdef-ghijkl y abcdef z") == f"x {MASK} y {MASK} z"


def test_short_values_are_left_alone() -> None:
    mask = SecretMask()
    mask.register_secret("true")
    mask.register_secret("")
    assert mask.mask("true story") == "true story"


def test_level_applies_to_us_and_others_log_from_warning_up() -> None:
    out = io.StringIO()
    configure_logging("debug", stream=out)
    logger.debug("ours")
    logging.getLogger("someone.else").info("request headers")
    logging.getLogger("someone.else").warning("theirs")
    assert "ours" in out.getvalue()
    assert "theirs" in out.getvalue()
    assert "request headers" not in out.getvalue()


def test_setting_up_again_replaces_the_earlier_set_up() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure_logging("info", stream=first)
    configure_logging("warning", stream=second)
    logger.info("quiet")
    logger.warning("loud")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


def test_stdout_carries_nothing() -> None:
    program = (
        "import logging, warnings; from gateway.telemetry.logging import configure_logging; configure_logging('debug');"
        "logging.getLogger('gateway.x').error('oops'); logging.getLogger('y').warning('hm'); warnings.warn('careful')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == ""
    assert all(word in done.stderr for word in ("oops", "hm", "careful"))


def test_escaping_leaves_ordinary_text_alone() -> None:
    assert escape_controls("Grüße, 日本語 👩‍👩‍👧 ~") == "Grüße, 日本語 👩‍👩‍👧 ~"
