"""Exposed names and URIs."""

from __future__ import annotations

import pytest

from gateway.catalog.names import NAME_BUDGET, expose_name, expose_names, expose_uri, split_uri, uri_label


def test_prefixed_name_joins_source_and_tool_with_two_underscores() -> None:
    assert expose_name("docs", "read_text") == "docs__read_text"


def test_empty_prefix_leaves_names_that_mcp_allows_unchanged() -> None:
    assert expose_name("", "weather.get-now") == "weather.get-now"


def test_characters_no_model_accepts_become_underscores() -> None:
    assert expose_name("docs", "files/read me") == "docs__files_read_me"


def test_long_name_is_cut_to_the_budget_with_a_stable_digest() -> None:
    long = "a" * 200
    name = expose_name("docs", long)
    assert len(name) == NAME_BUDGET
    assert name == expose_name("docs", long)
    assert name != expose_name("docs", long + "b")


def test_clients_own_prefix_shortens_the_budget() -> None:
    assert len(expose_name("docs", "x" * 60, NAME_BUDGET - len("mcp__moongate__"))) == NAME_BUDGET - 15


def test_two_native_tools_with_one_name_are_distinguished() -> None:
    names = expose_names("s", ["a.b", "a_b", "a b"])
    assert names["a_b"] == "s__a_b"
    assert len(set(names.values())) == 3


def test_exposed_names_keep_the_order_of_the_natives() -> None:
    assert list(expose_names("s", ["b.x", "a", "c"])) == ["b.x", "a", "c"]


@pytest.mark.parametrize(
    ("native", "exposed"),
    [
        ("file:///a/b.txt", "docs+file:///a/b.txt"),
        ("test://template/{id}/data", "docs+test://template/{id}/data"),
        ("skill://alpha/SKILL.md", "skill://docs/alpha/SKILL.md"),
        ("ui://widget.html", "ui://docs/widget.html"),
        ("skill://{+path}", "skill://docs/{+path}"),
    ],
)
def test_uri_survives_the_gateway_in_both_directions(native: str, exposed: str) -> None:
    assert expose_uri("docs", native) == exposed
    assert split_uri(exposed) == ("docs", native)


def test_label_is_what_url_parsers_leave_alone() -> None:
    assert uri_label("My_Server") == "my-server"
    assert uri_label("9lives")[0].isalpha()


def test_uri_parser_that_lowercases_the_scheme_keeps_the_source() -> None:
    assert split_uri("DOCS+file:///A") == ("docs", "file:///A")


@pytest.mark.parametrize("uri", ["file:///x", "plain", "https://a/b?c=d+e", "skill://alone"])
def test_uri_without_a_label_has_no_source(uri: str) -> None:
    assert split_uri(uri) is None
