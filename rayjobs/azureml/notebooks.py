"""Runs the code cells of a notebook in this process, one after the other, without Jupyter.

A cell's result is printed. Magics that only affect a notebook's display are skipped;
``%%writefile``, shell lines, ``%cd`` and ``%env`` are executed. ``pip install`` is skipped with a
notice, because a driver does not change the environment in which it runs.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rayjobs.core.errors import UsageError
from rayjobs.injob.lazy_dataclass import dataclass

TIMED = ("time", "timeit")
# Source: the options of IPython's %timeit, which say how often it runs the statement.
_TIMEIT_OPTIONS = re.compile(r"(-([nrp]\s*\d+|v\s*[A-Za-z_]\w*|[tcqo]+)(\s+|$))*")
PYTHON_CELLS = (*TIMED, "capture", "prun")  # the cell magics whose body is Python
# Magics that only affect the display.
_DISPLAY = ("matplotlib", "config", "load_ext", "reload_ext", "autoreload", "pylab", "precision")
_INSTALLS = (("pip", "install"), ("pip3", "install"), ("conda", "install"), ("conda", "env"))


@dataclass(frozen=True)
class Cell:
    """A code cell.

    Attributes:
        number: Its number among all cells of the notebook, including text cells, from 1.
        source: Its text.
    """

    number: int
    source: str


def code_cells(path: Path) -> list[Cell]:
    """Return the code cells of a notebook.

    Raises:
        UsageError: the file is not a notebook of version 4.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = notebook["cells"]
        return [
            Cell(number, "".join(cell["source"]))
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code" and "".join(cell["source"]).strip()
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} cannot be read as a notebook: {error!r}") from error


def run_notebook(path: Path) -> int:
    """Run a notebook's code cells; stop at the first that fails, and report it.

    Returns:
        0, 1 if a cell failed, or the exit code with which a cell ended the program.

    Raises:
        UsageError: the file is not a notebook.
    """
    from rayjobs.azureml.running import exit_code, report

    cells = code_cells(path)
    module = types.ModuleType("__main__")
    module.__dict__.update({"__builtins__": builtins, "display": _display, "get_ipython": _shell})
    sys.modules["__main__"] = module
    for done, cell in enumerate(cells, 1):
        name = f"{path.name}[cell {cell.number}]"
        _say(f"[{done}/{len(cells)}] cell {cell.number}")
        try:
            run_cell(cell.source, module.__dict__, name=name)
        except SystemExit as end:
            return exit_code(end)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            report(error, name)
            left = len(cells) - done
            _say(
                f"cell {cell.number} of {path.name} failed; {left} later code cells were not run. "
                f"Submitted jobs continue."
            )
            return 1
    return 0


def run_cell(source: str, names: dict[str, Any], *, name: str) -> None:
    """Run one cell, and print the value of its last expression.

    Args:
        names: The notebook's variables.
        name: The cell's name in tracebacks.
    """
    first, _, rest = source.lstrip().partition("\n")
    timing: AbstractContextManager[None] = nullcontext()
    if first.startswith("%%"):
        if not _cell_magic(first[2:], rest, names, name):
            return
        source = "\n" + rest
        if first[2:].split()[0] in TIMED:
            timing = _timed()
    with timing:
        _run_python(source, names, name)


def _run_python(source: str, names: dict[str, Any], name: str) -> None:
    code = python_of(source)
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        del tree.body[-1]
    names["_rayjobs_line"] = _run_line
    exec(compile(tree, name, "exec"), names)  # noqa: S102 - the user's own code
    if last is not None and not source.rstrip().endswith(";"):
        value = eval(compile(ast.Expression(last.value), name, "eval"), names)  # noqa: S307
        if value is not None:
            names["_"] = value
            _display(value)
    elif last is not None:
        eval(compile(ast.Expression(last.value), name, "eval"), names)  # noqa: S307


