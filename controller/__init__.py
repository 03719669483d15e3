"""A crash-safe, file-backed, single-host controller of workers and runs.

    from controller import Controller

    with Controller.open("state") as fleet:
        run = fleet.submit(["make", "test"])
        (ended,) = fleet.wait(run.id)

Start reading at `store.file` (fence, compare-and-swap and commit point), `engine.pending` (the life of a provider
mutation) and `model.run`, `model.step`, `model.worker` (one machine each). Data flows one way: cli, api, engine, store
and provider, model.

Where the design left a choice, it was made so:
- the library is a layer of its own, `api`, between commands and engine: programs need settings and provider as well;
- exceptions live in `model.errors`, below everything that raises them; process identity in `model.process` and
  `provider.process`, since both the local and the command provider, and whoever replays after them, need it;
- facts are told to the machines in `engine.fold`, `engine.outcomes`, `engine.looks` (over `sight`) and
  `engine.lifecycle`, apart from `engine.pending`, so that the page that sends stays readable whole; for the same reason
  `demand`, `capacity` and `due` are apart from the planner, and `abandon` and `calls` from the sender;
- a park counts its parker's own first send. So `sends` goes up before every send, the first included, at no extra
  commit, and is never below the truth;
- an end that nobody can know, of a step whose worker is gone, spends the crash budget, not the failure budget;
- the kernel locks of document and slots live in `store.locks`, and what needs no lock in `store.directory`, beside
  `store.file`, which keeps fence, compare-and-swap and commit: each page stays short enough to audit in one sitting;
- a journal is a file of its own for each checkpoint, `journal-R-N`, R being the revision it opens at, and is never
  emptied for the next one: whoever reads is never overtaken, and what was written once is history as it stands. N tells
  those apart that open at one revision: a fold commits nothing, so R alone would meet the one that a crash left;
- the document's schema stays 2: what it means is unchanged, and its new member `journal`, which says what else has to
  be read, is refused by name by every program that would not read that;
- a whole document (init, a migration, an accepted edit, a restore) puts its events into the line that opens its
  journal: history is then one chain of lines, with nothing to look up in documents that were written over;
- a journal is folded in beyond 1 MiB and a fourth of the document, so that what a cold reader replays stays the lesser
  part, and at each clean exit while the document is no larger than 1 MiB, so that at rest the file is what it says;
- a document of up to 256 KiB is decoded whole, which costs a millisecond and finds a wrong record at once; records of
  larger ones are decoded, and judged, when they are touched;
- what a crash tears off is kept in a file of its own before it is cut off: it was never committed, and may still tell
  somebody something;
- by default history is kept by size, not by age: how long ago something happened does not say whether anybody still
  asks, but a disk that the past has filled stops the present;
- answers are written by msgspec, which every command has loaded, and canonical bytes by orjson, which only few need;
- a look is not compared by wall clock with the last send: the commit of a send changes its slot, and a look speaks of a
  slot only if it was asked for after that. So a clock that was set strands no proof;
- the loop applies several answers in one commit, each checked for its own scope: the commits of one process would wait
  for each other otherwise, and cost more than what they save;
- a provider that cannot say what there is is asked for nothing new; one that cannot describe itself is taken at its
  last word;
- queues are several pages, not one: `engine.submission`, `leases` (what holders do), `upkeep` (what nobody's holder has
  to do), `discovery` over `index` (what is next; `indexes` keep one from commit to commit, `ended` and `contents`
  know what is needed rarely), `batches`, `retention` and `browse`; `queue` keeps what people do with runs;
- a lease that ran out ends nothing until somebody reaps: its holder may still renew or complete, and what is taken back
  is due at once, since the lease was the wait;
- a run whose key is full leaves the line. The ones next in order get that defer reason in the document, with the claim
  that passes them over; of the others it is computed for whoever looks, so that no claim pays for all of them;
- the planner takes what it plans for from the index of the queues, in their order, and looks at no run that it cannot
  use; what the same draft has changed is looked at in the draft;
- a worker that is assigned and does not hold its run is not released: that is the whole of "kept". Without a proof
  asked for it is let go at once, also when its run went back to the queue, since a slot that waits for a run could wait
  for ever; with one it takes the next life of its own run itself, and a lost one keeps its assignment and its data;
- compute and data are removed only by a plan that has a look in hand which speaks of the slot, so that what is shown
  there is compared with what is recorded first (`engine.classify.retained`);
- what a look shows and no record knows is remembered on its slot, as it was seen: status and fsck, which ask nobody,
  could not tell it otherwise. Nothing is decided by it but that the slot takes nothing new;
- beside a worker that is shown as itself a stranger holds nothing back: that would strand a run for the sake of one
  that is nobody's;
- of one concurrency key a run that is kept for its worker goes before all others: its worker is there already, and by
  the order alone a permit could wait for a run that no slot takes, while that slot waits for the permit;
- a disowned create is evidence, not a worker: what looks show of it later counts as unrecorded, for an operator to
  settle; a disowned execute is folded as it would have been;
- the circuit breaker counts answers to sends in a commit of their own, since an apply may not touch it; looks do not
  count, as a provider that cannot be looked at is asked for nothing new anyway;
- every operator verb has a confirmation of its own name, `--confirm-VERB`: one that was typed for another verb confirms
  nothing. `release --proof` has none: the proof is one;
- a discarded run leaves a tombstone, cancelled, with its last token: its late holder is told so, and the id climbs on;
- root does not change a state directory that belongs to somebody else: it is refused up front.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.api.public import (
        AlreadyThere,
        Busy,
        CancelRequested,
        Claim,
        Conflict,
        Controller,
        ControllerError,
        DocumentFault,
        LeaseLost,
        NotDurable,
        NotFound,
        ProviderFailed,
        Queue,
        Reason,
        Refusal,
        Report,
        Run,
        RunState,
        Status,
        Step,
        StepState,
        StillRunning,
        Submission,
        Tombstone,
        TransitionRefused,
        UsageFault,
        submission,
    )

__all__ = [
    "Controller",
    "Queue",
    "Claim",
    "submission",
    "Submission",
    "Run",
    "RunState",
    "Step",
    "StepState",
    "Tombstone",
    "Reason",
    "Report",
    "Status",
    "ControllerError",
    "Refusal",
    "Conflict",
    "LeaseLost",
    "CancelRequested",
    "TransitionRefused",
    "AlreadyThere",
    "UsageFault",
    "NotFound",
    "Busy",
    "StillRunning",
    "DocumentFault",
    "NotDurable",
    "ProviderFailed",
]


def __getattr__(name: str) -> Any:
    """Names of the library, imported when they are asked for: commands import this package too, and start fast."""
    if name not in __all__:
        raise AttributeError(f"module 'controller' has no attribute {name!r}")
    from controller.api import public

    return getattr(public, name)
