"""Skills: instructions for models, each in a `SKILL.md`, served as MCP tools, resources, prompts and by the MCP skills extension.

A skill is a folder with a `SKILL.md`, is a Python object, or comes from a remote MCP server. `model` has the types. `parser` parses
`SKILL.md`; `folders` and `reader` read the disk; `remote` and `code` convert skills of remote servers and Python objects. `index` assigns
each skill its id and URIs, `library` keeps the index current and reads files, and `render` formats skills as text for models.
`skill_tools`, `run_tool` and `extension` answer requests of clients; `source.SkillSource` combines them for the package `app`. `objects`
has classes with the names and arguments of Microsoft's agent framework. The package `agents` does not import this package.

Decided: one immutable index, which is built again after a check of each file's size and times (`stat`) and replaced as a whole, instead of
a file watcher. Because: tools, resources, prompts and the extension must agree, and network mounts and containers lose file events. Revisit
when: checking thousands of skills every few seconds costs too much.
"""
