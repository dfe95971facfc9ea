"""Runs scripts of skills so that they can do no harm: `launcher` shuts the process in, `run` starts and watches it.

Decided: Linux namespaces with a root of their own, Landlock, seccomp and resource limits, set up by a launcher of our own that is started
as a program; bubblewrap if namespaces are not allowed. Because they need no privileges and no service, and cost some twenty milliseconds.
Instead of containers (a daemon), `preexec_fn` (unsafe with threads), or an interpreter in WebAssembly (existing scripts would not run).
`run.probe` tries what the machine can do, and below the floor nothing is run. Revisit when a small, well-kept package does the same.

The launcher consists of `launcher`, `root`, `landlock`, `filters`, `connects`, `usage` and `kernel`. They import only each other and
small parts of the standard library: what it imports takes longer than what it does.
"""

NOBODY = 65534
"""The script's user inside its namespace, and outside if the gateway is root: not root, so that starting it drops every capability."""
