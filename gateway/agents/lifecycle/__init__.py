"""Lifecycle hooks: classes with one method for each step of an agent's run, such as `before_iteration` (before a model call).

The hooks are implemented as agent, chat and function middleware. `before_*` hooks run in registration order; `after_*` hooks and `on_error`
run in reverse order. If several hooks wrap a call (`wrap_*`), the last registered hook is the outermost. In a list of middleware, by
contrast, the first item is the outermost. `docs/middleware.md` describes each hook and its context.
"""
