"""Notebooks run cell by cell without Jupyter: magics, shell lines, and the cell that fails."""

from __future__ import annotations

import re
from pathlib import Path

from tests.azure.notebook_files import write_notebook
from tests.azure.running import azureml_run


def test_cells_magics_and_shell_lines_work(own_home: Path) -> None:
    path = write_notebook(
        own_home / "n.ipynb",
        "%matplotlib inline\nimport os\nname = 'made.txt'",
        "%%writefile script.py\nprint('written')",
        "!echo shell {name} $HOME_OF_NOBODY\nfiles = !ls script.py\nfiles",
        "text = '''\n%not a magic\n'''\nprint(text.strip())",
        "!pip install something\n%pip install other",
        "%env TWIN=1\nos.environ['TWIN']",
        "%%time\nvalue = [1,\n  2]\nvalue",
        "!echo one \\\n  two",
        "value;",
    )
    done = azureml_run(str(path), cwd=own_home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "shell made.txt",
        "['script.py']",
        "%not a magic",
        "'1'",
        "[1, 2]",
        "one two",
    ]
    assert (own_home / "script.py").read_text() == "print('written')"
    assert "left out: pip install something" in done.stderr
    assert "[9/9] cell 18" in done.stderr
    assert re.search(r"^Wall time: [\d.e-]+ s$", done.stderr, re.MULTILINE)


def test_a_cell_runs_in_the_program_of_its_magic(own_home: Path) -> None:
    path = write_notebook(
        own_home / "n.ipynb",
        "name = 'of the notebook'\nprogram = 'python3'",
        "%%bash\nname=(of bash)\necho $name ${name[1]}",
        "%%sh\necho ${BASH_VERSION:-plain}",
        "%%script {program} -\nprint(6 * 7)",
        "%%script --no-raise-error bash\necho goes on\nexit 3",
        "%timeit -n 10 -r3 -q name.upper()",
        "%%bash\necho before\nexit 4",
        "print('never')",
    )
    done = azureml_run(str(path), cwd=own_home)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == ["of bash", "plain", "42", "goes on", "before"]
    assert "bash ended with exit code 4" in done.stderr


def test_a_failing_cell_is_named_and_the_later_ones_do_not_run(own_home: Path) -> None:
    path = write_notebook(
        own_home / "n.ipynb",
        "print('first')",
        "def f():\n    return 1 / 0\nf()",
        "print('never')",
    )
    done = azureml_run(str(path), cwd=own_home)
    assert done.returncode == 1
    assert done.stdout == "first\n"
    lines = done.stderr.splitlines()
    assert '  File "n.ipynb[cell 4]", line 3, in <module>' in lines
    assert "    return 1 / 0" in lines  # the cell's own text is in the traceback
    assert "rayjobs" not in "".join(line for line in lines if line.startswith("  File"))
    assert lines[-2] == "ZeroDivisionError: division by zero"
    assert lines[-1] == (
        "cell 4 of n.ipynb failed; 1 later code cells were not run. Submitted jobs continue."
    )


def test_rayjobs_error_is_one_line_with_its_location(own_home: Path) -> None:
    program = own_home / "driver.py"
    program.write_text(
        "from azureml.core import Workspace\nfrom azureml.core.model import Model\n"
        "ws = Workspace.from_config()\n\nModel(ws, 'nothing')\n"
    )
    done = azureml_run("driver.py", cwd=own_home)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("driver.py:5: ")


def test_a_program_ends_with_its_own_exit_code(own_home: Path) -> None:
    (own_home / "driver.py").write_text("import sys\nprint(sys.argv, __name__)\nsys.exit(7)\n")
    done = azureml_run("driver.py", "--a", "1", cwd=own_home)
    assert (done.returncode, done.stdout) == (7, "['driver.py', '--a', '1'] __main__\n")


def test_two_drivers_of_the_same_name_do_not_interfere(own_home: Path) -> None:
    """Each imports its own neighbour and finds its own config, whatever the other has left."""
    for name in ("a", "b"):
        folder = own_home / name
        folder.mkdir()
        (folder / "helper.py").write_text(f"WHO = {name!r}\n")
        (folder / "config.json").write_text(
            f'{{"workspace_name": "ws-{name}", "subscription_id": "s", "resource_group": "g"}}'
        )
        (folder / "driver.py").write_text(
            "import helper\nfrom azureml.core import Workspace\n"
            "ws = Workspace.from_config()\nprint(helper.WHO, ws.name, __file__)\n"
        )
    for name in ("a", "b", "a"):
        done = azureml_run(f"{name}/driver.py", cwd=own_home)
        assert done.returncode == 0, done.stderr
    inside = azureml_run("driver.py", cwd=own_home / "b")
    assert inside.stdout == "b ws-b driver.py\n"
    assert azureml_run("driver.py", cwd=own_home / "a").stdout == "a ws-a driver.py\n"
