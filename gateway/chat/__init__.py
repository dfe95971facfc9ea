"""Clients for chat and embedding models: OpenAI's Responses and Chat Completions APIs, AG-UI, MCP sampling, and scripted test answers."""
