"""Parsers of messages and files survive any input: hypothesis in every run, atheris in `make faults` if it can be installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.running import ROOT
from tests.faults.fuzz import SEEDS, TARGETS

pytestmark = [pytest.mark.fault(26), pytest.mark.attack(32)]
SECONDS = 20


def spoiled(seed: bytes) -> st.SearchStrategy[bytes]:
    """Generate variants of a seed: random bytes replace or repeat a part of the seed, and the seed may be appended again."""
    cuts = st.tuples(st.integers(0, len(seed)), st.integers(0, len(seed)))

    def spoil(cut: tuple[int, int], piece: bytes, again: bool) -> bytes:
        return seed[: cut[0]] + piece + seed[cut[1] :] + (seed if again else b"")

    return st.builds(spoil, cuts, st.binary(max_size=30), st.booleans())


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_reader_survives_seeds_spoiled_in_one_place(name: str) -> None:
    target = TARGETS[name]
    for seed in SEEDS[name]:
        target(seed)

    @settings(max_examples=60)
    @given(st.one_of(st.binary(max_size=200), *map(spoiled, SEEDS[name])))
    def feed(data: bytes) -> None:
        target(data)

    feed()


@pytest.mark.faults
@pytest.mark.timeout(180)
@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris, which is not for every Python")
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_reader_survives_atheris_inputs(name: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.faults.fuzz", name, str(SECONDS), str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
