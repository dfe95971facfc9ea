"""Agents: agent files, the run loop, and agents as tools. Every tool call of an agent that the gateway serves passes the gate
(package `gateway.gate`: authorization, approvals, limits)."""
