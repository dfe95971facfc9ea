"""Matching URIs against URI templates."""

from __future__ import annotations

import pytest

from gateway.catalog.templates import matches_template


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("test://template/{id}/data", "test://template/7/data", True),
        ("test://template/{id}/data", "test://template/7/8/data", False),
        ("test://template/{id}/data", "test://other/7/data", False),
        ("file://{+path}", "file:///a/b/c.txt", True),
        ("db://{table}{?limit}", "db://users", True),
        ("a.b://{x}", "aXb://1", False),
    ],
)
def test_uri_fits_a_template_when_its_expressions_can_produce_it(template: str, uri: str, fits: bool) -> None:
    assert matches_template(template, uri) is fits


def test_template_made_to_be_slow_matches_nothing() -> None:
    assert matches_template("x://" + "{a}" * 400, "x://" + "a" * 2_000 + "!/") is False


def test_over_long_template_matches_nothing() -> None:
    assert matches_template("x://" + "y" * 3_000, "x://" + "y" * 3_000) is False
