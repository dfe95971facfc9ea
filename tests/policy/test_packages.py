"""Start commands that do not fix the version of the program they run."""

from __future__ import annotations

import pytest

from gateway.policy.packages import floating_packages

pytestmark = pytest.mark.attack(34)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("npx -y some-server@latest", "some-server@latest"),
        ("npx --yes @scope/some-server@next --root /x", "@scope/some-server@next"),
        ("npx some-server@latest", "some-server@latest"),
        ("npx -y some-server", "some-server"),
        ("npx -y some-server@^1.2", "some-server@^1.2"),
        ("npx -y some-server@*", "some-server@*"),
        ("npx -y some-server@1.x", "some-server@1.x"),
        ("npx -y some-server@1.2", "some-server@1.2"),
        ("npx -p some-server@latest -c start", "some-server@latest"),
        ("npx --package=some-server@latest start", "some-server@latest"),
        ("/usr/bin/npx -y some-server@latest", "some-server@latest"),
        (r"C:\node\npx.cmd -y some-server@latest", "some-server@latest"),
        ("cmd /c npx -y some-server@latest", "some-server@latest"),
        ("npm exec -y -- some-server@latest", "some-server@latest"),
        ("pnpm dlx some-server@latest", "some-server@latest"),
        ("bunx some-server@latest", "some-server@latest"),
        ("uvx some-server@latest", "some-server@latest"),
        ("uvx some-server", "some-server"),
        ("uvx --from some-server[all]>=1 start", "some-server[all]>=1"),
        ("uvx --with extra@latest some-server==1.2.3", "extra@latest"),
        ("uvx --python 3.12 some-server", "some-server"),
        ("uv tool run some-server@latest", "some-server@latest"),
        ("pipx run some-server", "some-server"),
    ],
)
def test_version_left_to_the_registry_is_named(line: str, named: str) -> None:
    command, *args = line.split(" ")
    (told,) = floating_packages(command, args)
    assert f"'{named}'" in told


@pytest.mark.parametrize(
    "line",
    [
        "npx -y some-server@1.2.3",
        "npx -y @scope/some-server@1.2.3-beta.1 some-argument@latest",
        "npx some-server",  # runs the installed version
        "npx -y ./server",
        "npx -y https://example.com/server.tgz",
        "npm run some-server@latest",
        "uvx some-server@1.2.3",
        "uvx some-server==1.2.3 --tag latest",
        "uvx --from some-server==1.2.3 start@latest",
        "uvx --from git+https://example.com/x@latest start",
        "uv run server.py@latest",
        "python -m some_server@latest",
        "node server@latest",
        "cmd",
        "npx",
        "uvx --from",
    ],
)
def test_pinned_or_local_program_is_not(line: str) -> None:
    command, *args = line.split(" ")
    assert floating_packages(command, args) == []
