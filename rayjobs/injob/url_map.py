"""Maps web addresses to files or folders of this machine.

A workspace may map addresses to local paths, so that programs run without access to the web. In a
job the map is the variable ``RAYJOBS_URLS`` (a JSON object: URL to path). A program adds the maps
of the workspaces that it opens; work for one workspace uses `only` its map.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import json
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional
from urllib.parse import unquote

from rayjobs.injob.after_import import after_import

VARIABLE = "RAYJOBS_URLS"
Urls = Callable[[], Mapping[str, str]]

_sources: List[Urls] = []
_only: "contextvars.ContextVar[Optional[Urls]]" = contextvars.ContextVar("urls", default=None)


def add_source(urls: Urls) -> None:
    """Add `urls` as a source of mappings; the last added source takes precedence."""
    _sources.append(urls)


def remove_source(urls: Urls) -> None:
    """Remove the source `urls`."""
    if urls in _sources:
        _sources.remove(urls)


@contextlib.contextmanager
def only(urls: Urls) -> Iterator[None]:
    """Within the block, use only `urls`, not the added maps of other workspaces."""
    token = _only.set(urls)
    try:
        yield
    finally:
        _only.reset(token)


def map_url(url: str) -> Optional[str]:
    """Return the local path for `url`; None if no mapping matches.

    A mapping of the address itself (with or without its query) gives the path. A mapping of a
    parent gives a folder, in which the rest of the address is looked up; the longest match counts.
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
    sources = [*reversed(_sources)] if one is None else [one]
    found = [dict(urls()) for urls in sources]
    text = os.environ.get(VARIABLE)
    if text:
        found.append({str(url): str(path) for url, path in json.loads(text).items()})
    return found


def install() -> None:
    """Make `urllib` and `requests` in this process consult the map first.

    torchvision, scikit-learn and pandas, for example, fetch files this way. Unmapped addresses go
    to the web as before. Neither module is imported here: each is patched when a program imports
    it.
    """
    for name, change in _CHANGES.items():
        after_import(name, change)


def _file_for(url: str) -> Optional[str]:
    path = map_url(url) if url.startswith(("http://", "https://")) else None
    return path if path is not None and os.path.isfile(path) else None


def _change_urllib(module: Any) -> None:
    import email.message
    import urllib.response

    class Mapped(module.BaseHandler):
        handler_order = 100  # before those that connect

        def default_open(self, request: Any) -> Any:
            path = _file_for(request.full_url)
            if path is None:
                return None
            headers = email.message.Message()
            headers["Content-Length"] = str(os.path.getsize(path))
            body = open(path, "rb")
            answer: Any = urllib.response.addinfourl(body, headers, request.full_url, 200)
            answer.msg = "OK"  # as in a response from a web server
            answer.length = os.path.getsize(path)
            return answer

    build = module.build_opener

    def build_opener(*handlers: Any) -> Any:
        return build(*handlers, Mapped)

    if not hasattr(build, "rayjobs_maps"):
        build_opener.rayjobs_maps = True  # type: ignore[attr-defined]
        module.build_opener = build_opener
        if module._opener is not None:
            module._opener.add_handler(Mapped())


def _change_requests(module: Any) -> None:
    import io

    send = module.HTTPAdapter.send
    if hasattr(send, "rayjobs_maps"):
        return

    def send_mapped(adapter: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        path = _file_for(request.url) if request.method in ("GET", "HEAD") else None
        if path is None:
            return send(adapter, request, *args, **kwargs)
        # From the script's environment, which has requests.
        response = importlib.import_module("urllib3").HTTPResponse
        body: Any = open(path, "rb") if request.method == "GET" else io.BytesIO()
        size = {"Content-Length": str(os.path.getsize(path))}
        answer = response(
            body,
            headers=size,
            status=200,
            reason="OK",
            preload_content=False,
            request_method=request.method,
        )
        return adapter.build_response(request, answer)

    send_mapped.rayjobs_maps = True  # type: ignore[attr-defined]
    module.HTTPAdapter.send = send_mapped


_CHANGES = {"urllib.request": _change_urllib, "requests.adapters": _change_requests}
