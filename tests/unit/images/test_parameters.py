"""The table of parameters: ranges, defaults and errors."""

from __future__ import annotations

from typing import Any

import pytest

from rayjobs.core.errors import SpecError, UsageError
from rayjobs.images import training_config
from rayjobs.images.component.imagemodels.errors import ParameterOutOfRangeError
from rayjobs.images.component.imagemodels.parameters import TABLE, checked
from rayjobs.images.jobs import checked_parameters, options


def test_the_defaults_are_those_of_azure_ml() -> None:
    assert {one.name: one.default for one in TABLE} == {
        "epochs": 5,
        "batch_size": 16,
        "warmup_epochs": 0,
        "learning_rate": 0.001,
        "random_seed": 1,
        "patience": 3,
        "print_frequency": 10,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", -1),
        ("warmup_epochs", -1),
        ("learning_rate", 0),
        ("learning_rate", "nan"),
        ("random_seed", 1.5),
        ("patience", "three"),
        ("print_frequency", 0),
        ("epochs", "1.5e0"),
        ("epochs", "inf"),
        ("epochs", True),
    ],
)
def test_a_value_out_of_range_names_parameter_value_and_range(name: str, value: object) -> None:
    with pytest.raises(ParameterOutOfRangeError) as found:
        checked(name, value)
    assert name in str(found.value)
    assert repr(value) in str(found.value)
    assert "number" in str(found.value)


def test_ranges_include_their_ends() -> None:
    assert checked("warmup_epochs", "0") == 0
    assert checked("epochs", "1") == 1
    assert checked("learning_rate", 5e-300) == 5e-300
    assert checked("random_seed", "-12345678901234567890") == -12345678901234567890


@pytest.mark.parametrize(
    ("value", "whole"), [("1e1", 10), ("1.5e1", 15), ("7.0", 7), (3.0, 3), (1e22, 10**22)]
)
def test_a_whole_number_may_have_an_exponent_or_a_point(value: object, whole: int) -> None:
    found = checked("epochs", value)
    assert (found, type(found)) == (whole, int)


def test_submit_reports_all_problems_together() -> None:
    with pytest.raises(SpecError) as found:
        checked_parameters({"epochs": 0, "patience": 0, "batch_size": 4, "model": "x"})
    assert [one.path for one in found.value.problems] == ["--epochs", "--patience"]


def test_options_of_a_script() -> None:
    values = {"epochs": 3, "learning_rate": 0.5, "onnx": True, "compile": False, "register": None}
    assert options(values) == ["--epochs", "3", "--learning-rate", "0.5", "--onnx"]


@pytest.mark.parametrize(
    ("given", "settings", "text"),
    [
        (
            {"image_size": 32},
            {},
            r"`parameters`; it belongs in `settings`",
        ),
        ({}, {"epochs": 2}, r"`settings`; it belongs in `parameters`"),
        ({"epoch": 2}, {}, r"'epoch' is not one of the parameters: epochs, batch_size"),
        ({}, {"imagesize": 2}, r"'imagesize' is not one of the settings: image_size, augmentation"),
    ],
)
def test_unknown_name_is_refused_before_the_job(
    given: dict[str, Any], settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        training_config("a/x", "a/y", parameters=given, settings=settings)
