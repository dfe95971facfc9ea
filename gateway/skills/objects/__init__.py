"""Skills as objects: agent-framework's classes, for programs that build agents with this package.

The sources are adapters: `file_source` reads folders with `skills.reader`, `mcp_source` converts a server's entries with `skills.remote`,
and texts come from `skills.render`. Their rules are agent-framework's, which are stricter about files than the gateway's own index.
Skills that the gateway serves from folders do not pass through these classes.

Decided: an object's text is agent-framework's since core 1.13, with `<available_resources>` and `<available_scripts>` at its end. Loading
and reading need no approval, scripts do. Because prompts and models are written for that. Instead of following the installed version.
"""
