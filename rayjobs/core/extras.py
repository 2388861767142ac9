"""Names the extra that provides a package which is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from rayjobs.core.errors import MissingPackageError

# Import name → extra. The packages that a client of a server needs are always installed.
EXTRAS = {
    "ray": "local",
    "torch": "local",
    "torchvision": "local",
    "uv": "local",
    "alembic": "local",
    "sqlalchemy": "local",
    "botocore": "data",
    "fsspec": "data",
    "pandas": "data",
    "pyarrow": "data",
    "s3fs": "data",
    "psycopg": "postgres",
}
_OTHER_WAY = ", or use a server that runs jobs: `rayjobs login ADDRESS`"


def has(module: str) -> bool:
    """Whether a module can be imported; this does not import it."""
    return find_spec(module) is not None


def require(feature: str, *modules: str) -> None:
    """Refuse a feature whose packages are not installed.

    Raises:
        MissingPackageError: with the command that installs them.
    """
    for name in modules:
        if not has(name):
            raise MissingPackageError(_sentence(feature, name))


def explained(error: BaseException) -> MissingPackageError | None:
    """Return the error for an import that failed because an extra is not installed, or None."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    if package not in EXTRAS:
        return None
    return MissingPackageError(_sentence("this", package))


def _sentence(feature: str, package: str) -> str:
    extra = EXTRAS[package]
    other = _OTHER_WAY if extra == "local" else ""
    return (
        f"{feature} needs {package}, which is not installed here: "
        f"pip install 'rayjobs[{extra}]'{other}"
    )
