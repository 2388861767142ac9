"""The mappings of computes to targets and of URLs to paths, which users view and change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayjobs.core.errors import NotFoundError, UsageError
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.target.targets import require
from rayjobs.workspace.azure import AzureSettings

if TYPE_CHECKING:
    from rayjobs.workspace.folder import OpenWorkspace


@dataclass(frozen=True)
class Mappings:
    """All mappings of a workspace."""

    targets: dict[str, str]
    urls: dict[str, str]
    allow_cpu: bool


def change(workspace: OpenWorkspace, given: Sequence[str], removed: Sequence[str]) -> Mappings:
    """Add and remove mappings; return the resulting ones. If one is wrong, nothing changes.

    Args:
        given: ``NAME=TARGET`` or ``URL=PATH``.
        removed: Names and URLs.

    Raises:
        UsageError: a mapping has another form.
        NotFoundError: there is no such target, path or mapping.
    """
    settings = AzureSettings(workspace.store)
    targets, urls = {}, {}
    for text in given:
        name, value = _parted(text)
        if "://" in name:
            path = Path(value).expanduser().absolute()
            if not path.exists():
                raise NotFoundError(f"{text!r}: there is no {path}")
            urls[name] = str(path)
        else:
            require(value)
            targets[name] = value
    known = {*settings.targets(), *settings.urls()}
    for name in removed:
        if name not in known:
            raise NotFoundError(
                f"there is no mapping of {name!r}; `rayjobs azureml map` lists them"
            )
    for name, target in targets.items():
        settings.map_target(name, target)
    for url, file in urls.items():
        settings.map_url(url, file)
    for name in removed:
        (settings.map_url if "://" in name else settings.map_target)(name, None)
    return Mappings(settings.targets(), settings.urls(), settings.allow_cpu)


def _parted(text: str) -> tuple[str, str]:
    """Return both sides of the last ``=``, because a URL may contain others."""
    name, sign, value = text.rpartition("=")
    if not sign or not name or not value:
        raise UsageError(f"{text!r} is not a mapping; write NAME=TARGET or URL=PATH")
    return name, value
