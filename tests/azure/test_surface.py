"""Walks every signature of Azure ML's classes: nothing is ignored or missing without a message."""

from __future__ import annotations

import pytest

from rayjobs.azureml.surface import classes, compare


# Pipelines are compared by their own tests.
@pytest.mark.parametrize(
    "name", [one for one in sorted(classes()) if not one.startswith("azureml.pipeline.")]
)
def test_every_member_and_parameter_is_provided_or_refused_by_name(name: str) -> None:
    found = compare(name)
    if found is not None:
        assert not found.missing
