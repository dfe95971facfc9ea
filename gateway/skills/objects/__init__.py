"""Skills as Python objects: classes with the names and rules of Microsoft's agent framework, for programs that build agents.

A `SkillsSource` returns skills to a program: `file_source` reads folders with `skills.reader`, and `mcp_source` converts the entries of a
remote server and checks the digests of its files with `skills.remote`. `skills.parser` checks the fields of all skills, and `skills.render`
formats their text. These sources leave out more skills than the gateway's own index, because agent-framework's rules are stricter. Skills
that the gateway serves from folders do not pass through these classes.

Decided: the text of a skill object is the text of agent-framework since core 1.13, with `<available_resources>` and `<available_scripts>`
at its end. Loading and reading need no approval, running a script does. Because prompts and models are written for that. Instead of
following the behaviour of the installed version of agent-framework.
"""
