"""The page of public names is what the stubs and docstrings say now."""

from __future__ import annotations

from tests.docs.reference import PAGE, page


def test_reference_page_lists_public_names() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "`python -m tests.docs.reference` writes it"
