"""Agents: agent files, the run loop, and agents as tools. All tools of an agent of the gateway pass the gate."""
