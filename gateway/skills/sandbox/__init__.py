"""Running a script of a skill where it can do no harm: `launcher` shuts the process in, `run` starts and watches it.

Decided: Linux namespaces, Landlock, seccomp and resource limits, set up by a launcher of our own that is started as a
program; bubblewrap where own namespaces are not allowed. Because they need no privileges and no service, and cost
some twenty milliseconds. Instead of containers (a daemon), `preexec_fn` (unsafe with threads), or an interpreter in
WebAssembly (existing scripts would not run). What the machine cannot do is found out by trying it (`run.probe`), and
below the floor nothing is run. Revisit when a small, well-kept package does the same.
"""