def python_of(source: str) -> str:
    """Return a cell's text as Python: magic and shell lines become calls.

    Such a line inside a string or brackets is not changed.
    """
    lines = _joined(textwrap.dedent(source).split("\n"))
    inside = _continued(lines)
    out = []
    for number, line in enumerate(lines):
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if number in inside or not bare:
            out.append(line)
        elif bare.startswith(("!", "%")):
            out.append(f"{indent}_rayjobs_line({bare!r}, globals())")
        elif (assigned := _assigned(bare)) is not None:
            target, command = assigned
            out.append(f"{indent}{target} = _rayjobs_line({command!r}, globals(), True)")
        elif "?" in (bare[0], bare[-1]) and bare.strip("?").replace(".", "").isidentifier():
            out.append(f"{indent}pass")
        else:
            out.append(line)
    return "\n".join(out)


def _joined(lines: list[str]) -> list[str]:
    """Join shell lines that a backslash continues; keep the number of lines."""
    out: list[str] = []
    number = 0
    while number < len(lines):
        line, more = lines[number], 0
        while line.lstrip().startswith("!") and line.endswith("\\") and number + 1 < len(lines):
            number += 1
            more += 1
            line = line[:-1] + lines[number].strip()
        out += [line, *[""] * more]
        number += 1
    return out


def _assigned(line: str) -> tuple[str, str] | None:
    """Return the name and the command of ``files = !ls``; None for any other line."""
    target, sign, rest = line.partition("=")
    rest = rest.strip()
    if sign and target.strip().isidentifier() and rest.startswith(("!", "%")):
        return target.strip(), rest
    return None


def _continued(lines: Sequence[str]) -> set[int]:
    """Return the numbers of lines that begin inside a string or brackets of an earlier line."""
    import io
    import tokenize

    plain = [
        "pass" if one.lstrip().startswith(("!", "%")) or _assigned(one.lstrip()) else one
        for one in lines
    ]
    inside: set[int] = set()
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(plain) + "\n").readline):
            if depth > 0:
                inside.add(token.start[0] - 1)
            if token.type == tokenize.OP:
                depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.string, 0)
            inside.update(range(token.start[0], token.end[0]))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        pass  # compiling the cell reports the error
    return inside


def _cell_magic(head: str, body: str, names: dict[str, Any], name: str) -> bool:
    """Execute a cell's ``%%magic``; return True if its body is Python that must still run.

    Raises:
        UsageError: the magic is unknown, or the program of a script failed.
    """
    words = shlex.split(head)
    magic, options = words[0] if words else "", words[1:]
    if magic in PYTHON_CELLS:
        return True
    if magic in ("writefile", "file"):
        append = "-a" in options or "--append" in options
        files = [os.path.expandvars(one) for one in options if not one.startswith("-")]
        if len(files) != 1:
            raise UsageError(f"%%{head}: name one file")
        target = Path(_filled(files[0], names)).expanduser()
        with target.open("a" if append else "w", encoding="utf-8") as out:
            out.write(body)
        _say(f"{'added to' if append else 'wrote'} {target}")
        return False
    if magic == "!":
        _shell_lines(body, names)
        return False
    if magic in ("bash", "sh", "script"):
        program = [] if magic == "script" else [magic]
        _script([*program, *(_filled(one, names) for one in options)], body)
        return False
    if magic in ("html", "HTML", "javascript", "js", "latex", "markdown", "svg"):
        return False
    raise UsageError(
        f"the cell magic %%{magic} is not supported; use writefile, time, capture or bash"
    )


def _run_line(line: str, names: dict[str, Any], assigned: bool = False) -> Any:
    """Execute a line that begins with ``!`` or ``%``.

    Args:
        assigned: Return the output lines of a shell command instead of printing them.

    Raises:
        UsageError: the magic is unknown.
    """
    if line.startswith("!"):
        return _shell_lines(line[1:].lstrip("!"), names, assigned=assigned)
    magic, _, rest = line[1:].strip().partition(" ")
    rest = _filled(rest.strip(), names)
    if magic in ("pip", "conda"):
        return _shell_lines(f"{magic} {rest}", names, assigned=assigned)
    if magic in ("cd",):
        os.chdir(Path(shlex.split(rest)[0]).expanduser() if rest else Path.home())
        return None
    if magic in ("env", "set_env"):
        key, _, value = rest.partition("=" if "=" in rest else " ")
        if value:
            os.environ[key.strip()] = value.strip()
        return os.environ.get(key.strip())
    if magic in TIMED:
        if magic == "timeit":
            rest = _TIMEIT_OPTIONS.sub("", rest, count=1)  # matches at the start, if only ""
        with _timed():
            exec(compile(rest, "<%time>", "exec"), names)  # noqa: S102
        return None
    if magic == "pwd":
        return os.getcwd()  # noqa: PTH109 - the magic returns a string
    if magic in ("bash", "sh", "system", "sx"):
        return _shell_lines(rest, names, assigned=assigned)
    if magic.lstrip("%") in _DISPLAY:
        return None
    raise UsageError(
        f"the magic %{magic} is not supported; use cd, env, time, pip or a display magic"
    )


