"""Set-up for every test. Warnings are errors: see pyproject.toml."""

from __future__ import annotations

import hypothesis
import pytest

# Shared suites and drivers get the same readable asserts as the tests that use them.
pytest.register_assert_rewrite("tests.behaviour.driver", "tests.store.contract", "tests.provider.contract")

# The suite says the same of the same tree every time; a slow machine fails nothing. To look for what the fixed examples
# miss: bin/test --hypothesis-profile explore
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile("steady")
