"""The gate: the checks that every tool call and every read passes, which are authorization, rules, approvals, limits and audit."""
