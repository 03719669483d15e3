"""What the settings say about single queues, and what they refuse to take as said."""

from __future__ import annotations

import pytest

from controller.api import options
from controller.api import settings as config
from controller.model.errors import UsageFault
from controller.model.policy import Backoff, QueuePolicy

DAY_MS = 86_400_000


def refusal(text: str) -> UsageFault:
    """What says the text of a configuration that cannot be meant."""
    with pytest.raises(UsageFault) as raised:
        config.parse(text, "the-file")
    assert raised.value.where.startswith("the-file")
    return raised.value


def test_every_setting_of_a_queue_arrives() -> None:
    read = config.parse(
        """
        [queues.mail]
        attempts = 5
        crashes = 7
        lease = "90s"
        retention = "2d"
        retain = 0
        [queues.mail.backoff]
        initial = "2s"
        cap = "3s"
        factor = 1
        jitter = 0
        """,
        "f",
    )
    assert read.policy.by_queue == {"mail": QueuePolicy(5, 7, Backoff(2000, 3000, 1.0, 0.0), 90_000, 2 * DAY_MS, 0)}


def test_what_a_queue_leaves_out_has_its_default_and_its_backoff_is_that_of_retries() -> None:
    policy = config.parse(
        """
        [backoff.retry]
        initial = "5s"
        jitter = 0.25
        [queues.a]
        attempts = 3
        [queues.b.backoff]
        cap = "10s"
        """,
        "f",
    ).policy
    assert policy.by_queue == {
        "a": QueuePolicy(3, None, Backoff(5000, 300_000, 2.0, 0.25)),
        "b": QueuePolicy(1, None, Backoff(5000, 10_000, 2.0, 0.25)),
    }
    assert policy.of_queue("c") == QueuePolicy(backoff=policy.retry)


def test_a_section_that_says_nothing_changes_nothing() -> None:
    policy = config.parse('[backoff.retry]\ncap = "1m"\n[queues.a]\n', "f").policy
    assert policy.of_queue("a") == policy.of_queue("b")


def test_a_queue_may_be_named_as_a_part_of_another_ones_section() -> None:
    policy = config.parse(
        """
        [queues.a.backoff]
        jitter = 0.5
        [queues."a.backoff"]
        attempts = 2
        [queues.backoff]
        attempts = 3
        [queues.NAME]
        attempts = 4
        """,
        "f",
    ).policy
    assert {name: (queue.attempts, queue.backoff.jitter) for name, queue in policy.by_queue.items()} == {
        "a": (1, 0.5),
        "a.backoff": (2, 1.0),
        "backoff": (3, 1.0),
        "NAME": (4, 1.0),
    }


@pytest.mark.parametrize(
    ("text", "ms"), [("1ms", 1), ("40ms", 40), ("1d", DAY_MS), ("24h", DAY_MS), ("86400s", DAY_MS)]
)
def test_a_lease_lasts_from_a_millisecond_to_a_day(text: str, ms: int) -> None:
    assert config.parse(f'[queues.a]\nlease = "{text}"', "f").policy.of_queue("a").lease_ms == ms


@pytest.mark.parametrize("text", ["0s", "86400001ms", "25h", "365d"])
def test_a_lease_of_nothing_or_of_more_than_a_day_is_refused(text: str) -> None:
    fault = refusal(f'[queues.a]\nlease = "{text}"')
    assert f'lease cannot be "{text}"' in str(fault)
    assert (fault.where, fault.next) == ("the-file, [queues.a] lease", "give a duration from 1ms to 1d")


