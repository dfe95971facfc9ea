"""The proof that a running gateway serves one configuration with one state folder."""

from __future__ import annotations

from pathlib import Path

from gateway.auth.identity import CHALLENGE_PATTERN, Identity
from gateway.storage.state_folder import StateFolder

CHALLENGE = "0123456789abcdef" * 2


def test_proof_is_valid_for_one_state_configuration_port_challenge(tmp_path: Path) -> None:
    state, file = StateFolder(tmp_path / "a"), tmp_path / "gateway.json"
    proof = Identity(state, file).prove(CHALLENGE, 8765)
    assert Identity(StateFolder(tmp_path / "a"), tmp_path / "a" / ".." / "gateway.json").accepts(proof, CHALLENGE, 8765)
    others = [
        Identity(StateFolder(tmp_path / "b"), file).prove(CHALLENGE, 8765),
        Identity(state, tmp_path / "other.json").prove(CHALLENGE, 8765),
        Identity(state, file).prove(CHALLENGE, 8766),
        Identity(state, file).prove(CHALLENGE[::-1], 8765),
    ]
    assert len({proof, *others}) == 5


def test_folder_links_keep_the_configuration_and_file_links_do_not(tmp_path: Path) -> None:
    state, link = StateFolder(tmp_path / "state"), tmp_path / "link"
    for name in ("real", "later"):
        (tmp_path / name).mkdir()
    link.symlink_to("real")
    written = Identity(state, link / "gateway.json").prove(CHALLENGE, 8765)
    resolved = Identity(state, tmp_path / "real" / "gateway.json")
    assert resolved.accepts(written, CHALLENGE, 8765)
    assert Identity(state, link / "gateway.json").accepts(resolved.prove(CHALLENGE, 8765), CHALLENGE, 8765)
    (tmp_path / "other.json").symlink_to(tmp_path / "real" / "gateway.json")
    assert not Identity(state, tmp_path / "other.json").accepts(written, CHALLENGE, 8765)
    link.unlink()
    link.symlink_to("later")
    assert Identity(state, link / "gateway.json").accepts(written, CHALLENGE, 8765)
    assert not resolved.accepts("", CHALLENGE, 8765)


def test_challenge_is_128_bits_in_hexadecimal_digits() -> None:
    assert CHALLENGE_PATTERN.match(CHALLENGE)
    assert not any(CHALLENGE_PATTERN.match(text) for text in ("", CHALLENGE[:-1], f"{CHALLENGE}0", CHALLENGE.upper(), f"{CHALLENGE}\n"))
