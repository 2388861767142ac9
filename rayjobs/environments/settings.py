"""This node's settings for installing packages: its uv, and the settings for pip and uv."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rayjobs.core.errors import PrepareError
from rayjobs.core.failures import FailureClass
from rayjobs.launch.plan import inherited

# Variables of the agent that a build needs, in addition to those that every rank inherits.
_PASSED = frozenset(
    {
        *("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
    }
)
_PASSED_PREFIXES = ("SSL_CERT_", "UV_")
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})
# These would make uv change another environment.
_DROPPED = frozenset(
    {"UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_WORKING_DIR"}
    | {"UV_BREAK_SYSTEM_PACKAGES", "UV_NO_VERIFY_HASHES", "UV_TARGET", "UV_PREFIX"}
)
# Variable of uv → variable of pip.
_FOR_PIP: Mapping[str, str] = {
    "UV_DEFAULT_INDEX": "PIP_INDEX_URL",
    "UV_INDEX_URL": "PIP_INDEX_URL",
    "UV_INDEX": "PIP_EXTRA_INDEX_URL",
    "UV_EXTRA_INDEX_URL": "PIP_EXTRA_INDEX_URL",
    "UV_FIND_LINKS": "PIP_FIND_LINKS",
    "UV_NO_INDEX": "PIP_NO_INDEX",
    "UV_INSECURE_HOST": "PIP_TRUSTED_HOST",
    "SSL_CERT_FILE": "PIP_CERT",
}
# Setting of pip → variable of uv. Source: the configuration pages of both.
_OF_PIP: Mapping[str, str] = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
}
_OLD_NAMES: Mapping[str, tuple[str, ...]] = {
    "UV_DEFAULT_INDEX": ("UV_INDEX_URL",),
    "UV_INDEX": ("UV_EXTRA_INDEX_URL",),
}
_LISTS: Mapping[str, str] = {"UV_INDEX": " ", "UV_FIND_LINKS": ",", "UV_INSECURE_HOST": " "}


def find_uv() -> str:
    """Return the path of uv: next to this interpreter, from its package, or on PATH.

    Raises:
        PrepareError: class ``environment``: there is no uv.
    """
    sibling = Path(sys.executable).with_name("uv")
    found = str(sibling) if os.access(sibling, os.X_OK) else _uv_of_package() or shutil.which("uv")
    if found is None:
        raise PrepareError(
            "packages are installed with uv, which is neither next to the target's Python nor on "
            "its PATH: run `pip install uv` there, or give an interpreter's path as environment",
            failure_class=FailureClass.ENVIRONMENT,
        )
    return found


def _uv_of_package() -> str | None:
    """Return the program of the installed package, which may be elsewhere on sys.path."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def search_path(environment: Mapping[str, str]) -> str:
    """Return the PATH for the search of interpreters.

    pyenv's shims fail for each version that is not selected; the versions themselves do not.
    """
    folders = [one for one in environment.get("PATH", os.defpath).split(":") if one]
    root = _home(environment) / ".pyenv"
    shims = [one for one in folders if Path(one).name == "shims"]
    roots = [Path(one).parent for one in shims] or [root]
    versions = [path for one in roots for path in sorted(one.glob("versions/*/bin"))]
    return ":".join([*(one for one in folders if one not in shims), *map(str, versions)])


def variables(
    environment: Mapping[str, str], *, secrets: Iterable[str] = (), pip_files: Iterable[Path] = ()
) -> dict[str, str]:
    """Return uv's variables: the allowed ones of the agent, and equivalents of pip's settings.

    Args:
        environment: The agent's own.
        secrets: Names of variables that the requirements refer to.
        pip_files: pip's configuration files, by increasing priority.

    Raises:
        PrepareError: class ``environment``: a secret is not set.
    """
    kept = inherited(environment) | {
        name: value
        for name, value in environment.items()
        if (name in _PASSED or name.startswith(_PASSED_PREFIXES) or name.lower() in _PROXIES)
        and name not in _DROPPED
    }
    for name in secrets:
        if name not in environment:
            raise PrepareError(
                f"the environment refers to the variable {name}, which is not set on the target; "
                f"set it with `rayjobs target secret set {name}`",
                failure_class=FailureClass.ENVIRONMENT,
                is_permanent=True,
            )
        kept[name] = environment[name]
    if not has_settings_of_uv(environment):
        for name, value in of_pip(environment, pip_files).items():
            if name not in kept and not any(old in kept for old in _OLD_NAMES.get(name, ())):
                kept[name] = value
    return kept | {
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }


