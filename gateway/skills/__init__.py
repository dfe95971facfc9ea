"""Skills: `SKILL.md` folders, skills in code and skills of servers, served as tools, resources, prompts and the skills extension.

`model` has the types. `parser` parses `SKILL.md`; `folders` and `reader` read the disk; `remote` and `code` convert skills of servers and
of Python code. `index` names all skills, `library` keeps the index current and reads files, and `render` makes the texts for models.
`skill_tools`, `run_tool` and `extension` answer requests of clients; `source.SkillSource` combines them for `app`. `objects` has
agent-framework's classes. Agents do not import this package.

Decided: one immutable index, built again by `stat` and swapped as a whole, instead of a file watcher. Because tools, resources, prompts
and the extension must agree, and network mounts and containers lose file events. Revisit when a pass over thousands of skills every few
seconds costs too much.
"""
