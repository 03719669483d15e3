"""Settings that are read again rule all that comes next."""

from __future__ import annotations

from pathlib import Path

from controller import Controller


def test_settings_that_are_read_again_rule_what_comes_next(tmp_path: Path) -> None:
    with Controller.init(tmp_path / "state", slots=2) as fleet:
        assert fleet.ruled.policy == fleet.settings.policy
        text = fleet.config_path.read_text()
        fleet.config_path.write_text(text.replace("slots = 2", "slots = 3"))
        fleet.renew_settings()
        assert fleet.ruled.policy is fleet.settings.policy
        assert fleet.ruled.policy.slots == 3
