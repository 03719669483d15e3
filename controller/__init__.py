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
- root does not change a state directory that belongs to somebody else: it is refused up front.
"""
