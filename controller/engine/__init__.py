"""The engine: what happens to runs and workers, and in which order.

Not promised: that anything happens by itself. Each verb is called by a command, a loop or a program, does its part and
returns; whatever died in between is picked up by the next reconcile.

It owns: the life of a pending action (`pending`), planning (`planner`, pure), the bounded loop (`reconcile`), runs as
people handle them (`queue`, `submission`), queues for consumers (`leases` is what a holder may say, `upkeep` what
nobody's holder has to do, `discovery` over `index` which run is next, `claiming` waits for one, `retention` forgets,
`browse` looks), and the answers of `status`, `fsck` and `explain`. Beside those stand `fold` (facts told
to the machines), `outcomes` (what an answer does to a pending action) and `looks` (what a look proves of a worker at
rest): each is pure, and kept apart from the page that sends so that both can be read whole.

It promises: a provider hears nothing that was not parked durably before; what is parked is sent again with the same key
until a definite answer or proof; and no run has two lives at once.
"""
