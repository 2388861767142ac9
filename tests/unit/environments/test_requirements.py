"""Requirements and conda files: read, expanded, and refused for what a lock cannot hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayjobs.core.errors import NotFoundError, SpecError
from rayjobs.spec import conda, requirements
from rayjobs.spec.environment import resolved
from rayjobs.spec.file import build_spec, dump_spec, load_spec_file, load_spec_text, merge
from rayjobs.spec.model import JobSpec, Packages
from rayjobs.submit.checks import check


def messages(lines: list[str], python: str | None = None) -> list[str]:
    return [str(problem) for problem in requirements.problems(lines, python)]


def test_a_file_is_read_with_what_it_includes(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("idna ; python_version > '3'\n./own-1.0.whl\n")
    (tmp_path / "all.txt").write_text(
        "# what we need\n"
        "-r more/base.txt\n"
        "numpy>=1.26 \\\n    --hash=sha256:00  # pinned\n"
        "--find-links wheels\n"
        "-f https://host/wheels\n"
        "torch @ https://host/torch-2.0-py3-none-any.whl#sha256=00\n"
    )
    assert requirements.read(tmp_path / "all.txt") == [
        "idna ; python_version > '3'",
        f"{tmp_path}/more/own-1.0.whl",
        "numpy>=1.26 --hash=sha256:00",
        f"--find-links {tmp_path}/wheels",
        "--find-links https://host/wheels",
        "torch @ https://host/torch-2.0-py3-none-any.whl#sha256=00",
    ]


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    (tmp_path / "b.txt").write_text("--requirement=a.txt\n")
    with pytest.raises(SpecError, match="includes itself"):
        requirements.read(tmp_path / "a.txt")
    with pytest.raises(NotFoundError, match="Check its name"):
        requirements.read(tmp_path / "none.txt")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        requirements.read(tmp_path / "bytes.txt")
    (tmp_path / "large.txt").write_bytes(b"#" * (requirements.FILE_LIMIT + 1))
    with pytest.raises(SpecError, match="larger than 512 KiB"):
        requirements.read(tmp_path / "large.txt")


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "numpy==2.1.*",
        "scikit-learn[all]>=1.2,<2 ; python_version >= '3.9'",
        "torch @ https://host/torch.whl",
        "https://host/torch-2.0-py3-none-any.whl",
        "git+ssh://git@host/team/tool@v1",
        "/srv/wheels/own-1.0-py3-none-any.whl",
        "--index-url https://host/simple",
        "--extra-index-url=https://robot:${RAYJOBS_SECRET_INDEX}@host/simple",
        "--no-index",
        "--only-binary :all:",
        "--pre",
    ],
)
def test_accepted_requirement_lines(line: str) -> None:
    assert messages([line]) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--pre yes", "takes no value"),
        ("--trusted-host host", "UV_INSECURE_HOST"),
        ("--frozen", "--frozen is not supported. Supported: --extra-index-url"),
        ("-r other.txt", "includes a file"),
        ("--no-index yes", "takes no value"),
        ("--find-links", "has no value"),
        ("./own.whl", "relative path"),
        ("numpy = 1", "not a requirement"),
        ("import numpy", "not a requirement"),
        ("a\nb", "more than one line"),
        ("--index-url https://robot:hunter2@host/simple", "user name or password"),
        ("--index-url https://hunter2@host/simple", "user name or password"),
        ("torch @ https://robot:hunter2@host/t.whl", "user name or password"),
        ("--index-url https://robot:${TOKEN}@host/simple", "variable TOKEN"),
        ("numpy==${HOME}", "variable HOME"),
    ],
)
def test_refused_requirement_lines(line: str, words: str) -> None:
    found = messages([line])
    assert words in found[0]
    assert found[0].startswith("environment.pip[0]")
    assert not any("hunter2" in problem for problem in found)


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("3.7", "older than 3.8"),
        ("2", "older than 3.8"),
        ("python3", "neither a version nor a path"),
        ("three", "neither a version nor a path"),
    ],
)
def test_versions_of_python_that_are_refused(python: str, words: str) -> None:
    assert words in messages([], python)[0]
    assert messages([], "3.8") == messages([], ">=3.9,<3.12") == messages([], "/opt/venv") == []


# -- conda -----------------------------------------------------------------------------------------


def test_a_conda_specification_of_python_and_pip_is_taken(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("scipy\n")
    path = tmp_path / "environment.yml"
    path.write_text(
        "name: vision\nchannels: [conda-forge]\ndependencies:\n"
        "- conda-forge::python=3.10\n- pip=20.1\n- pip:\n  - torch==2.1\n  - -r more.txt\n"
    )
    assert conda.read(path) == conda.Specification(
        "vision", "3.10", ("torch==2.1", "scipy"), (), ("conda-forge",)
    )


def test_packages_and_channels_of_a_conda_specification(tmp_path: Path) -> None:
    found = conda.parse(
        {
            "channels": ["./own", "conda-forge", "nodefaults"],
            "dependencies": ["python=3.11", "zlib >=1.2", "conda-forge::numpy=1.26"],
        },
        name="c",
        folder=tmp_path,
    )
    assert found.conda == ("zlib >=1.2", "conda-forge::numpy=1.26")
    assert found.channels == (f"file://{tmp_path}/own", "conda-forge")


@pytest.mark.parametrize(
    ("written", "requirement"),
    [
        ("numpy", "numpy"),
        ("numpy=1.16", "numpy==1.16.*"),
        ("numpy==1.16.2", "numpy==1.16.2"),
        ("numpy=1.16.2=py36_0", "numpy==1.16.2.*"),
        ("numpy=1.16.*", "numpy==1.16.*"),
        ("conda-forge::numpy >=1.16,<2", "numpy>=1.16,<2"),
    ],
)
def test_a_package_of_conda_as_a_requirement(written: str, requirement: str) -> None:
    assert conda.as_requirement(written, "numpy") == requirement


def test_projects_and_editable_ones_are_paths(tmp_path: Path) -> None:
    lines = ["-e .", "-e ./own[extra] ; python_version > '3'", "../other", "-e git+https://h/x"]
    assert requirements.expanded(lines, tmp_path / "here", field="f") == [
        f"{tmp_path}/here",
        f"{tmp_path}/here/own[extra] ; python_version > '3'",
        f"{tmp_path}/other",
        "git+https://h/x",
    ]
    assert messages([f"{tmp_path}/here"]) == []
    assert requirements.path_of("/a/b[x]; sys_platform == 'linux'") == "/a/b"


def test_constraints_of_a_file_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "limits.txt").write_text("numpy<2\n")
    (tmp_path / "r.txt").write_text("-c limits.txt\nnumpy\n")
    spec = build_spec({"script": "a.py", "environment": str(tmp_path / "r.txt")})
    assert spec.environment == Packages(pip=("numpy",), constraints=("numpy<2",))
    spec = build_spec({"script": "a.py", "environment": {"pip": ["numpy"], "constraints": ["-x"]}})
    assert "is not a constraint" in str(check(spec)[0])


@pytest.mark.parametrize(
    ("written", "python"),
    [
        ("python", None),
        ("python=3.8.*", "3.8"),
        ("python==3.8.13", "3.8.13"),
        ("python>=3.9", ">=3.9"),
        ("python >=3.9,<3.12", ">=3.9,<3.12"),
    ],
)
def test_python_version_of_a_conda_specification(written: str, python: str | None) -> None:
    found = conda.parse({"dependencies": [written]}, name="c", folder=Path("/"))
    assert found.python == python


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"dependencies": {"pip": []}}, "not a conda specification"),
        ([], "not a conda specification"),
        ({"dependencies": [], "variables": {"A": "1"}}, "has variables"),
    ],
)
def test_invalid_specification_is_refused(data: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        conda.parse(data, name="environment.yml", folder=Path("/"))


# -- in a spec -------------------------------------------------------------------------------------


def test_the_forms_of_a_spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "r.txt").write_text("numpy\n")
    (tmp_path / "c.yml").write_text("dependencies: [python=3.11, {pip: [scipy]}]\n")
    monkeypatch.chdir("/")

    def spec(text: str) -> JobSpec:
        return build_spec(load_spec_text(f"script: a.py\nenvironment: {text}", folder=tmp_path))

    assert spec("/opt/venv").environment == "/opt/venv"
    assert spec("r.txt").environment == Packages(pip=("numpy",))
    assert spec("c.yml").environment == Packages(pip=("scipy",), python="3.11")
    assert spec("{pip: numpy, python: 3.10}").environment == Packages(pip=("numpy",), python="3.10")
    assert spec("{requirements: r.txt, pip: [./w.whl]}").environment == Packages(
        pip=("numpy", f"{tmp_path}/w.whl")
    )
    assert spec("{conda: c.yml, python: '3.12'}").environment == Packages(
        pip=("scipy",), python="3.12"
    )
    assert spec("").environment is None


def test_a_spec_survives_writing_and_reading(tmp_path: Path) -> None:
    packages = Packages(name="n", pip=("numpy>=1", "--no-index"), python="3.10")
    spec = JobSpec(script="a.py", environment=packages)
    (tmp_path / "job.yaml").write_text(dump_spec(spec))
    again = build_spec(load_spec_file(tmp_path / "job.yaml"))
    assert again.environment == packages
    assert JobSpec.model_validate_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("environment", "path", "words"),
    [
        ({"pip": [3]}, "environment.pip[0]", "not text"),
        ({"pip": {"a": 1}}, "environment.pip", "not a list"),
        ({"python": 3.1}, "environment.python", "not text"),
        ({"pips": ["numpy"]}, "environment.pips", "not a known key"),
        ({"conda": "c.yml", "pip": ["numpy"]}, "environment.conda", "cannot be combined with pip"),
        ({"requirements": 3}, "environment.requirements", "not text"),
        (3, "environment", "not text"),
    ],
)
def test_invalid_fields_are_reported_with_their_path(
    environment: Any, path: str, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        build_spec({"script": "a.py", "environment": environment})
    (problem,) = caught.value.problems
    assert problem.path == path
    assert words in str(problem)


def test_misspelled_key_gets_a_suggestion() -> None:
    with pytest.raises(SpecError, match="Did you mean `requirements`"):
        build_spec({"script": "a.py", "environment": {"requirement": "r.txt"}})


def test_options_win_over_a_file_and_the_checks_see_them() -> None:
    merged = merge({"environment": {"python": "3.11"}}, {"environment": {"pip": ["-e ."]}})
    assert merged["environment"] == {"python": "3.11", "pip": ["-e ."]}
    spec = JobSpec(script="a.py", environment=Packages(pip=("-e .",)))
    assert [problem.path for problem in check(spec)] == ["environment.pip[0]"]
    assert resolved(None) is None