def _script(words: Sequence[str], body: str) -> None:
    """Run a program with a cell's body as its input; print its output.

    Raises:
        UsageError: the program cannot be started, or its exit code is not 0.
    """
    command = [one for one in words if one != "--no-raise-error"]
    refused = [one for one in command if one.split("=")[0] in ("--out", "--err", "--bg", "--proc")]
    if refused or not command:
        what = f"{refused[0]} is not supported" if refused else "name a program"
        raise UsageError(f"a cell that another program runs: {what}")
    if _installs(body):
        _say(f"left out: {body.splitlines()[0]} (a driver does not change its environment)")
        return
    try:
        done = subprocess.run(
            command, input=body, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error
    sys.stdout.write(done.stdout)
    if done.returncode and len(command) == len(words):
        raise UsageError(f"{shlex.join(command)} ended with exit code {done.returncode}")


def _shell_lines(
    command: str, names: Mapping[str, Any], *, assigned: bool = False
) -> list[str] | None:
    """Run a shell command; print its output, or return its lines."""
    command = _filled(command.strip(), names)
    if _installs(command):
        _say(f"left out: {command.splitlines()[0]} (a driver does not change its environment)")
        return [] if assigned else None
    done = subprocess.run(  # noqa: S602 - a notebook's own shell line
        command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if assigned:
        return done.stdout.splitlines()
    sys.stdout.write(done.stdout)
    return None


def _installs(command: str) -> bool:
    words = command.split()
    while words and (words[0].endswith(("python", "python3")) or words[0] in ("-m", "sudo")):
        words = words[1:]
    return tuple(word.rpartition("/")[2] for word in words[:2]) in _INSTALLS


def _filled(text: str, names: Mapping[str, Any]) -> str:
    """Substitute ``{name}`` and ``$name`` as notebooks do; leave unknown names unchanged."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return str(names[name]) if name in names else found[0]

    return re.sub(r"\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", value, text)


def _display(*values: Any, **options: Any) -> None:
    for value in values:
        print(repr(value))  # noqa: T201 - shown values


def _shell() -> Any:
    """Return a stand-in for IPython's shell, with which programs run magics."""
    return types.SimpleNamespace(
        run_line_magic=lambda magic, line: _run_line(f"%{magic} {line}", _main()),
        magic=lambda line: _run_line(f"%{line}", _main()),
        system=lambda command: _shell_lines(command, _main()),
    )


def _main() -> dict[str, Any]:
    return sys.modules["__main__"].__dict__


@contextmanager
def _timed() -> Iterator[None]:
    """Print how long the block took; ``timeit``, too, runs it only once."""
    began_s = time.monotonic()
    yield
    _say(f"Wall time: {time.monotonic() - began_s:.3g} s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress


def cells_as_python(path: Path) -> Iterator[tuple[Cell, str]]:
    """Yield each code cell with its text as Python; skip cells in other languages.

    Raises:
        UsageError: the file is not a notebook.
    """
    for cell in code_cells(path):
        first, _, rest = cell.source.lstrip().partition("\n")
        if first.startswith("%%"):
            if first[2:].split()[:1] and first[2:].split()[0] in PYTHON_CELLS:
                yield cell, "\n" + python_of(rest)
            continue
        yield cell, python_of(cell.source)


def written_scripts(path: Path) -> Iterator[tuple[Cell, str]]:
    """Yield each cell that writes a Python file with ``%%writefile``, with the file's text.

    Raises:
        UsageError: the file is not a notebook.
    """
    for cell in code_cells(path):
        first, _, rest = cell.source.lstrip().partition("\n")
        if first.startswith(("%%writefile", "%%file")) and first.rstrip().endswith(".py"):
            yield cell, "\n" + rest
