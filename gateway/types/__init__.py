"""Data types of agents and chat clients, independent of the model provider: messages, contents, responses, streams and options."""
