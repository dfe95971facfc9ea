"""Skills as objects: for programs that build agents with this package, under agent-framework's names and call shapes.

Order of the modules, each importing only those before it: `frontmatter`, `members`, `content`, `skill`, `class_skill`,
`sources`, `files`, `archives`, `remote`, `provider`. They follow requirements 3.D, which is stricter about files than
the gateway's own index (`gateway.skills.index`): what the gateway serves to clients does not come through here.

Decided: an object's text is what agent-framework gives, since core 1.13 with `<available_resources>` and
`<available_scripts>` at its end; loading and reading are free and scripts need approval (requirements C25). Because
both are what the requirements settle on. Instead of following the installed version of the framework.
"""
