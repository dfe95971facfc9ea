"""The state of conversations with agents: sessions, stored history, context providers, and compaction of long conversations."""
