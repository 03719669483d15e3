"""The library: what Python programs use, and what the commands are a thin layer over.

Not promised: that a program may hold the document while it calls in here; that two threads share one `Controller`.

`settings` reads the configuration and the environment, `providers` makes the provider that they name, `graph` reads
runs of several steps from a file, `handle` is `Controller`, `waiting` drives a fleet until what was asked has ended.

For consumers: `queues` is `Queue`, `claims` the `Claim` of a run that is worked on, with the `heartbeats` that keep its
lease and the `interrupt` that ends its block; `payload` and `amounts` check what callers give. `consumer` is a loop
that does each run by starting a program; `life` is one such run.
"""
