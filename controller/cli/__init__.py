"""The command line: what is typed becomes one call below, and its answer becomes one document or a page for people.

Not promised: anything to programs that import this package; the library is theirs.

Owns: options, what is written to stdout and stderr (`output`, `text`), exit codes. It decides nothing about runs, slots
or workers.

Promises: stdout carries the answer alone; with `--json` it is exactly one JSON document, errors included. Output that
cannot be written never changes what was done. A command imports only what it uses.
"""
