"""Spec files: what loads, what is refused, and that nothing changes on the way."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayjobs.core.errors import NotFoundError, SpecError
from rayjobs.spec.file import (
    build_spec,
    dump_spec,
    editor_schema,
    load_spec_file,
    load_spec_text,
    merge,
)
from rayjobs.spec.model import JobSpec, Resources

FILES = Path(__file__).parent / "files"
SCHEMA = Path(__file__).parents[3] / "rayjobs" / "job.schema.json"


def problems(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        build_spec(data)
    return {problem.path: str(problem) for problem in caught.value.problems}


# -- round trip ------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
TRICKY = st.sampled_from(
    ["yes", "no", "null", "~", "", "1e-3", "007", "1_000", "12:30:45", ".5", "-", "- a", "a: b",
     "# c", "&a", "*a", "!tag", "2024-01-01", "0x1f", "=", "<<", "true", "[", "{", "\n", " x ",
     "é", "\u2028", "\x85", "\ufeff", "\x07", "🚀", "%", "@", "`", "'", '"', "--flag=\n"]
)  # fmt: skip
VALUES = TEXT | TRICKY
NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,8}\Z")
POSITIVE = st.floats(1e-3, 1e6)
SPECS = st.builds(
    JobSpec,
    name=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,20}\Z"),
    display_name=st.none() | VALUES,
    script=VALUES.filter(bool),
    arguments=st.lists(VALUES, max_size=6).map(tuple),
    source_directory=st.none() | VALUES,
    environment_variables=st.dictionaries(NAMES, VALUES, max_size=4),
    secrets=st.dictionaries(NAMES, st.fixed_dictionaries({"file": VALUES}), max_size=2),
    distribution=st.fixed_dictionaries(
        {"nodes": st.integers(1, 64), "backend": st.sampled_from(["none", "gloo", "nccl", "mpi"])}
    ),
    resources=st.fixed_dictionaries(
        {"cpus": st.floats(0, 64), "gpus": st.floats(0, 8), "memory_gib": st.none() | POSITIVE}
    ),
    inputs=st.dictionaries(NAMES, st.fixed_dictionaries({"source": VALUES.filter(bool)})),
    max_duration_s=st.none() | POSITIVE,
    stall_timeout_s=st.none() | POSITIVE,
    retries=st.fixed_dictionaries({"user": st.integers(0, 100)}),
    priority=st.integers(-1000, 1000),
    tags=st.dictionaries(VALUES, VALUES, max_size=4),
    depends_on=st.lists(st.fixed_dictionaries({"job": VALUES.filter(bool)}), max_size=2),
    preemptible=st.booleans(),
)


@settings(max_examples=20)  # a spec of this size takes long to generate
@given(spec=SPECS, with_defaults=st.booleans())
@pytest.mark.long
def test_a_spec_survives_writing_and_reading(spec: JobSpec, with_defaults: bool) -> None:
    text = dump_spec(spec, with_defaults=with_defaults)
    assert build_spec(load_spec_text(text)) == spec
    assert build_spec(load_spec_text(spec.to_json(), is_json=True)) == spec
    assert JobSpec.model_validate_json(spec.to_json()) == spec


@settings(max_examples=15)
@given(spec=SPECS)
@pytest.mark.long
def test_merging_nothing_changes_nothing(spec: JobSpec) -> None:
    data = spec.model_dump(mode="json")
    assert build_spec(merge(data, {})) == spec
    assert build_spec(merge({}, data)) == spec


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(FILES.iterdir()), ids=lambda file: file.name)
def test_files_of_old_versions_load(file: Path) -> None:
    spec = build_spec(load_spec_file(file))
    assert spec.version == 1
    raw = (
        json.loads(file.read_text()) if file.suffix == ".json" else load_spec_text(file.read_text())
    )
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(raw)


def test_everything_in_a_file_reaches_the_spec() -> None:
    spec = build_spec(load_spec_file(FILES / "v1-everything.yaml"))
    assert spec.arguments == (
        "--epochs", "3", "--lr", "1e-3", "--seed", "007", "--flag", "yes",
        "--data", "$AZUREML_DATAREFERENCE_digits",
    )  # fmt: skip
    assert spec.environment_variables["AZUREML_COMPUTE_USE_COMMON_RUNTIME"] == "true"
    assert spec.source_directory == str(FILES / "src")
    assert (spec.max_duration_s, spec.grace_s, spec.stall_timeout_s) == (129_600, 30, 2_700)
    assert (spec.resources.memory_gib, spec.log_cap_mib) == (8, 512)
    assert spec.secrets["HF_TOKEN"].env == "RAYJOBS_SECRET_HF"
    assert spec.inputs["digits"].source == "workspaceblobstore/digits"
    assert spec.depends_on[0].job.startswith("prepare")
    assert spec.tags == {"team": "vision", "build": "42"}
    given = {
        key
        for name in (
            *("v1-everything.yaml", "v1-array.yaml", "v1-umask.yaml"),
            *("v1-container.yaml", "v1-environment.yaml", "v1-parallel-run.yaml"),
            "v1-notify.yaml",
        )
        for key in merge(load_spec_file(FILES / name), {})
    }
    unset = set(JobSpec.model_fields) - given - {"command"}
    assert not unset, "a new field of version 1 belongs into a new file of this folder"


def test_an_array_may_be_one_text() -> None:
    spec = build_spec(load_spec_file(FILES / "v1-array.yaml"))
    assert spec.array is not None
    assert (spec.array.expand(), spec.array.limit) == ((0, 1, 2, 3, 8, 10, 12), 2)
    assert build_spec(load_spec_text(dump_spec(spec))) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3-1", "does not count upwards"),
        ("0-4:0", "does not count upwards"),
        ("a-b", "names no indices"),
        ("", "names no indices"),
        ("0-3%0", "limit '0'"),
        ("0-3%x", "limit 'x'"),
        ("0-99999", "names 100,000 indices; an array has at most 10,000 jobs"),
        ("0-9999,20000-29999", "more than 10,000"),
        ("0-999999999999999", "names 1,000,000,000,000,000 indices"),  # refused before it is built
        ("1000000", "the largest is 999999"),
    ],
)
def test_an_array_that_cannot_be_read_is_reported(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_spec({"script": "a.py", "array": text})
    assert message in str(caught.value)
    assert "array" in caught.value.problems[0].path


def test_numbers_of_json_arguments_keep_their_text() -> None:
    spec = build_spec(load_spec_file(FILES / "v1-command.json"))
    assert spec.arguments == ("1", "2.50", "true", "text")
    assert (spec.max_duration_s, spec.retries.user) == (None, 2)


def test_the_shipped_schema_is_current() -> None:
    assert json.loads(SCHEMA.read_text()) == editor_schema(), "run tools/spec_schema.py"


def test_the_schema_refuses_what_the_spec_refuses() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    assert list(validator.iter_errors({"script": "a", "gpus": 1}))
    assert list(validator.iter_errors({"script": "a", "resources": {"gpus": -1}}))
    assert not list(validator.iter_errors({"script": "a", "max_duration": "6h"}))


def test_script_without_source_directory_is_next_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    assert load_spec_file(tmp_path / "job.yaml")["source_directory"] == str(tmp_path)
    (tmp_path / "job.yaml").write_text("command: ls\n")
    assert "source_directory" not in load_spec_file(tmp_path / "job.yaml")


def test_a_spec_is_read_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("script: a.py\n"))
    assert load_spec_file("-") == {"script": "a.py", "source_directory": str(tmp_path)}


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [" + ", ".join([f"*{before}"] * 10) + "]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/object/apply:os.system ['true']", "tag"),
        ("script: !!python/name:os.system", "tag"),
        ("script: !local x", "tag"),
        ("a: !!binary aGk=", "tag"),
        (LAUGHS, "aliases"),
        ("a: &a [*a]", "no anchor"),
        ("a: *b", "no anchor"),
        ("[" * 20_000, "deeper"),
        ("a: " + "{b: " * 40 + "1" + "}" * 40, "deeper"),
        ("script: a\nscript: b", "line 2, column 1: the key 'script' appears twice"),
        ("tags: {a: 1, a: 2}", "appears twice"),
        ("? [a]\n: b", "key must be plain"),
        ("a: b: c", "line 1, column 5 is not YAML"),
        (
            "a: 1\nb: \x01",
            r"^job\.yaml, line 2, column 4 is not YAML: [^\n<]*$",
        ),
        ("a: [b", "not YAML"),
        ("\x00", "not YAML"),
        ("--- {a: 1}\n--- {b: 1}", "several documents"),
        ("", "key: value"),
        ("- a", "key: value"),
        ("text", "key: value"),
        ("a: " + "x" * 600_000, "larger than"),
        ("a: [" + "1," * 30_000 + "1]", "more than 20,000"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_harmful_or_broken_yaml_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec_text(text, name="job.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "appears twice"),
        ('{"a": ' + "[" * 50_000, "nested|JSON"),
        ('{"a": ' + "[" * 50 + "]" * 50 + "}", "deeper"),
        ('{"a": NaN}', "NaN"),
        ('{"a": ' + "9" * 5_000 + "}", "digits"),
        ("{", "line 1"),
        ("[]", "key: value"),
        ("5", "key: value"),
        ("null", "key: value"),
        ("1.5", "key: value"),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_harmful_or_broken_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec_text(text, is_json=True)


def test_invalid_conda_yaml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_text("dependencies: [numpy\n")
    with pytest.raises(SpecError) as caught:
        build_spec({"script": "a.py", "environment": str(tmp_path / "environment.yml")})
    (problem,) = caught.value.problems
    assert problem.path == "environment"
    assert "environment.yml, line 2, column 1 is not YAML: expected" in str(problem)


def test_invalid_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nothing\.yaml"):
        load_spec_file(tmp_path / "nothing.yaml")
    with pytest.raises(SpecError, match="not a plain file"):
        load_spec_file(tmp_path)
    (tmp_path / "latin").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(SpecError, match="UTF-8"):
        load_spec_file(tmp_path / "latin")


@given(text=st.text(max_size=80) | st.lists(TRICKY, max_size=8).map(": ".join))
@pytest.mark.long
def test_any_text_is_loaded_or_refused_by_a_spec_error(text: str) -> None:
    for is_json in (False, True):
        try:
            build_spec(load_spec_text(text, is_json=is_json))
        except SpecError:
            continue


# -- options on top --------------------------------------------------------------------------------


def test_options_win_over_the_file_key_by_key() -> None:
    base = {
        "script": "a.py",
        "resources": {"gpus": 1, "memory": "4GiB"},
        "max_duration": "6h",
        "tags": {"a": "1", "b": "2"},
        "arguments": ["x"],
    }
    over = {
        "resources": {"memory_gib": 8},
        "max_duration_s": 60,
        "tags": {"b": "3"},
        "arguments": ["y"],
    }
    spec = build_spec(merge(base, over))
    assert (spec.resources.gpus, spec.resources.memory_gib) == (1, 8)
    assert spec.max_duration_s == 60
    assert spec.tags == {"a": "1", "b": "3"}
    assert spec.arguments == ("y",)
    assert base["resources"] == {"gpus": 1, "memory": "4GiB"}


def test_script_replaces_a_command_and_vice_versa() -> None:
    assert build_spec(merge({"command": "ls"}, {"script": "a.py"})).command is None
    assert build_spec(merge({"script": "a.py"}, {"command": "ls"})).script is None


def test_a_wrong_short_form_is_still_found_after_merging() -> None:
    assert (
        "parsecs" in problems(merge({"script": "a"}, {"max_duration": "6 parsecs"}))["max_duration"]
    )


# -- messages -------------------------------------------------------------------------------------


def test_all_problems_are_reported_together_with_a_remedy() -> None:
    found = problems(
        {
            "gpus": 1,
            "prioritty": 3,
            "name": "a b",
            "arguments": "--a b",
            "resources": {"gpu": 1, "cpus": -1, "memory": "8x"},
            "distribution": {"backend": "ncl", "nodes": "x"},
            "max_duration": "6 parsecs",
            "environment_variables": {"a-b": "c"},
            "inputs": {"x": {"mode": "moun"}},
            "depends_on": [{"jb": "y"}],
            "preemptible": "maybe",
        }
    )
    assert "script: train.py" in found["script"]
    assert "`resources.gpus`" in found["gpus"]
    assert "`priority`" in found["prioritty"]
    assert "letters, digits" in found["name"]
    assert "list" in found["arguments"]
    assert "`gpus`" in found["resources.gpu"]
    assert "at least 0" in found["resources.cpus"]
    assert "8GiB" in found["resources.memory"]
    assert "`nccl`" in found["distribution.backend"]
    assert "whole number" in found["distribution.nodes"]
    assert '"6h"' in found["max_duration"]
    assert "Names begin" in found["environment_variables.a-b"]
    assert "`mount`" in found["inputs.x.mode"]
    assert "missing" in found["inputs.x.source"]
    assert "`job`" in found["depends_on[0].jb"]
    assert "true" in found["preemptible"]


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({"script": "a", "command": "b"}, "script", "combined with `command`"),
        ({"script": ""}, "script", "missing"),
        ({"script": "a", "version": 2}, "version", "Upgrade"),
        ({"script": "a", "version": "1"}, "version", "version: 1"),
        ({"script": "a", "max_duration": 0}, "max_duration_s", "above 0"),
        ({"script": "a", "max_duration": "1h", "max_duration_s": 5}, "max_duration", "one of them"),
        ({"script": "a", "max_duration": True}, "max_duration", "duration"),
        ({"script": "a", "max_duration": [1]}, "max_duration", "like"),
        ({"script": "a", "max_duration_s": float("nan")}, "max_duration_s", "duration"),
        ({"script": "a", "node_count": 2}, "node_count", "distribution.nodes"),
        ({"script": "a", "tags": {"a": None}}, "tags.a", "not text"),
        ({"script": "a", "arguments": ["\ud800"]}, "arguments[0]", "UTF-8"),
        ({"script": "a", "secrets": {"A": {"env": "HOME"}}}, "secrets.A", "RAYJOBS_SECRET_"),
        ({"script": "a", "secrets": {"A": {}}}, "secrets.A", "exactly one"),
        ({"script": "a", "inputs": 3}, "inputs", "is a single value"),
    ],
)
def test_mistake_is_named_with_its_path(data: dict[str, Any], path: str, message: str) -> None:
    assert message in problems(data)[path]


def test_the_value_of_a_secret_is_never_shown() -> None:
    data = {
        "script": "a",
        "secrets": {"A": "hunter2", "B": {"env": 5, "x": "hunter2"}, "C": {"file": ["hunter2"]}},
        "environment_variables": {"D": ["hunter2"]},
    }  # fmt: skip
    assert "hunter2" not in "".join(problems(data).values())


def test_a_spec_error_survives_pickling() -> None:
    with pytest.raises(SpecError) as caught:
        build_spec({"gpus": 1})
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.problems == caught.value.problems
    assert str(again) == str(caught.value)


def test_numbers_and_paths_of_a_program_become_text() -> None:
    spec = build_spec({"script": "a", "arguments": ["--lr", 0.01, 3, True, Path("/data")]})
    assert spec.arguments == ("--lr", "0.01", "3", "True", "/data")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"retries": "many"},
            "retries: 'many' is neither a whole number nor a group of settings. Write a",
        ),
        ({"array": 1.5}, "array: 1.5 is neither a list of indices nor a group of settings."),
        (
            {"depends_on": [5]},
            "depends_on[0]: 5 is neither a job's id or name nor a group of settings.",
        ),
        (
            {"inputs": {"a": 5}},
            "inputs.a: 5 is neither text nor a group of settings. Write `datastore/p",
        ),
        ({"resources": 5}, "resources: 5 is a single value, but this key contains"),
    ],
)
def test_short_forms_are_named(data: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_spec({"script": "train.py", **data})
    assert text in str(caught.value)


def test_spec_built_in_python_is_refused_with_the_same_message() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec(script="train.py", depends_on=["a_job"], priority="high")
    assert str(caught.value).splitlines() == [
        "JobSpec has 2 problems:",
        "  - priority: 'high' is not a whole number.",
        "  - depends_on[0]: 'a_job' is not a group of settings. Give a Dependency or a dict.",
    ]
    with pytest.raises(SpecError, match=r"problem:\n  - cpu: .*Did you mean `cpus`"):
        Resources(cpu=1)  # type: ignore[call-arg]
    with pytest.raises(SpecError, match="exactly one of `script` and `command`"):
        JobSpec()
    assert JobSpec(script="train.py", depends_on=({"job": "a"},)).depends_on[0].job == "a"
