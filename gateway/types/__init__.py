"""Provider-neutral messages, contents, responses and options of the agent runtime."""
