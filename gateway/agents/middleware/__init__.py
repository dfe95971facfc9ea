"""Ready-made middleware for agents: approvals, agent loops, limits, caches, retries, redaction and information flow."""
