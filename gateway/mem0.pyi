from gateway.agents.providers.mem0 import Mem0ContextProvider as Mem0ContextProvider
