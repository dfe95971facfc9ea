"""The sandbox for scripts of skills: `sandbox.Sandbox` starts and watches a run, `launcher` confines its process.

Decided: Linux namespaces with a root file system of their own, Landlock, seccomp and resource limits, set up by a launcher that is
started as a program; bubblewrap if namespaces are not allowed. Because they need no privileges and no service, and cost about 20 ms.
Instead of containers (a daemon), `preexec_fn` (unsafe with threads), or an interpreter in WebAssembly (existing scripts would not run).
`Sandbox.probe` tests what the machine supports; below the minimum no script runs. Revisit when a small, well-maintained package does the
same.

The launcher consists of `launcher`, `namespaces`, `landlock`, `seccomp`, `connection_broker`, `disk_usage` and `kernel`. They import only
each other and small parts of the standard library, because imports take longer than the launcher's work.
"""

NOBODY = 65534
"""User id of the script inside its namespace, and outside if the gateway is root. Not root, so that starting the script drops every
capability."""
