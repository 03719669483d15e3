"""The store: where the document lives between processes, and how it changes.

Not promised: that a reader sees a commit made after its read began; any order among waiters for the lock; that a commit
whose caller was killed did not happen; that `controller.json` alone is the document while a process lives or after a
kill; file systems without flock, rename and fsync that mean what they say (most network ones); protection from malice:
a digest proves that this program wrote the bytes, not that nobody wanted otherwise.

The commit point is one write: that of a line behind the last one of the journal, in `file.FileHold._append`. It is
acknowledged once it is synced. A whole document (init, a migration, an accepted edit, a restore) has no line to be: its
commit point is the rename in `checkpoint.write`, and its events stand in the line that opens the journal which it
names. There is no third. A fold writes the document anew by the same rename, and commits nothing.

    the contract    `protocol`; `memory` keeps it without a disk
    a hold          `file`, over `directory` (what everybody may look at, without the lock), `locks` (the document's
                    and the slots') and `edits` (what is checked of an edit, and the members of its line)
    whole documents `checkpoint` (the fold too, and what a crash leaves), `create` (`init`), `accept` (an edit is taken
                    over), `restore` (an earlier document is put back), `migrations` (documents from before)
    bytes           `codec` (a checkpoint), `journal` (its lines), `disk` (every call of the system that can fail)
    reading         `reading`: a checkpoint, and what its journal adds
    history         `history`, over `chain` (lines, proven) and `segments` (files, by their names); `tidying` merges
                    closed files and drops the oldest, as `keep` says; `damage` saves what a broken one still tells
    copies          `backups` (one document), `exports` (a whole fleet)
    beside it all   `refusals`; `waiters` notifies who waits for a queue, and nothing depends on it

Promised: what a commit returned is durable, whole and in history, since its line is all three; what it refused changed
nothing; a document that somebody else wrote, an older one that came back, a line that nothing precedes and a file that
is missing are noticed, never built upon.
"""
