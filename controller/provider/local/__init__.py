"""The local provider: each worker is a real process on this host that outlives whoever started it.

Not promised: surviving a reboot of the host (every worker is gone then, and says so); isolation of workers from each
other or from their user; limits on memory, processor or disk but for the size of a log; the end of a process that left
its step's process group (a daemon with a session of its own is nobody's to kill); the last output of a step whose
supervisor was killed.

A worker is a directory `S/workers/SLOT-ASSIGNMENT` and a supervisor process. The supervisor holds a kernel lock on
the file `lock` in that directory for as long as it lives; nothing else proves that it lives. What it accepted and how
that ended stands in `memory.jsonl`, durable before anybody is told. So a look reads the lock and the memory, never
asks a process, and a hung supervisor delays nobody. It takes requests on the socket `socket`, runs one step at a time
in a process group of its own that is recorded before its command starts, ends it at its time limit, and bounds its
log.

Whoever finds the lock free holds it for a moment, ends the groups that were recorded, records the ends that are
unknowable, and only then calls the worker gone.

The directory is a worker's data, the supervisor its compute. A resume is a create of the next generation for a
directory whose supervisor is gone: under the lock it ends what was left, puts the file that names the new generation in
place at once, and starts a supervisor, which inherits the lock. From then on the old generation is refused. Keys,
tokens and ends stay: they belong to the directory.

| where | owns |
|---|---|
| `places.py` | where everything lies: worker directories, logs, scratch; the file that says who a worker is |
| `lock.py` | the kernel lock of a worker directory |
| `memory.py` | the durable memory of keys, steps and tokens |
| `fence.py` | what a worker answers from memory: known keys, stale tokens, other generations |
| `groups.py` | signals to the process group of a step |
| `launch.py` | fork, gate, exec: how a step's command starts |
| `step.py` `log.py` | a step while it runs; its bounded log |
| `exchange.py` | the words between a client and a supervisor, and the socket they go over |
| `supervisor.py` | the process that is the worker |
| `spawn.py` | how that process starts, detached from everything |
| `offline.py` | the answers for a worker whose supervisor is gone |
| `watch.py` | waiting for the ends that supervisors push |
| `client.py` | `LocalProvider` |
"""