def has_settings_of_uv(environment: Mapping[str, str]) -> bool:
    """Whether the node's user or administrator has a uv configuration, which takes precedence.

    Source: uv, Configuration files.
    """
    user = environment.get("XDG_CONFIG_HOME") or str(_home(environment) / ".config")
    system = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    named = environment.get("UV_CONFIG_FILE")
    folders = [Path(user), *(Path(one) for one in system if one), Path("/etc")]
    return bool(named) or any((folder / "uv" / "uv.toml").exists() for folder in folders)


def pip_files(environment: Mapping[str, str]) -> list[Path]:
    """Return pip's configuration files in ascending priority.

    Source: pip, Configuration (global, user, PIP_CONFIG_FILE).
    """
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = _home(environment)
    system = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    user = environment.get("XDG_CONFIG_HOME") or str(home / ".config")
    return [
        *(Path(folder) / "pip" / "pip.conf" for folder in reversed(system) if folder),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        Path(user) / "pip" / "pip.conf",
        *([Path(named)] if named else []),
    ]


def of_pip(environment: Mapping[str, str], files: Iterable[Path]) -> dict[str, str]:
    """Return pip's settings as variables of uv, skipping unreadable files."""
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue  # pip itself reports it on its next use
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {key: value for key, value in parser.items(section) if key in _OF_PIP}
    for key in _OF_PIP:
        value = environment.get("PIP_" + key.replace("-", "_").upper())
        if value:
            found[key] = value
    result = {}
    for key, value in found.items():
        name = _OF_PIP[key]
        if name == "UV_NO_INDEX" and _is_off(value):
            continue
        words = value.split()
        if words:
            result[name] = _LISTS.get(name, " ").join(words)
    if "UV_INDEX" in result:
        # With several indexes, pip chooses the best version of all of them.
        result["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return result


def for_pip(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which pip uses the same indexes as uv."""
    found = {new: environment[old] for old, new in _FOR_PIP.items() if environment.get(old)}
    if links := found.get("PIP_FIND_LINKS"):
        found["PIP_FIND_LINKS"] = links.replace(",", " ")
    return found


def of_uv_pip(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of a `uv pip …` that obeys settings without a uv variable.

    uv has no variable for pip's ``no-index``, and ignores its own find-links if an argument names
    one.
    """
    words = list(arguments)
    if words[1:2] != ["pip"]:
        return words
    more = [] if _is_off(environment.get("UV_NO_INDEX", "")) else ["--no-index"]
    if "--find-links" in words:
        for link in environment.get("UV_FIND_LINKS", "").split(","):
            more += ["--find-links", link] if link else []
    return [*words[:3], *more, *words[3:]]


def _is_off(value: str) -> bool:
    return value.strip().lower() in ("", "0", "false", "no", "off")


def local_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders of this machine that uv's variables name as indexes or find-links.

    An index may refer to files next to it (``../../files``), so its parent folder is included.
    """
    found = []
    for name in _FOR_PIP:
        for word in re.split(r"[\s,]+", environment.get(name, "")):
            path = Path(word.rpartition("=")[2].removeprefix("file://"))
            if path.is_absolute() and name != "SSL_CERT_FILE":
                has_sibling_files = name != "UV_FIND_LINKS" and len(path.parts) > 2
                found.append(path.parent if has_sibling_files else path)
    return list(dict.fromkeys(found))


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or Path.home())
