"""Skills as objects: agent-framework's classes, for programs that build agents with this package.

The sources are adapters: `file_source` reads folders with `skills.reader`, and `mcp_source` converts a server's entries and checks its
files with `skills.remote`. `skills.parser` checks the fields of all skills, and `skills.render` makes the texts. The sources leave out
more skills than the gateway's own index, because agent-framework's rules are stricter.
Skills that the gateway serves from folders do not pass through these classes.

Decided: an object's text is agent-framework's since core 1.13, with `<available_resources>` and `<available_scripts>` at its end. Loading
and reading need no approval, scripts do. Because prompts and models are written for that. Instead of following the installed version.
"""
