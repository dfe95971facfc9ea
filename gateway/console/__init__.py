"""Pages for people, on the gateway's own port. Read-only."""
