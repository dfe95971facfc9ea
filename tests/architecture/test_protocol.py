"""Names, codes and versions of the protocol are those of the SDK."""

from __future__ import annotations

import mcp_types
import pytest
from mcp.server import subscriptions
from mcp.shared import inbound
from mcp_types import version

from gateway import protocol
from tests.architecture.sources import name_of, python_files

SDK = (mcp_types, inbound, version, subscriptions)


@pytest.mark.parametrize("name", [name for name in vars(protocol) if name.isupper() and not name.endswith("_EXTENSION")])
def test_protocol_constants_equal_those_of_the_sdk(name: str) -> None:
    home = next(module for module in SDK if hasattr(module, name))
    theirs: object = getattr(home, name)
    assert getattr(protocol, name) == (dict(theirs) if name == "NAME_BEARING_METHODS" else theirs)  # pyright: ignore[reportArgumentType, reportCallIssue]  # a mapping there


@pytest.mark.parametrize(
    ("part", "module"), [('"cacheScope"', "gateway/tools/base.py"), ('"serverInfo"', "gateway/server/capabilities.py")]
)
def test_part_of_results_is_written_by_one_module(part: str, module: str) -> None:
    modules = python_files("gateway/server", "gateway/catalog", "gateway/skills", "gateway/tools")
    assert [name_of(path) for path in modules if part in path.read_text(encoding="utf-8")] == [module]
