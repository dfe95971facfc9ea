from gateway.agents.remote.a2a_agent import A2AAgent as A2AAgent
