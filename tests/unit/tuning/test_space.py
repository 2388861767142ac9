"""Search spaces: keys, errors all at once, and what they do to arguments."""

from __future__ import annotations

import pickle

import pytest

from rayjobs.tuning.arguments import override_arguments, override_script_params
from rayjobs.tuning.errors import SweepError
from rayjobs.tuning.expressions import choice, loguniform, uniform
from rayjobs.tuning.space import parse_space

SPACE = {"--lr": loguniform(-9, -2), "batch-size": ["choice", [[16, 32]]], "--x": {"randint": 5}}


def test_keys_are_kept_as_given_and_compared_without_dashes() -> None:
    assert list(parse_space(SPACE)) == ["--lr", "batch-size", "--x"]
    with pytest.raises(SweepError, match="'--lr' and 'lr' are the same argument"):
        parse_space({"--lr": uniform(0, 1), "lr": uniform(0, 1)})


def test_the_wire_form_and_pickle_bring_the_same_space_back() -> None:
    space = parse_space(SPACE)
    assert parse_space(space.to_wire()) == space
    assert pickle.loads(pickle.dumps(space)) == space
    assert hash(parse_space(space.to_wire())) == hash(space)


@pytest.mark.parametrize("empty", [{}, None, [], "lr"])
def test_a_space_without_parameters_is_refused(empty: object) -> None:
    with pytest.raises(SweepError, match="loguniform"):
        parse_space(empty)


def test_every_wrong_parameter_is_listed_with_its_key() -> None:
    with pytest.raises(SweepError) as caught:
        parse_space({"--lr": 0.1, "--a b": choice(1), "x": ["choise", [1]], "ok": choice(1)})
    assert [problem.path for problem in caught.value.problems] == ["--lr", "--a b", "x"]
    assert all(problem.remedy for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("base", "parameters", "expected"),
    [
        (["--epochs", "3"], {"--lr": 0.5}, ("--epochs", "3", "--lr", "0.5")),
        (["--lr", "1", "--epochs", "3"], {"lr": 0.5}, ("--lr", "0.5", "--epochs", "3")),
        (["--lr=1", "--epochs", "3"], {"--lr": 0.5}, ("--lr=0.5", "--epochs", "3")),
        (["--lr", "1", "--lr", "2"], {"lr": 0.5}, ("--lr", "0.5")),
        (["--lr", "-1"], {"lr": -0.5}, ("--lr", "-0.5")),
        (["--lr", "1"], {"lr": -1e-05}, ("--lr=-1e-05",)),
        (["--amp", "--lr", "1"], {"amp": True}, ("--amp", "True", "--lr", "1")),
        (["-b", "1"], {"-b": 2}, ("-b", "2")),
        (["in.csv", "--", "--lr", "1"], {"lr": 2}, ("in.csv", "--lr", "2", "--", "--lr", "1")),
        ([], {"layers": [64, 32]}, ("--layers", "[64, 32]")),
        (["--lr-decay", "1"], {"lr": 2}, ("--lr-decay", "1", "--lr", "2")),
    ],
)
def test_sampled_values_override_the_same_argument(
    base: list[str], parameters: dict[str, object], expected: tuple[str, ...]
) -> None:
    assert override_arguments(base, parameters) == expected


def test_arguments_that_are_not_text_pass_through() -> None:
    reference = object()
    assert override_arguments(["--data", reference, 3], {"lr": 1}) == (
        "--data",
        reference,
        3,
        "--lr",
        "1",
    )


def test_script_params_keep_the_bases_spelling() -> None:
    assert override_script_params({"--lr": 1, "--data": "d"}, {"lr": 0.5, "b": 2}) == {
        "--lr": 0.5,
        "--data": "d",
        "--b": 2,
    }
    assert override_script_params(None, {"--lr": 1}) == {"--lr": 1}
