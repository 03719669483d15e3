"""The model: frozen records, pure machines, actions, and the rules between them.

Not promised: that anything here happened. Nothing in this package reads a clock, a file or chance; it decides what may
follow from what, and is given the rest.

It owns: `records` (what the document holds), `edit` (how one document becomes the next), the machines (`run`, `step`,
`worker`, over `transition`) with their one interpreter `perform`, `action` (what is minted for a provider), `reason`
(the closed catalogue of why), `invariants` (what must hold), and small arithmetic: `backoff`, `hysteresis`,
`health`, `policy`.
`strict` reads JSON that others wrote; `process` says who a process is; `errors` is the one tree of exceptions.

It promises: every refusal is a value or a typed exception, moves nothing and owes nothing.
"""
