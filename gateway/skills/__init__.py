"""SKILL.md folders: parsed, indexed and served as tools, resources, prompts and extension payloads.

Order of the modules, each importing only those before it: `models`, `parser`, `files`, `mime`, `search`, `index`,
`library`, `render`, `extension`, `tools`, `sandbox`, `scripts`, `run_tool`, `provider`, `source`; beside them `checking`
for the command line and `objects` for programs. `app` uses `source`; the server binds what `SkillSource.extension`
returns. Agents never import this room.

Decided: one immutable index per state of the disk, swapped as a whole, and looked at again by `stat` instead of by
file events. Because every surface must agree, and events are missing on network mounts and containers. Instead of a
watcher. Revisit when a look at thousands of skills every few seconds costs too much.
"""
