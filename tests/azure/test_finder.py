"""rayjobs provides the whole of `azureml` or nothing, and never mixes it with the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rayjobs
from rayjobs.injob.azureml import exceptions, names

PACKAGES = Path(rayjobs.__file__).parent.parent
ON_PATH = PACKAGES / "rayjobs" / "injob" / "onpath"


def python(source: str, *path: Path | str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter with these folders on PYTHONPATH."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    return subprocess.run(
        [sys.executable, "-c", source], env=env, capture_output=True, text=True, timeout=100
    )


def printed(source: str, *path: Path | str) -> str:
    done = python(source, *path)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder of packages with an `azureml` like the real one."""
    folder = tmp_path / "site"
    (folder / "azureml" / "core").mkdir(parents=True)
    (folder / "azureml" / "__init__.py").write_text("REAL = True\n")
    (folder / "azureml" / "core" / "__init__.py").write_text("class Run: pass\nVERSION = 'real'\n")
    (folder / "azureml" / "core" / "other.py").write_text("REAL = True\n")
    return folder


def test_every_name_in_the_table_exists() -> None:
    source = """
import importlib, rayjobs.azureml.install
from rayjobs.injob.azureml import exceptions, names
for module, table in sorted(names.MODULES.items()):
    loaded = importlib.import_module(module)
    for name in table:
        getattr(loaded, name)
print("all")
"""
    assert printed(source) == "all\n"


def test_module_is_the_same_object_for_every_import() -> None:
    source = """
import rayjobs.azureml.install
import azureml.core.run
from azureml.core import Run, run
assert azureml.core.run is run and azureml.core.run.Run is Run
import rayjobs
assert rayjobs.Run is Run
from azureml.train.hyperdrive import *
print(choice, sorted(set(dir(azureml.core)) & {"Workspace", "Dataset"}))
"""
    assert "['Dataset', 'Workspace']" in printed(source)


def test_exceptions_have_the_sdk_base_classes() -> None:
    """Source: `azureml.exceptions` of azureml-core 1.61; the others have AzureMLException."""
    other = {
        "AzureMLException": "Exception",
        "AuthenticationException": "UserErrorException",
        "ServiceException": "Exception",  # of the REST client
    }
    for name in names.MODULES["azureml.exceptions"]:
        assert getattr(exceptions, name).__base__.__name__ == other.get(name, "AzureMLException")


def test_import_loads_no_third_party_package() -> None:
    """A driver starts at once: a name is loaded when the program first uses it."""
    source = """
import sys
import rayjobs.azureml.install, azureml.core
found = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(sorted(found - {"_distutils_hack"}))  # setuptools loads it into every interpreter
"""
    assert printed(source) == "['__main__', 'azureml', 'rayjobs']\n"


def test_names_outside_the_workflow_are_refused_on_use() -> None:
    source = """
import rayjobs.azureml.install
from azureml.core.webservice import AciWebservice, Webservice
from azureml.train.automl import AutoMLConfig
from azureml.automl.core.shared import constants
from azureml.exceptions import UserErrorException
for use in (lambda: AciWebservice.deploy_configuration(cpu_cores=1), lambda: AutoMLConfig(task="x"),
            lambda: constants.Metric):
    try:
        use()
    except UserErrorException as error:
        print(error)
"""
    lines = printed(source).splitlines()
    assert lines[0] == (
        "azureml.core.webservice.AciWebservice is not part of rayjobs: rayjobs trains and "
        "registers models; download one with Model.download, or `rayjobs model download`, and "
        "serve it with the tool of your choice."
    )
    assert lines[1].startswith("azureml.train.automl.AutoMLConfig is not part of rayjobs: ")
    assert "HyperDriveConfig" in lines[2]


def test_an_unknown_name_is_an_import_error_with_a_sentence() -> None:
    source = """
import rayjobs.azureml.install
for line in ("from azureml.core import Workspac", "import azureml.core.nothing"):
    try:
        exec(line)
    except ImportError as error:
        print(error)
"""
    lines = printed(source).splitlines()
    assert (
        lines[0] == "azureml.core has no 'Workspac' that rayjobs knows. Did you mean 'Workspace'?"
    )
    assert "rayjobs azureml check" in lines[1]


def test_the_real_package_is_never_half_shadowed(real: Path) -> None:
    """In a driver run by rayjobs, our package replaces the real one entirely, and says so."""
    source = """
import rayjobs.azureml.install
import azureml.core
assert not hasattr(azureml, "REAL") and azureml.core.VERSION != "real"
try:
    import azureml.core.other
except ImportError:
    print("refused")
"""
    done = python(source, real)
    assert done.stdout == "refused\n", done.stderr
    assert done.stderr.splitlines() == [
        "rayjobs: `import azureml` loads rayjobs' own modules; the package installed in "
        f"{real / 'azureml'} is not used"
    ]


def test_a_plain_import_elsewhere_is_left_alone(real: Path) -> None:
    assert printed("import rayjobs, azureml.core; print(azureml.core.VERSION)", real) == "real\n"


def test_finder_yields_to_an_imported_real_package(real: Path) -> None:
    done = python("import azureml.core\nimport rayjobs.azureml.install", real)
    assert done.returncode == 1
    assert (
        "the real azureml" in done.stderr and "import rayjobs.azureml.install first" in done.stderr
    )


def test_finder_precedes_installed_packages_in_a_job(real: Path) -> None:
    """The entry on PYTHONPATH works in every process that a job starts, and reports it once."""
    source = """
import subprocess, sys, azureml.core
from azureml.core import Run
print(azureml.core.VERSION, flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, "-c", "import azureml.core.run; print('child')"], check=True)
"""
    done = python(source, ON_PATH, real)
    assert done.stdout == f"{names.SDK_VERSION}\nchild\n", done.stderr
    assert done.stderr.count("loads rayjobs' own modules") == 1


def test_without_dependencies_run_works_and_other_names_report_what_is_missing() -> None:
    """As in a job whose environment has nothing but Python: `-S` leaves site-packages out."""
    source = f"""
import sys; sys.path.append({str(PACKAGES)!r})
from azureml.core import Run
from azureml.telemetry import set_diagnostics_collection
from azureml.exceptions import UserErrorException
set_diagnostics_collection(True)
Run.get_context().log("loss", 1.0)
try:
    from azureml.core import ScriptRunConfig
except UserErrorException as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": str(ON_PATH)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", source], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "azureml.core.ScriptRunConfig needs the package" in done.stdout
    assert "azureml.core.Run works in every environment" in done.stdout
