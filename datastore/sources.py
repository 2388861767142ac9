"""Resolves users' notations for data (URLs, globs, tuples, DataPaths) to the exact files."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from rayjobs.datastore.backends import Backend, StoredFile, open_backend
from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import DataNotFound, InvalidReference
from rayjobs.datastore.fsspec_records import fsspec_record
from rayjobs.datastore.manifest import FileEntry, Manifest
from rayjobs.datastore.nosecrets import check_bucket, check_url
from rayjobs.datastore.refs import (
    DataPath,
    DataReference,
    check_datastore_name,
    clean_path,
    datastore_name_of,
)
from rayjobs.injob.lazy_dataclass import dataclass
from rayjobs.injob.url_map import map_url

WEB = ("https://", "http://")
OpenRecord = Callable[[str], DatastoreRecord]
"""A function that finds the record of a datastore by name."""


@dataclass(frozen=True)
class Source:
    """One source of data: a datastore by name (or URL root) and a path or glob in it."""

    datastore: str
    path: str

    def to_json(self) -> list[str]:
        """Return the source as JSON."""
        return [self.datastore, self.path]


def is_url_root(datastore: str) -> bool:
    """Return whether a datastore's name is the root of a URL, which needs no record."""
    return "://" in datastore


def record_of_url_root(root: str) -> DatastoreRecord:
    """Return the record for the root of a URL (`file:///`, `s3://bucket`, `https://host` …)."""
    if root == "file:///":
        return DatastoreRecord(root, "local", {"root": "/"})
    if root.startswith(WEB):
        return DatastoreRecord(root, "web", {"url": root})
    if root.startswith("s3://"):
        return DatastoreRecord(root, "s3", {"bucket": root.removeprefix("s3://")})
    return fsspec_record("url", root, {}, {})


def parse_sources(path: Any) -> tuple[Source, ...]:
    """Return the sources that `path` names.

    Args:
        path: A `str`, `pathlib.Path`, DataPath, DataReference, Datastore or (datastore, path), or a
            list of these.

    Raises:
        InvalidReference: an item is not one of these, or the list is empty.
    """
    items = path if isinstance(path, list) else [path]
    if not items:
        raise InvalidReference("no path was given; name at least one file, folder or glob.")
    return tuple(_parse(item) for item in items)


def _parse(item: Any) -> Source:
    if isinstance(item, DataReference | DataPath):
        if not item.datastore_name:
            raise InvalidReference("this DataPath has no datastore; give it one.")
        return Source(item.datastore_name, item.path_on_datastore or "")
    if isinstance(item, tuple):
        if len(item) != 2 or not isinstance(item[1], str):
            raise InvalidReference(f"{item!r} is not (datastore, path).")
        return Source(datastore_name_of(item[0]), clean_path(item[1]))
    if isinstance(item, str | Path):
        return _parse_text(str(item))
    if hasattr(item, "name") and hasattr(item, "datastore_type"):
        return Source(str(item.name), "")
    raise InvalidReference(
        f"{item!r} names no data; use a path, a URL, a DataPath or a tuple (datastore, path)."
    )


def _parse_text(text: str) -> Source:
    if "://" not in text:
        absolute = Path(text).expanduser().absolute()
        return Source("file:///", clean_path(absolute.as_posix()))
    if text.startswith(WEB) and map_url(text) is not None:
        text = text.partition("#")[0].partition("?")[0]  # the local path replaces the query too
    # Check before any message or record contains the URL: they must not hold a secret.
    check_url(text, wildcards=not text.startswith(WEB))
    scheme, rest = text.split("://", 1)
    if scheme == "file":
        return Source("file:///", clean_path(unquote(urlsplit(text).path)))
    if scheme == "s3":
        bucket, _, key = rest.partition("/")
        check_bucket(bucket)
        return Source(f"s3://{bucket}", clean_path(key))
    if f"{scheme}://" in WEB:
        host, _, path = rest.partition("/")
        return Source(f"{scheme}://{host}", path.partition("#")[0])
    if scheme == "azureml":
        found = re.search(r"datastores/([^/]+)/paths/(.*)\Z", rest)
        if found:
            return Source(found[1], clean_path(found[2]))
    elif scheme in _protocols():
        top, _, path = rest.partition("/")
        return Source(f"{scheme}://{top}", clean_path(path))
    raise InvalidReference(
        f"an address {scheme[:20]}://… cannot be read: local paths, file://, s3://, https://, "
        "azureml://datastores/NAME/paths/… and the protocols of fsspec are known."
    )


