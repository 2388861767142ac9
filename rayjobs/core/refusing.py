"""Members of Azure ML's classes that rayjobs does not have: each raises an error with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rayjobs.injob.azureml.exceptions import NotProvidedError
from rayjobs.injob.azureml.names import SENTENCES

Class = TypeVar("Class", bound=type)
REFUSED = "__rayjobs_refused__"


def refuses(why: str, *methods: str, properties: tuple[str, ...] = ()) -> Callable[[Class], Class]:
    """Give a class methods and properties that raise `NotProvidedError`.

    Args:
        why: Key of the sentence in `SENTENCES`, or a sentence.
    """
    sentence = SENTENCES.get(why, why)

    def add(cls: Class) -> Class:
        for name in methods:
            setattr(cls, name, staticmethod(_refusing(cls, name, sentence)))
        for name in properties:
            setattr(cls, name, property(_refusing(cls, name, sentence)))
        return cls

    return add


def sentence_of(member: Any) -> str | None:
    """Return why a class's member is refused; None if it is not refused."""
    function = member.fget if isinstance(member, property) else member
    return getattr(function, REFUSED, None)


def _refusing(cls: type, name: str, sentence: str) -> Callable[..., Any]:
    text = f"{cls.__name__}.{name} is not part of rayjobs: {sentence}."

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotProvidedError(text)

    refuse.__name__ = name
    refuse.__doc__ = text
    setattr(refuse, REFUSED, sentence)
    return refuse
