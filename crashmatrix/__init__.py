"""A crash matrix: the installed command, killed or refused at every call by which it changes its state directory.

Not promised: what a power cut does to bytes that nobody synced, and what a failing disk answers to a read. A call that
strace cannot single out, because another thread of the process makes as many of its kind before it, is counted as
unreached.

`tracing` reads and writes for strace, `ground` is a fleet of one case with its provider, `verbs` the commands and what
they are tried on, `cases` the running of one, `judging` says what must hold after it. `bin/crash-matrix` runs them all.
"""
