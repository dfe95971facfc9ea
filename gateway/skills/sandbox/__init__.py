"""The sandbox for scripts of skills: `sandbox.Sandbox` starts and watches a run of a script, `launcher` confines the script's process.

Decided: Linux namespaces with their own root file system, Landlock, seccomp and resource limits. The launcher, a separate program, sets
them up; if it may not create namespaces, bubblewrap creates them. Because: this needs no privileges and no service, and costs about 20 ms.
Instead of: containers (need a daemon), `preexec_fn` (unsafe with threads), or an interpreter in WebAssembly (existing scripts would not
run). Revisit when: a small, well-maintained package does the same.

`Sandbox.probe` tests what the machine supports; below a minimum no script runs.

The launcher consists of `launcher`, `namespaces`, `landlock`, `seccomp`, `connection_broker`, `disk_usage` and `kernel`. These modules
import only each other and small parts of the standard library, because imports take longer than the launcher's work.
"""

NOBODY = 65534
"""User id of a script inside its namespaces, and outside if the gateway runs as root. It is not root, so that starting the script's program
drops every capability."""