IMPOSSIBLE = {
    "no attempts": ("attempts = 0", "a whole number from 1 to 1000000"),
    "attempts beyond count": ("attempts = 1000001", "a whole number from 1 to 1000000"),
    "attempts as text": ('attempts = "3"', "a whole number from 1 to 1000000"),
    "attempts as a choice": ("attempts = true", "a whole number from 1 to 1000000"),
    "attempts as a section": ("attempts = { a = 1 }", "a whole number from 1 to 1000000"),
    "no crashes": ("crashes = 0", "a whole number from 1 to 1000000"),
    "a lease without unit": ("lease = 60", "a duration such as 500ms, 5s, 10m, 2h or 1d, in quotes"),
    "a retention in weeks": ('retention = "1w"', "a duration such as 500ms, 5s, 10m, 2h or 1d"),
    "a retention beyond reason": ('retention = "4000d"', "a duration of at most 3650d"),
    "fewer than none": ("retain = -1", "a whole number from 0 to 1000000000"),
    "a part of one": ("retain = 1.5", "a whole number from 0 to 1000000000"),
    "a number without end": (f"retain = 0x{'f' * 5000}", "a whole number from 0 to 1000000000"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_value_is_refused_with_its_place_and_what_is_allowed(name: str) -> None:
    line, allowed = IMPOSSIBLE[name]
    key = line.partition(" ")[0]
    fault = refusal(f"[queues.mail]\n{line}\n")
    assert str(fault).startswith(f"{key} cannot be ")
    assert (fault.where, fault.next) == (f"the-file, [queues.mail] {key}", f"give {allowed}")


@pytest.mark.parametrize("section", ["backoff.retry", "queues.mail.backoff", 'queues."a.b".backoff'])
@pytest.mark.parametrize("value", ["-0.1", "1.1", "2", "nan", "inf", "true", '"1"'])
def test_a_jitter_is_a_share(section: str, value: str) -> None:
    fault = refusal(f"[{section}]\njitter = {value}")
    assert (fault.where, fault.next) == (f"the-file, [{section}] jitter", "give a number from 0 to 1")


def test_the_delays_of_slots_and_actions_have_no_jitter_to_choose() -> None:
    for section in ("backoff.create", "backoff.send"):
        fault = refusal(f"[{section}]\njitter = 0.5")
        assert str(fault) == "unknown option 'jitter'"
        assert "[backoff.retry], [queues.NAME.backoff]" in fault.next


def test_a_cap_below_the_first_delay_is_refused_also_where_one_of_them_is_a_default() -> None:
    fault = refusal('[backoff.retry]\ncap = "10s"\n[queues.a.backoff]\ninitial = "1m"')
    assert str(fault) == "cap is 10s, below initial, 1m"
    assert fault.where == "the-file, [queues.a.backoff]"


def test_a_mistyped_option_is_answered_with_the_likely_one() -> None:
    fault = refusal("[queues.mail]\natempts = 3")
    assert str(fault) == "unknown option 'atempts' (did you mean 'attempts'?)"
    assert fault.where == "the-file, [queues.mail]"
    assert fault.next == "there are attempts, crashes, lease, retain, retention"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("queue.mail", "unknown section [queue] (did you mean 'queues'?)"),
        ("queues.mail.backof", "unknown section [queues.mail.backof] (did you mean 'queues.mail.backoff'?)"),
        ("queues.mail.retry", "unknown section [queues.mail.retry]"),
        ("queues.mail.backoff.retry", "unknown section [queues.mail.backoff.retry]"),
        ('"backoff.retry"', "unknown section [\"backoff.retry\"] (did you mean 'backoff.retry'?)"),
    ],
)
def test_a_mistyped_section_is_answered_with_the_likely_one(section: str, said: str) -> None:
    assert str(refusal(f"[{section}]\n")) == said


def test_a_name_with_a_dot_in_it_has_to_be_quoted() -> None:
    fault = refusal("[queues.eu.mail]\nattempts = 3")
    assert str(fault) == "unknown section [queues.eu.mail]"
    assert fault.next.endswith("for the queue 'eu.mail' write [queues.\"eu.mail\"]")
    assert config.parse('[queues."eu.mail"]\nattempts = 3', "f").policy.of_queue("eu.mail").attempts == 3


