"""Conversation state: sessions, context providers, history."""
