"""Stands for a store or a catalogue that is in another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Send = Callable[[str, Sequence[Any], Mapping[str, Any]], Any]


class Forwarded:
    """Has the methods of a protocol, and forwards each call."""

    def __init__(self, kind: type, send: Send) -> None:
        """Stand for an object of the protocol `kind`.

        Args:
            kind: The protocol. Callers may test an object for its attributes, so this object has
                no others.
            send: Called with a method's name and its arguments; returns what the method returns.
        """
        self._kind = kind
        self._send = send

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_") or not hasattr(self._kind, method):
            raise AttributeError(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._send(method, args, kwargs)

        return call
