"""Middleware that is included: approvals, agent loops, limits, caches, retries, redaction and information flow."""
