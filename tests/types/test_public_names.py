"""The names that `import gateway` offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gateway

HEAVY = ("openai", "mcp", "uvicorn", "click", "pydantic", "anyio", "starlette")


def test_every_public_name_loads_from_where_the_table_says() -> None:
    for name in gateway.__all__:
        assert getattr(gateway, name) is not None
    assert sorted(gateway.__all__) == dir(gateway)


FACADES = sorted(path.stem for path in Path(gateway.__file__).parent.glob("*.py") if "\n__all__ = " in path.read_text(encoding="utf-8"))
"""The modules beside the package's own that offer names to programs."""


@pytest.mark.requirement("AG10", "AG11")
@pytest.mark.parametrize("name", [name for name in FACADES if name != "__init__"])
def test_dir_of_facade_lists_its_names_before_they_are_loaded(name: str) -> None:
    assert "openai" in FACADES and "orchestrations" in FACADES
    missing = "set(it.__all__) - set(dir(it))"
    probe = f"import gateway.{name} as it; print({missing}, [n for n in it.__all__ if getattr(it, n) is None])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "set() []"


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="Agnet"):
        _ = gateway.Agnet


@pytest.mark.parametrize("statement", ["import gateway", "from gateway import Message, Content, ChatResponse"])
def test_importing_plain_names_brings_no_heavy_package(statement: str) -> None:
    probe = f"{statement}; import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_an_agent_and_its_client_import_without_the_openai_package() -> None:
    probe = "from gateway import Agent, OpenAIChatClient; OpenAIChatClient('m', api_key='x'); import sys; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "False"
