"""Context providers that are included: todo list, modes, background agents, memory, search and Redis history."""
