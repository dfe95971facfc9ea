"""The gate: authorization, rules, approvals, limits and audit for everything that can be called or read."""
