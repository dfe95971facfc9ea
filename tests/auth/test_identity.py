"""The proof that a running gateway serves one configuration with one state folder."""

from __future__ import annotations

from pathlib import Path

from gateway.auth.identity import CHALLENGE_PATTERN, Identity
from gateway.storage.state import StateFolder

CHALLENGE = "0123456789abcdef" * 2


def test_proof_holds_for_one_state_configuration_port_and_challenge(tmp_path: Path) -> None:
    state, file = StateFolder(tmp_path / "a"), tmp_path / "gateway.json"
    file.write_text("{}")
    (tmp_path / "mounted.json").symlink_to(file)
    proof = Identity(state, file).prove(CHALLENGE, 8765)
    assert Identity(StateFolder(tmp_path / "a"), tmp_path / "a" / ".." / "gateway.json").prove(CHALLENGE, 8765) == proof
    mounted = Identity(state, tmp_path / "mounted.json").prove(CHALLENGE, 8765)
    (tmp_path / "mounted.json").unlink()
    (tmp_path / "mounted.json").symlink_to(tmp_path / "updated.json")
    assert Identity(state, tmp_path / "mounted.json").prove(CHALLENGE, 8765) == mounted
    others = [
        Identity(StateFolder(tmp_path / "b"), file).prove(CHALLENGE, 8765),
        Identity(state, tmp_path / "other.json").prove(CHALLENGE, 8765),
        Identity(state, file).prove(CHALLENGE, 8766),
        Identity(state, file).prove(CHALLENGE[::-1], 8765),
    ]
    assert len({proof, *others}) == 5


def test_challenge_is_128_bits_in_hexadecimal_digits() -> None:
    assert CHALLENGE_PATTERN.match(CHALLENGE)
    assert not any(CHALLENGE_PATTERN.match(text) for text in ("", CHALLENGE[:-1], f"{CHALLENGE}0", CHALLENGE.upper(), f"{CHALLENGE}\n"))
