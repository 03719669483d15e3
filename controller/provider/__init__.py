"""Providers: who makes workers, behind one contract.

Not promised: that a provider performs an action once. It is asked with one key until it gives a definite answer; one
that honours keys performs it once.

`protocol` is the contract and its outcomes. `command` asks any program that speaks JSON (`wire` is the JSON, `call` one
call of the program, `program` why it would not start); `local` runs real workers on this host; `fake` is scripted.
`process` says who a process is, and ends groups of them; `child` starts the program of a consumer, and ends its group.
"""