@pytest.mark.parametrize("name", ["a b", "", "-a", ".a", "../a", "ü", "x" * 65, "a\\u001b[0m", "a\\n"])
def test_what_is_no_id_names_no_queue(name: str) -> None:
    fault = refusal(f'[queues."{name}"]\nattempts = 3')
    assert str(fault).startswith("not the name of a queue: ")
    assert fault.where.startswith("the-file, [queues.")
    assert fault.next.startswith("use letters, digits")
    assert (str(fault) + fault.where).isprintable()


def test_options_of_no_queue_are_told_where_they_belong() -> None:
    fault = refusal("[queues]\nattempts = 3")
    assert (str(fault), fault.where) == ("option 'attempts' of no queue", "the-file, [queues]")
    assert "[queues.default]" in fault.next


@pytest.mark.parametrize(
    ("text", "said", "title"),
    [
        ("queues = 4", "queues is a section", "[queues.NAME]"),
        ("[[queues]]", "queues is a section", "[queues.NAME]"),
        ("[queues]\nmail = 4", "queues.mail is a section", "[queues.mail]"),
        ("[[queues.mail]]", "queues.mail is a section", "[queues.mail]"),
        ("[queues.mail]\nbackoff = '1s'", "queues.mail.backoff is a section", "[queues.mail.backoff]"),
    ],
)
def test_a_section_that_is_written_as_something_else_is_refused(text: str, said: str, title: str) -> None:
    fault = refusal(text)
    assert (str(fault), fault.next) == (said, f"write it as {title}")


def test_a_queue_of_the_fleet_may_have_all_but_a_lease() -> None:
    said = 'attempts = 3\nretention = "1d"\n[queues.NAME.backoff]\njitter = 0.0'
    for name, fleet in (("fleet", ""), ("build", '[fleet]\nqueues = ["deploy", "build"]\n')):
        policy = config.parse(f"{fleet}[queues.{name}]\n{said.replace('NAME', name)}", "f").policy
        assert (policy.of_queue(name).attempts, policy.of_queue(name).backoff.jitter) == (3, 0.0)
        fault = refusal(f'[queues.{name}]\nlease = "1m"\n{fleet}')
        assert str(fault) == f"the runs of queue {name!r} have no timed lease: workers of the fleet hold them"
        assert fault.where == f"the-file, [queues.{name}] lease"


def test_a_queue_that_the_fleet_gave_up_may_have_a_lease() -> None:
    text = '[fleet]\nqueues = ["build"]\n[queues.fleet]\nlease = "1s"'
    assert config.parse(text, "f").policy.of_queue("fleet").lease_ms == 1000


def test_the_template_shows_a_queue_as_an_example_and_makes_none() -> None:
    text = options.template(4, "local", ())
    assert text.count("\n# [queues.default]\n") == text.count("\n# [queues.default.backoff]\n") == 1
    assert config.parse(text, "f").policy.by_queue == {}


@pytest.mark.parametrize("option", [option for option in options.OPTIONS if option.section.startswith(options.QUEUE)])
def test_an_option_of_the_example_is_not_taken_for_that_of_another_section(option: options.Option) -> None:
    lines = options.template(4, "local", ()).splitlines()
    title = lines.index(f"# [{option.section.replace(options.QUEUE, options.EXAMPLE)}]")
    at = lines.index(f"# {option.key} = {option.default}", title)
    lines[at] = lines[at].removeprefix("# ")
    fault = refusal("\n".join(lines))
    assert str(fault).startswith(f"unknown option '{option.key}'")
    assert f"[{option.section}]" in fault.next


@pytest.mark.parametrize("base", [f"0x{'f' * 5000}", "1" * 5000])
def test_a_number_of_thousands_of_digits_is_refused_as_any_other(base: str) -> None:
    assert "thousands of digits" in str(refusal(f"[fleet]\nslots = {base}"))
