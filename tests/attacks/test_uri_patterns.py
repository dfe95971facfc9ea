"""Attack 30, URIs that lead past a pattern: a URI that a server may resolve to another place is rejected if a pattern judges its text."""

from __future__ import annotations

import posixpath
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pytest

from gateway.auth.api_keys import KeyStore
from gateway.catalog.uris import uri_to_judge
from gateway.config.policies import SkillFilter
from gateway.policy.decision import PASS, Reject
from gateway.policy.scopes import judge_scope
from gateway.policy.skill_policy import judge_skill_uri
from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.raw_upstream import Raw
from tests.interaction.wire import Era, over_http

pytestmark = [pytest.mark.attack(30), pytest.mark.timeout(60)]
ERAS: tuple[Era, ...] = ("legacy", "modern")
FILES = {"/docs/a.txt": "open", "/secret.txt": "gold", "/shut/SKILL.md": "gold", "/open/SKILL.md": "open"}
CLERK = "---\nname: clerk\ndescription: Reads.\nmodel: openai-chat:none\n---\nRead.\n"
KEYS: dict[str, tuple[str, ...]] = {"narrow": ("resources:files/file:///docs/*", "agent/clerk"), "wide": ("files",)}


class Files(Raw):
    """Resolves the path of every URI, as servers of files do."""

    def __init__(self) -> None:
        templates = [{"uriTemplate": uri, "name": uri} for uri in ("file:///docs/{+path}", "file:///{+path}", "skill://{+path}")]
        super().__init__({"resources": [{"uri": "file:///docs/a.txt", "name": "a"}], "templates": templates}, modern=False)
        self.seen: list[str] = []

    def answer(self, method: str, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        if method == "completion/complete":
            self.seen.append(params["argument"]["value"])
            return {"result": {"completion": {"values": ["secret.txt"], "total": 1, "hasMore": False}}}
        if method in ("resources/subscribe", "resources/unsubscribe"):
            self.seen.append(params["uri"])
            return {"result": {}}
        if method != "resources/read":
            return super().answer(method, params, headers)
        path = posixpath.normpath("/" + unquote(str(params["uri"]).partition("://")[2]).lstrip("/"))
        self.seen.append(path)
        return {"result": {"contents": [{"uri": params["uri"], "text": FILES.get(path, "")}]}}

    def introduction(self, method: str) -> dict[str, Any]:
        said = super().introduction(method)
        said["capabilities"] |= {"resources": {"subscribe": True}, "completions": {}}
        return said


@dataclass(frozen=True)
class Deployment:
    url: str
    keys: dict[str, str]
    server: Files


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("uri-patterns")
    (folder / "clerk.agent.md").write_text(CLERK)
    store = KeyStore(folder / "gateway-state" / "keys.json")
    keys = {name: store.add(name, scopes=scopes).token for name, scopes in KEYS.items()}
    server = Files()
    with ExitStack() as stack:
        files = stack.enter_context(raw_inside(server))
        config: dict[str, Any] = {
            "mcpServers": {"files": {"type": "http", "url": files}},
            "policies": {"files": {"skills": {"deny": ["shut"]}}},
            "expose": {"agents": ["."]},
        }
        yield Deployment(stack.enter_context(gateway_inside(folder, config)).url, keys, server)


LEADING_OUT = [
    "file:///docs/../secret.txt",
    "file:///docs/%2e%2e/secret.txt",
    "file:///docs/..%2Fsecret.txt",
    "file:///docs/./../secret.txt",
]


@pytest.mark.parametrize("era", ERAS)
async def test_pattern_does_not_cover_a_uri_the_server_resolves_elsewhere(deployment: Deployment, era: Era) -> None:
    deployment.server.seen.clear()
    async with over_http(deployment.url, era, token=deployment.keys["narrow"], tasks=False) as wire:
        assert "open" in str(await wire.send("resources/read", uri="files+file:///docs/a.txt"))
        for uri in LEADING_OUT:
            refused = await wire.send("resources/read", uri=f"files+{uri}")
            assert refused["error"]["data"]["error"] == "insufficient_scope", refused
            linked = {"task": "go", "attachments": [{"type": "resource_link", "uri": f"files+{uri}"}]}
            called = (await wire.send("tools/call", name="agent__clerk", arguments=linked))["result"]
            assert called["isError"] and "no scope for resource" in called["content"][0]["text"], called
            if era == "legacy":
                assert "error" in await wire.send("resources/subscribe", uri=f"files+{uri}")
        ref = {"type": "ref/resource", "uri": "files+file:///docs/{+path}"}
        assert "error" in await wire.send("completion/complete", ref=ref, argument={"name": "path", "value": "../s"})
        assert "result" in await wire.send("completion/complete", ref=ref, argument={"name": "path", "value": "s"})
    assert deployment.server.seen == ["/docs/a.txt", "s"]


async def test_key_for_the_whole_server_reads_what_the_server_resolves(deployment: Deployment) -> None:
    async with over_http(deployment.url, "modern", token=deployment.keys["wide"], tasks=False) as wire:
        for uri in LEADING_OUT:
            assert "gold" in str(await wire.send("resources/read", uri=f"files+{uri}"))


@pytest.mark.parametrize("uri", ["skill://open/../shut/SKILL.md", "skill://open/%2e%2e/shut/SKILL.md", "skill://%73hut/SKILL.md"])
async def test_denied_skill_is_not_read_by_another_spelling(deployment: Deployment, uri: str) -> None:
    deployment.server.seen.clear()
    async with over_http(deployment.url, "modern", token=deployment.keys["wide"], tasks=False) as wire:
        refused = await wire.send("resources/read", uri=f"skill://files/{uri.removeprefix('skill://')}")
        plain = await wire.send("resources/read", uri=f"files+{uri}")
    assert "error" in refused and "error" in plain, (refused, plain)
    assert deployment.server.seen == []


DOUBTFUL = [
    *LEADING_OUT, "file:///docs/..", "file:///docs/.", "file:///docs/%252e%252e/s", "file:///docs/%25252e./s", "file:///docs/..\\s",
    "file:///docs/..%5Cs", "file:///docs/..;v=1/s", "file:///docs/.;v/s", "file:///docs//etc/s", "file:///docs/%2Fetc/s",
    "file:///docs/%c0%ae%c0%ae/s", "file:///docs/%u002e./s", "file:///docs/\uff0e\uff0e/s", "file:///docs/%EF%BC%8E./s",
    "file:///docs/.%00./s", "file:///docs/.\u200b./s", "file:///docs/%20../s", "file:///docs/x?path=../s", "file:///docs/x#/../s",
    "file:///docs/%" + "25" * 12 + "41",
]  # fmt: skip
PLAIN = [
    "file:///docs/a.txt", "file:///docs/", "file:///docs/.hidden/a..b", "file:///docs/a%20b/%C3%A9.md", "file:///docs/\u00e9 e.md",
    "file:///docs/x?v=1.5&w=a/b#c", "file:///docs/C:/x", "file:///docs/https://x.example/y", "file:///docs/{+path}", "file:///docs/100%",
]  # fmt: skip


@pytest.mark.parametrize("uri", DOUBTFUL)
def test_doubtful_spelling_passes_exact_and_whole_scopes_only(uri: str) -> None:
    narrow = judge_scope(["resources:files/file:///docs/*", "files/file:*"], "resources", "files", uri)
    assert isinstance(narrow, Reject) and "no pattern covers it" in narrow.reason
    assert judge_scope(["resources:files/file:///docs/*", "files"], "resources", "files", uri) is PASS
    assert judge_scope([f"files/{uri}"], "resources", "files", uri) is PASS
    assert judge_scope(["files/*docs*"], "tools", "files", uri) is PASS


@pytest.mark.parametrize("uri", PLAIN)
def test_plain_spelling_passes_patterns(uri: str) -> None:
    assert judge_scope(["resources:files/file:///docs/*"], "resources", "files", uri) is PASS


@pytest.mark.parametrize(
    ("uri", "served"),
    [
        ("skill://open/a%20b.md", True),
        ("skill://open/./a.md", False),
        ("SKILL://shut/a", False),
        ("skill:/shut/a", False),
        ("skill:///shut/a", False),
        ("skill://SHUT/a", False),
        ("skill://x@shut/a", False),
        ("skill://shut:80/a", False),
        ("skill://shut;v=1/a", False),
        ("skill://shut?v", False),
        ("skill://shut%2Fa", False),
        ("skill://team%2Fpdf/a", False),
        ("skill://team\\pdf/a", False),
    ],
)
def test_denied_skill_is_known_in_every_spelling(uri: str, served: bool) -> None:
    assert judge_skill_uri(uri, SkillFilter(deny=["shut", "team/pdf"])) is served
    assert judge_skill_uri(uri, SkillFilter()) is True


@pytest.mark.parametrize(
    ("template", "argument", "others", "judged"),
    [
        ("f:///d/{+p}", ("p", "../s"), {}, "f:///d/../s"),
        ("f:///d/{+p}", ("p", "s"), {}, "f:///d/{+p}"),
        ("f:///d/{a}/{b}", ("b", "s"), {"a": ".."}, "f:///d/../s"),
        ("f:///d/{a,b}", ("c", ".."), {}, "f:///d/{a,b}"),
        ("f:///d{/p*}", ("p", "/../s"), {}, "f:///d/../s"),
    ],
)
def test_completion_is_judged_with_its_values(template: str, argument: tuple[str, str], others: dict[str, str], judged: str) -> None:
    assert uri_to_judge(template, {"name": argument[0], "value": argument[1]}, {"arguments": others}) == judged
