"""The record of a datastore that fsspec reads: a URL, plain options and the names of secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rayjobs.datastore.catalogue import DatastoreRecord
from rayjobs.datastore.errors import InvalidReference
from rayjobs.datastore.nosecrets import check_url
from rayjobs.datastore.refs import check_datastore_name

_SECRET = re.compile(r"key|token|secret|password|passphrase|credential|connection_string", re.I)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def fsspec_record(
    name: str, url: str, options: Mapping[str, Any], option_env: Mapping[str, str]
) -> DatastoreRecord:
    """Return the record of a datastore at `url`.

    Raises:
        InvalidReference: the name or the URL is not valid, or an option could hold a secret.
    """
    check_datastore_name(name)
    check_url(url)
    if "://" not in url:
        raise InvalidReference(f"{url!r} is not a URL; write PROTOCOL://PATH.")
    for option, value in options.items():
        if _SECRET.search(option) and not isinstance(value, bool):
            raise InvalidReference(
                f"the option {option!r} could hold a secret, which would be stored. Put it into a "
                f"variable and give the name: option_env={{{option!r}: 'VARIABLE'}}."
            )
    for option, variable in option_env.items():
        if not _VARIABLE.match(str(variable)):
            raise InvalidReference(
                f"option_env[{option!r}] takes the NAME of an environment variable, but this looks "
                "like a secret itself. Nothing was stored."
            )
    return DatastoreRecord(
        name,
        "fsspec",
        {
            "url": url.rstrip("/"),
            "options": json.dumps(dict(options), sort_keys=True),
            "option_env": json.dumps(dict(option_env), sort_keys=True),
        },
    )
