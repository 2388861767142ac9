"""Which file or folder of this machine answers for an address of the web.

A workspace may map addresses to local paths, so that programs run where the web cannot be reached.
In a job the map is the variable ``RAYJOBS_URLS`` (a JSON object: URL to path). A program adds those
of the workspaces that it opens; what is done for one workspace asks its map `only`.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional
from urllib.parse import unquote

VARIABLE = "RAYJOBS_URLS"
Urls = Callable[[], Mapping[str, str]]

_sources: List[Urls] = []
_only: "contextvars.ContextVar[Optional[Urls]]" = contextvars.ContextVar("urls", default=None)


def add_source(urls: Urls) -> None:
    """Ask `urls` for mappings too; the source that was added last is asked first."""
    _sources.append(urls)


def remove_source(urls: Urls) -> None:
    """Ask `urls` no more."""
    if urls in _sources:
        _sources.remove(urls)


@contextlib.contextmanager
def only(urls: Urls) -> Iterator[None]:
    """Within, ask `urls` in place of what was added: the maps of other workspaces do not count."""
    token = _only.set(urls)
    try:
        yield
    finally:
        _only.reset(token)


def map_url(url: str) -> Optional[str]:
    """Return the local path that answers for `url`; None if no mapping names it.

    A mapping of the address itself (with or without its query) is the path. One of a folder above
    it is a folder, in which the rest of the address is looked up; of several the longest counts.
    The wildcards ``*`` and ``[…]`` in the rest are kept; a ``?`` begins a query.
    """
    plain = url.partition("#")[0].partition("?")[0]
    for known in _maps():
        by_url = {one.rstrip("/"): path for one, path in known.items()}
        for exact in (url, plain.rstrip("/")):
            if exact in by_url:
                return by_url[exact]
        found = [one for one in by_url if plain.startswith(one + "/")]
        if found:
            longest = max(found, key=len)
            return os.path.join(by_url[longest], unquote(plain[len(longest) + 1 :]))
    return None


def _maps() -> List[Dict[str, str]]:
    one = _only.get()
    asked = [*reversed(_sources)] if one is None else [one]
    found = [dict(urls()) for urls in asked]
    text = os.environ.get(VARIABLE)
    if text:
        found.append({str(url): str(path) for url, path in json.loads(text).items()})
    return found


def install() -> None:
    """Let `urllib` of this process ask the map first: ``urllib.request.urlopen`` and its users.

    torchvision, for one, downloads its datasets by it. An address that no mapping names goes to
    the web as before.
    """
    import email.message
    import urllib.request
    import urllib.response

    class Mapped(urllib.request.BaseHandler):
        handler_order = 100  # before those that connect

        def default_open(self, request: Any) -> Any:
            path = map_url(request.full_url) if request.type in ("http", "https") else None
            if path is None or not os.path.isfile(path):
                return None
            headers = email.message.Message()
            headers["Content-Length"] = str(os.path.getsize(path))
            body = open(path, "rb")
            answer: Any = urllib.response.addinfourl(body, headers, request.full_url, 200)
            answer.msg = "OK"  # as an answer of the web has it
            return answer

    urllib.request.install_opener(urllib.request.build_opener(Mapped))
