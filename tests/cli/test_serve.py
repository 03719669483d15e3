"""What a service does when what it read anew is refused after all."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from controller.api.handle import Controller
from controller.cli.call import Call
from controller.cli.output import Output
from controller.cli.serve import _Service
from controller.engine.reconcile import Reconciler
from controller.model.errors import Conflict


def test_settings_that_become_impossible_while_the_last_answers_are_awaited_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another process may make a worker of the old kind between the reading and the next loop."""
    Controller.init(tmp_path / "state")
    call = Call()
    call.output = Output(json=False, quiet=True)
    call.choose(state_dir=str(tmp_path / "state"), config=None, lock_timeout_ms=1_000, from_environment=False)
    service = _Service(call, 8, 10.0)
    real = Controller.reconciler

    def refused(controller: Controller, *, parallelism: int) -> Reconciler:
        if controller.settings is not first:
            raise Conflict("workers of 'local' live")
        return real(controller, parallelism=parallelism)

    first = call.settings
    monkeypatch.setattr(Controller, "reconciler", refused)
    service._reconciler().sender.provider.close()
    call.controller.keep_settings(replace(first, source="elsewhere"))
    service._reconciler().sender.provider.close()
    assert call.settings is first
    assert "workers of 'local' live" in capfd.readouterr().err
    service.worked = None
    call.controller.keep_settings(replace(first, source="elsewhere"))
    with pytest.raises(Conflict):
        service._reconciler()
