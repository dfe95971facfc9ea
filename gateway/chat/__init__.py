"""Model clients behind one method: OpenAI Responses, Chat Completions, the connected client's sampling, scripted."""
