"""The plan of `./dev mutate` names modules and tests that exist."""

from __future__ import annotations

import pytest

from tests.mutation import plan
from tests.mutation.mutants import SOURCE, path_of


@pytest.mark.parametrize("package", plan.TESTS)
def test_every_module_and_test_of_the_plan_exists(package: str) -> None:
    for module, tests in plan.tests_of(package).items():
        assert path_of(module).is_file(), module
        for test in tests:
            path = test.removeprefix("--deselect=").partition("::")[0]
            assert (SOURCE.parent / path).exists(), test
