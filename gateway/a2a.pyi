from gateway.agents.remote.a2a import A2AAgent as A2AAgent
