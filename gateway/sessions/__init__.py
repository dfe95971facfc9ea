"""State of conversations with agents: sessions, history, context providers and compaction."""
