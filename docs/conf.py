"""Settings of the documentation site: `make docs` builds it with Sphinx and MyST from the Markdown pages of this folder."""

from __future__ import annotations

from typing import Any

from pygments.lexers.javascript import JavascriptLexer

project = "Moongate"
author = "The Moongate authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Moongate"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 4
nitpicky = True


def setup(app: Any) -> None:
    """Register the language of the examples that are JSON with comments."""
    app.add_lexer("jsonc", JavascriptLexer)
