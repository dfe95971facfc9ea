"""Files of agents: stores, the search in them, and the provider that gives an agent the tools for one."""
