"""A crash-safe, file-backed, single-host controller of workers and runs.

Start reading at `store.file` (lock, fence and compare-and-swap), `engine.pending` (the life of a provider mutation) and
`model.run`, `model.step`, `model.worker` (one machine each). Data flows one way: cli, engine, store and provider,
model.

Where the design left a choice, it was made so:
- exceptions live in `model.errors`, below everything that raises them; process identity in `model.process` and
  `provider.process`, since both the local and the command provider, and whoever replays after them, need it;
- facts are told to the machines in `engine.fold`, `engine.outcomes` and `engine.looks`, apart from `engine.pending`, so
that
  the page that sends stays readable whole;
- a park counts its parker's own first send. So `sends` goes up before every send, the first included, at no extra
commit,
  and is never below the truth;
- an end that nobody can know, of a step whose worker is gone, spends the crash budget, not the failure budget;
- the kernel locks of document and slots live in `store.locks`, beside `store.file`, which keeps fence, compare-and-swap
and
  durable write: both pages stay short enough to audit in one sitting;
- a look is not compared by wall clock with the last send: the commit of a send changes its slot, and a look speaks of a
slot
  only if it was asked for after that. So a clock that was set strands no proof;
- a provider that cannot say what there is is asked for nothing new; one that cannot describe itself is taken at its
last word; - root does not change a state directory that belongs to somebody else: it is refused up front.
"""
