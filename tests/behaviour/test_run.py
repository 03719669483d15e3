"""`controller run`: it serves until it is told to stop, and whatever kills it, no work is lost or done twice."""

from __future__ import annotations

import resource
import shutil
import signal
import time

import pytest

from tests.behaviour.driver import Controller, Staying
from tests.behaviour.faults import document
from tests.behaviour.provider_program import Program, wait_until

APPEND = 'printf "%s %s\\n" "$CONTROLLER_RUN" "$CONTROLLER_ATTEMPT" >> done'
"""What a step does that leaves a line for each time it is executed."""


class Service(Staying):
    """A `controller run` of this test."""

    def __init__(self, controller: Controller, *args: str, options: tuple[str, ...] = ()) -> None:
        super().__init__(controller.popen(*options, "run", *args))
        self.controller = controller

    def tell(self, number: int) -> None:
        self.process.send_signal(number)


def submit(controller: Controller, name: str, script: str, *options: str) -> None:
    controller.run("submit", "--id", name, *options, "--", "sh", "-c", f"cd {controller.home} && {script}", check=True)


def finished(controller: Controller) -> set[str]:
    return set(document(controller)["finished"])


def done(controller: Controller, *names: str) -> None:
    wait_until(lambda: finished(controller).issuperset(names), f"{names} succeed")


def lines(controller: Controller) -> list[str]:
    path = controller.home / "done"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def blocking(name: str) -> str:
    """A step that says that it runs, and runs until the file *name*.go is there."""
    return f"touch {name}.runs; until [ -e {name}.go ]; do sleep 0.02; done; {APPEND}"


def runs(controller: Controller, name: str) -> None:
    wait_until((controller.home / f"{name}.runs").exists, f"{name} runs")


@pytest.fixture
def local(controller: Controller) -> Controller:
    controller.init("--slots", "2")
    return controller


def test_what_is_submitted_is_done_and_told_until_it_is_told_to_stop(local: Controller) -> None:
    service = Service(local)
    for name in ("a", "b", "c"):
        submit(local, name, APPEND)
    submit(local, "bad", "exit 3")
    done(local, "a", "b", "c")
    wait_until(lambda: document(local)["runs"].get("bad", {}).get("state") == "failed", "bad fails")
    result = service.end(signal.SIGTERM)
    assert result.exit == 0, str(result)
    assert "runs ended: 1 failed, 3 succeeded" in result.stdout
    assert "run bad failed: step main exited with 3" in result.stderr
    assert lines(local) == ["a 1", "b 1", "c 1"]


def test_a_stop_is_prompt_and_takes_nothing_from_a_running_step(local: Controller) -> None:
    service = Service(local)
    submit(local, "a", blocking("a"))
    runs(local, "a")
    wait_until(lambda: not document(local)["pending_actions"], "the execute is applied")
    began = time.monotonic()
    result = service.end(signal.SIGTERM)
    assert (result.exit, time.monotonic() - began < 2) == (0, True), str(result)
    before = document(local)
    assert before["runs"]["a"]["state"] == "running"
    (local.home / "a.go").touch()
    wait_until(lambda: lines(local) == ["a 1"], "the step goes on to its end")
    assert document(local) == before
    service = Service(local)
    done(local, "a")
    assert service.end(signal.SIGTERM).exit == 0
    assert lines(local) == ["a 1"]


def test_an_interrupt_is_130_and_json_is_one_document(local: Controller) -> None:
    service = Service(local, "--json")
    submit(local, "a", APPEND)
    done(local, "a")
    result = service.end(signal.SIGINT)
    assert result.exit == 130
    answer = result.json()
    assert (answer["schema"], answer["ended"], answer["signal"]) == ("controller.run/1", {"succeeded": 1}, "SIGINT")
    assert answer["sent"] == 2
    assert result.stderr == ""


