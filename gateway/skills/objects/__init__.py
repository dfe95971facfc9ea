"""Skills as Python objects: classes with the names and rules of Microsoft's agent framework, for programs that build agents.

A `SkillsSource` returns skills to a program: `file_source` reads folders with `skills.reader`, and `mcp_source` converts the entries of a
remote server with `skills.remote`, which also checks the digests of the files. `skills.parser` checks the fields of all skills, and
`skills.render` formats their text. These sources leave out more skills than the gateway's skill index does, because agent-framework's rules
are stricter. Skills that the gateway serves from folders do not pass through these classes.

Decided: the sources are adapters over `skills.reader`, `skills.parser` and `skills.remote`, as the gateway's index is, but not over the
index. Because: the index gives every skill an id and URIs that no other skill has, and keeps skills with warnings; a source of
agent-framework returns a skill under its own name, may return several of one name, and leaves out skills for many of these warnings.
Revisit when: agent-framework's skills have URIs.

Decided: the text of a skill object has the form of agent-framework core 1.13 and newer, with `<available_resources>` and
`<available_scripts>` at its end. A script needs approval to run; loading a skill and reading its files do not. Because: prompts and models
are written for this form. Instead of: the behaviour of the installed version of agent-framework.
"""
