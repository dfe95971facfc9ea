"""Messages, contents, responses and options of agents and chat clients, independent of the model provider."""
