"""Files of agents: stores, text search, and the provider of the file tools."""