def test_quiet_it_says_nothing_when_all_is_well(local: Controller) -> None:
    service = Service(local, options=("--quiet",))
    for name in ("a", "b", "c"):
        submit(local, name, APPEND)
    done(local, "a", "b", "c")
    result = service.end(signal.SIGTERM)
    assert (result.exit, result.stdout, result.stderr) == (0, "", "")


def test_a_second_signal_ends_it_while_a_provider_hangs(controller: Controller) -> None:
    program = Program(controller)
    program.next("create", {"wait_for": "never"})
    program.submit("a")
    service = Service(controller)
    wait_until(lambda: bool(program.calls()), "the provider is asked")
    key = program.pending()[1]["idempotency_key"]
    service.tell(signal.SIGTERM)
    service.says("stopping")
    assert service.process.poll() is None
    began = time.monotonic()
    result = service.end(signal.SIGTERM)
    assert time.monotonic() - began < 2.5
    assert result.exit in (0, 130), str(result)
    assert program.pending()[1]["idempotency_key"] == key
    assert program.calls("did") == []
    # Not a reconcile: where the loss of the call could still be saved, it is asked again only after a backoff.
    controller.run("replay-pending", timeout=30)
    assert [call[2] for call in program.calls("did") if call[0] == "create"] == [key]


def test_a_stop_does_not_wait_for_a_look(controller: Controller) -> None:
    program = Program(controller)
    program.next("inventory", {"wait_for": "never"})
    service = Service(controller)
    wait_until(lambda: bool(program.calls("inventory")), "the provider is asked what there is")
    began = time.monotonic()
    assert service.end(signal.SIGTERM).exit == 0
    assert time.monotonic() - began < 2


# The configuration


def configure(controller: Controller, text: str, to: str) -> None:
    path = controller.state / "controller.toml"
    content = path.read_text()
    assert content.count(text) == 1, content
    path.write_text(content.replace(text, to))


def test_a_hangup_takes_a_good_configuration_and_keeps_the_old_one_over_a_bad(local: Controller) -> None:
    configure(local, "slots = 2", "slots = 1")
    service = Service(local)
    submit(local, "a", blocking("a"))
    runs(local, "a")
    submit(local, "b", blocking("b"))
    configure(local, "slots = 1", "slots = none")
    service.tell(signal.SIGHUP)
    assert "configuration was not taken" in service.says("configuration")
    assert document(local)["runs"]["b"].get("state", "queued") == "queued"
    configure(local, "slots = none", "slots = 2")
    service.tell(signal.SIGHUP)
    service.says("read again")
    runs(local, "b")
    for name in ("a", "b"):
        (local.home / f"{name}.go").touch()
    done(local, "a", "b")
    assert service.end(signal.SIGTERM).exit == 0


def test_another_provider_is_refused_while_workers_live_and_the_old_one_goes_on(local: Controller) -> None:
    service = Service(local, "--json")
    submit(local, "a", APPEND)
    done(local, "a")
    path = local.state / "controller.toml"
    text = path.read_text()
    path.write_text(text.replace('kind = "local"', 'kind = "command"\ncommand = ["/bin/false"]'))
    assert path.read_text() != text
    service.tell(signal.SIGHUP)
    assert "workers of 'local' live" in service.says("configuration was not taken")
    submit(local, "b", APPEND)
    done(local, "b")
    result = service.end(signal.SIGTERM)
    assert result.exit == 0, str(result)
    assert result.json()["ended"] == {"succeeded": 2}


def test_a_changed_provider_is_taken_once_what_was_asked_is_answered(controller: Controller) -> None:
    program = Program(controller)
    program.next("create", {"wait_for": "go"})
    program.submit("a")
    service = Service(controller)
    wait_until(lambda: bool(program.calls()), "the provider is asked")
    controller.configure("provider.deadlines", 'execute = "45s"')
    service.tell(signal.SIGHUP)
    service.says("read again")
    service.tell(signal.SIGHUP)  # once more, while the first is not through
    service.says("read again")
    program.let("go")
    done(controller, "a")
    program.submit("b")
    done(controller, "b")
    result = service.end(signal.SIGTERM)
    assert result.exit == 0, str(result)
    created = [call for call in program.calls("did") if call[0] == "create"]
    assert len(created) == len(program.workers())


