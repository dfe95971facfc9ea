"""Context providers that come with the runtime: todo list, operating mode, background agents, memory in topic files."""
