"""The names that `import gateway` offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gateway

HEAVY = ("openai", "mcp", "uvicorn", "click", "pydantic", "anyio", "starlette")


def test_every_public_name_loads() -> None:
    for name in gateway.__all__:
        assert getattr(gateway, name) is not None
    assert sorted(gateway.__all__) == dir(gateway)


FACADES = sorted(path.stem for path in Path(gateway.__file__).parent.glob("*.pyi"))
"""Public modules of names that are defined elsewhere."""


@pytest.mark.requirement("AG10", "AG11")
def test_dir_of_facades_lists_their_names_before_they_are_loaded() -> None:
    names = [name for name in FACADES if name != "__init__"]
    assert {"openai", "orchestrations", "redis"} <= set(names)
    probe = f"""
from importlib import import_module
for name in {names!r}:
    it = import_module(f"gateway.{{name}}")
    assert set(it.__all__) <= set(dir(it)), name
    assert all(getattr(it, one) is not None for one in it.__all__), name
"""
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="Agnet"):
        getattr(gateway, "Agnet")  # noqa: B009  # a type checker knows that the name does not exist


@pytest.mark.parametrize("statement", ["import gateway", "from gateway import Message, Content, ChatResponse"])
def test_importing_plain_names_brings_no_heavy_package(statement: str) -> None:
    probe = f"{statement}; import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_agent_and_its_client_import_without_the_openai_package() -> None:
    probe = "from gateway import Agent, OpenAIChatClient; OpenAIChatClient('m', api_key='x'); import sys; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "False"