def test_signals_that_come_at_any_moment_of_a_change_end_it_in_order(controller: Controller) -> None:
    program = Program(controller)
    for delay in (0.0, 0.02, 0.1):
        service = Service(controller)
        wait_until(lambda: bool(program.calls("inventory")), "it serves")
        path = controller.state / "controller.toml"
        path.write_text(path.read_text() + "\n[provider.env]\nN = \"1\"\n" if "provider.env" not in path.read_text()
                        else path.read_text().replace('N = "1"', 'N = "11"'))  # fmt: skip
        service.tell(signal.SIGHUP)
        time.sleep(delay)  # any value will do: the claim is about every moment
        result = service.end(signal.SIGTERM)
        assert result.exit == 0, str(result)
        assert "stopped" in result.stdout
        (program.home / "calls").unlink()


# Others beside it, and its death


def test_two_of_them_and_reconciles_do_each_run_once(local: Controller) -> None:
    names = [f"r-{number}" for number in range(4)]
    services = [Service(local) for _ in range(2)]
    for name in names:
        submit(local, name, APPEND)
        local.run("--quiet", "reconcile", "--apply")
    done(local, *names)
    for service in services:
        result = service.end(signal.SIGTERM)
        assert result.exit == 0, str(result)
        assert "itself failed" not in result.stderr
    assert lines(local) == sorted(f"{name} 1" for name in names)
    assert local.json("fsck")["ok"]


def test_killed_between_park_and_answer_it_is_followed_by_one_that_asks_with_the_same_key(
    controller: Controller,
) -> None:
    program = Program(controller)
    program.next("create", {"wait_for": "go"})
    program.submit("a")
    service = Service(controller)
    wait_until(lambda: bool(program.calls()), "the provider is asked")
    service.end(signal.SIGKILL)
    key = program.pending()[1]["idempotency_key"]
    service = Service(controller)
    wait_until(lambda: bool(program.calls("inventory")), "the other serves")
    assert len(program.calls()) == 1, "its provider still runs: the slot is left alone"
    program.let("go")
    done(controller, "a")
    assert service.end(signal.SIGTERM).exit == 0
    assert [call[2] for call in program.calls("did") if call[0] == "create"] == [key]
    assert len(program.workers()) == 1
    assert {call[2] for call in program.calls() if call[0] == "create"} == {key}


# What it cannot outlast, and what it can


def test_a_broken_document_ends_it_with_7(local: Controller) -> None:
    service = Service(local)
    submit(local, "a", APPEND)
    done(local, "a")
    path = local.state / "controller.json"
    path.write_bytes(path.read_bytes()[:200])
    result = service.end()
    assert result.exit == 7, str(result)
    assert path.stat().st_size == 200


def test_a_state_directory_that_goes_away_ends_it_with_7_and_is_not_made_again(local: Controller) -> None:
    service = Service(local, "--json")
    submit(local, "a", APPEND)
    done(local, "a")
    shutil.move(local.state, local.home / "elsewhere")
    result = service.end()
    assert (result.exit, result.json()["error"]["code"]) == (7, "document_missing"), str(result)
    assert not local.state.exists()


def limit(service: Service, size: int) -> None:
    """Files that the service writes may not grow beyond *size*, as on a disk that is full."""
    _, hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (size, hard))


def test_a_disk_that_is_full_for_a_while_is_told_once_and_outlasted(local: Controller) -> None:
    service = Service(local)
    submit(local, "a", APPEND)
    done(local, "a")
    limit(service, 100)
    submit(local, "b", APPEND)
    assert "trouble" in service.says("trouble")
    limit(service, resource.RLIM_INFINITY)
    done(local, "b")
    result = service.end(signal.SIGTERM)
    assert result.exit == 0, str(result)
    assert result.stderr.count("trouble") == 1, str(result)
    assert lines(local) == ["a 1", "b 1"]
