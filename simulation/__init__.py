"""A simulator: the engine over a store in memory, against a provider that has a truth of its own.

Not promised: that what no seed has shown cannot happen; any likeness in timing. Real processes, files and programs are
what `tests/behaviour` is for.

One seed is one story of a fleet: who does what, what goes wrong and when. `world` is the provider and its machines,
`driver` the controllers, operators and accidents, `judging` what must hold whenever all is quiet, `shrinking` makes a
story that went wrong short. `bin/simulate` tells many of them.
"""