def _protocols() -> list[str]:
    from fsspec import available_protocols

    return [str(one) for one in available_protocols()]


def record_of_url(name: str, url: str) -> DatastoreRecord:
    """Return the record of a datastore at `url`.

    Args:
        url: A folder, `file://…`, `s3://bucket[/prefix]`, or a URL of a protocol of fsspec.

    Raises:
        InvalidReference: `url` is not one of these, or could contain a secret.
    """
    check_url(url, wildcards=not url.startswith("s3://"))
    if "://" not in url and "\0" not in url:  # a folder, relative to the user's current folder
        url = os.path.normpath(Path(url).expanduser().absolute())
    (source,) = parse_sources(url)
    base = record_of_url_root(source.datastore) if "://" in source.datastore else None
    if base is None or base.kind == "web":
        raise InvalidReference(
            f"{url!r} is neither a folder, nor s3://BUCKET/PREFIX, nor a URL of fsspec."
        )
    if base.kind == "fsspec":
        return fsspec_record(name, url, {}, {})
    if base.kind == "local":
        return DatastoreRecord(check_datastore_name(name), "local", {"root": f"/{source.path}"})
    settings: dict[str, str] = dict(base.settings)
    if source.path:
        settings["prefix"] = source.path
    return DatastoreRecord(check_datastore_name(name), "s3", settings)


def has_glob(path: str) -> bool:
    """Return whether `path` contains a wildcard."""
    return any(mark in path for mark in "*?[")


