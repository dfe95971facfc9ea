"""Ready-made context providers for agents: todo list, modes, background agents, memory, search and Redis history."""
