"""The store: where the document lives between processes, and how it changes.

Not promised: that a reader sees a commit made after its read began; any order among waiters for the lock; that a commit
whose caller was killed did not happen; file systems without flock, rename and fsync that mean what they say (most
network ones); protection from malice: a digest proves that this program wrote the bytes, not that nobody wanted
otherwise.

Owned here: bytes (`codec`), older schemas (`migrations`), the document lock and slot locks (`locks`), load fence,
compare-and-swap and durable write (`file`: the commit point is on that page), history, refusals, `init` (`create`) and
`state accept` (`accept`). `waiters` notifies who waits for a queue, and nothing depends on it. `memory` keeps the same
contract without a disk. `protocol` is that contract.

Promised: what a commit returned is durable, whole, and in history before anything else is committed; what it refused
changed nothing; a document that somebody else wrote, an older one that came back, and a missing one are noticed, never
built upon.
"""