def glob_pattern(glob: str) -> re.Pattern[str]:
    """Return a pattern for whole paths: `*`, `?`, `[…]` inside one folder, `**` across folders.

    As in Azure ML, `**` alone matches any number of folders and files: `a/**` is everything below
    `a`.
    """
    out, at = "", 0
    while at < len(glob):
        if glob.startswith("**/", at):
            out, at = out + "(?:[^/]+/)*", at + 3
        elif glob.startswith("**", at):
            out, at = out + ".*", at + 2
        elif glob[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif glob[at] == "?":
            out, at = out + "[^/]", at + 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", "\\\\")
            inside = "^" + inside[1:] if inside[0] in "!^" else inside
            out, at = out + f"[{inside}]", end + 1
        else:
            out, at = out + re.escape(glob[at]), at + 1
    return re.compile(out + r"\Z", re.DOTALL)


@dataclass(frozen=True)
class _Found:
    """The contents of a source.

    `shown` has the path of each file as users see it, in the order of `files`; `base` is the part
    of these paths that the source itself names. `datastore` is where the files are.
    """

    source: Source
    base: str
    files: tuple[StoredFile, ...]
    is_file: bool
    datastore: str
    shown: tuple[str, ...]


def _find(source: Source, open_record: OpenRecord) -> _Found:
    if source.datastore.startswith(WEB):
        return _find_on_web(source, open_record)
    return _find_stored(source, open_backend(record_for(source.datastore, open_record)))


def _find_stored(source: Source, backend: Backend) -> _Found:
    def found(base: str, files: tuple[StoredFile, ...], *, is_file: bool = False) -> _Found:
        shown = tuple(file.path for file in files)
        return _Found(source, base, files, is_file, source.datastore, shown)

    if has_glob(source.path):
        base, pattern = "/".join(_fixed(source.path)), glob_pattern(source.path)
        files = tuple(file for file in backend.walk(base) if pattern.match(file.path))
        if files:
            return found(base, files)
        # Nothing matches: it may be a plain name such as `a[1]`.
    single = backend.stat(source.path)
    if single is not None:
        return found(source.path.rpartition("/")[0], (single,), is_file=True)
    return found(source.path, tuple(backend.walk(source.path)))


def _fixed(path: str) -> list[str]:
    """Return the folders of a path before its first wildcard."""
    return list(itertools.takewhile(lambda part: not has_glob(part), path.split("/")))


def _find_on_web(source: Source, open_record: OpenRecord) -> _Found:
    """Find a file of a web server, or the files of the local path that replaces its address."""
    url = f"{source.datastore}/{source.path}"
    plain = unquote(source.path)  # the address gives the file its name
    local = map_url(url)
    if local is not None:
        there = Source("file:///", clean_path(local))
        found = _find_stored(there, open_backend(record_of_url_root(there.datastore)))
        if not found.files:
            raise DataNotFound(f"{url} is mapped to {local}, which does not exist.")
        if found.is_file:
            return replace(found, source=source, base=plain.rpartition("/")[0], shown=(plain,))
        base = "/".join(_fixed(plain.rstrip("/")))
        names = (file.path.removeprefix(found.base).lstrip("/") for file in found.files)
        shown = tuple(f"{base}/{name}".lstrip("/") for name in names)
        return replace(found, source=source, base=base, shown=shown)
    if has_glob(source.path) or not plain or plain.endswith("/"):
        raise InvalidReference(
            f"{url} does not name one file, and a web server does not list its files. Name each "
            "file, or map the address to a folder (`rayjobs azureml map URL=PATH`)."
        )
    backend = open_backend(record_for(source.datastore, open_record))
    file = backend.stat(source.path)
    files = () if file is None else (file,)
    base = plain.rpartition("/")[0]
    return _Found(source, base, files, True, source.datastore, (plain,) * len(files))


def resolve(
    sources: Sequence[Source], open_record: OpenRecord, *, must_exist: bool = True
) -> Manifest:
    """Return the manifest of the current files of `sources`.

    A single file is shown as itself; a folder or glob keeps the structure below its fixed part;
    several sources of one datastore keep it below their common folder; sources of several
    datastores are shown below the datastores' names.

    Raises:
        DataNotFound: a source is empty (with `must_exist`).
        DatastoreError: a storage cannot be read.
    """
    found: list[_Found] = []
    for source in sources:
        here = _find(source, open_record)
        if not here.files and must_exist:
            where = open_backend(record_for(source.datastore, open_record)).where
            raise DataNotFound(
                f"there is nothing at {source.path or '/'!r} in datastore {source.datastore!r} "
                f"({where}). Check the path; `rayjobs data ls` lists existing data."
            )
        found.append(here)
    single = len(found) == 1 and found[0].is_file
    stores = {here.source.datastore for here in found}
    bases = [here.base.split("/") if here.base else [] for here in found]
    common = _common(bases) if len(stores) == 1 else []
    entries: dict[tuple[str, str], FileEntry] = {}
    for here in found:
        for file, shown in zip(here.files, here.shown, strict=True):
            parts = shown.split("/")[len(common) :]
            if len(stores) > 1:
                parts.insert(0, re.sub(r"[^A-Za-z0-9_.-]", "_", here.source.datastore))
            entries[(here.datastore, file.path)] = FileEntry(
                path="/".join(parts),
                datastore=here.datastore,
                key=file.path,
                size=file.size,
                etag=file.etag,
                digest=file.digest,
            )
    return Manifest.of(entries.values(), single_file=single)


def record_for(datastore: str, open_record: OpenRecord) -> DatastoreRecord:
    """Return the record of a datastore, given by name or by the root of a URL."""
    return record_of_url_root(datastore) if is_url_root(datastore) else open_record(datastore)


def _common(lists: list[list[str]]) -> list[str]:
    first, *others = lists
    length = min(len(parts) for parts in lists)
    while any(other[:length] != first[:length] for other in others):
        length -= 1
    return first[:length]
