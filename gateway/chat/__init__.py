"""Chat clients: models over OpenAI's Responses and Chat Completions APIs, AG-UI, MCP sampling, and scripted answers for tests."""
