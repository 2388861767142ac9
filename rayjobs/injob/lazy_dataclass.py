"""`dataclass` whose methods are generated at their first use.

`dataclasses.dataclass` compiles six methods when a class is defined: 0.8 ms for a frozen class of
eight fields. `rayjobs ls` defines seventy such classes and makes instances of a few. Here, a class
takes 0.05 ms until it is used. Its first instances are made by a loop over its fields, and each of
its methods is generated at its first use, so that many instances cost as much as those of
`dataclasses.dataclass`. See docs/decisions/0042-dataclasses-on-demand.md.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: Optional[type] = None,
        *,
        frozen: bool = False,
        eq: bool = True,
        init: bool = True,
        **options: Any,
    ) -> Any:
        """Make a class a dataclass, like `dataclasses.dataclass` with the same arguments.

        Fields, `replace`, `asdict`, pattern matching, pickling, `repr`, `==`, hashes and signatures
        are the same. Differences: assigning any attribute of a frozen instance raises, even one
        that is not a field; a subclass that is a frozen dataclass needs this decorator as well;
        `order`, `unsafe_hash` and `InitVar` are not available; a field without a default after one
        with a default is reported only at the first use. A class in ``__main__``, which may be
        pickled by value, becomes an ordinary dataclass.

        Args:
            options: `kw_only` and `slots`, on versions of Python whose dataclasses have them.

        Raises:
            TypeError: an option is unknown, or the class defines its own assignment.
        """
        if unknown := sorted(set(options) - {"kw_only", "slots"}):
            raise TypeError(f"dataclass() got unexpected options: {', '.join(unknown)}")

        def wrap(plain: type) -> type:
            if plain.__module__ == "__main__":
                return dataclasses.dataclass(frozen=frozen, eq=eq, init=init, **options)(plain)
            return _lazy(plain, frozen=frozen, eq=eq, init=init, **options)

        return wrap if cls is None else wrap(cls)


# How many instances of a class are made without its `__init__`: generating it takes as long as
# making about a hundred of them by a loop.
MADE_WITHOUT_INIT = 100
_MISSING = dataclasses.MISSING
# For each class defined since the last `generate_all`: whether it is frozen, and its stubs, some of
# which may have been replaced by methods since.
_PENDING: Dict[Any, Tuple[bool, Dict[str, Any]]] = {}


def generate_all() -> None:
    """Generate the methods of every class defined so far.

    For a process that forks others: each fork that uses a class would have to generate its methods.
    """
    for owner in list(_PENDING):
        frozen, stubs = _PENDING.pop(owner)
        for name in stubs:
            _generate(owner, name, frozen)


def _lazy(plain: type, *, frozen: bool, eq: bool, init: bool, **options: Any) -> type:
    own = vars(plain)
    # Python sets __hash__ to None in a class that defines __eq__: that is not the author's choice.
    hashes_itself = "__hash__" in own and not (own["__hash__"] is None and "__eq__" in own)
    if frozen and ("__setattr__" in own or "__delattr__" in own):
        raise TypeError(f"the frozen class {plain.__name__} defines __setattr__ or __delattr__")
    # Without these methods, `dataclasses` compiles nothing: it collects fields and their defaults.
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(plain)
    names = {"__repr__", *(["__init__"] if init else []), *(["__eq__"] if eq else [])} - set(own)
    if eq and not hashes_itself:
        if frozen:
            names.add("__hash__")
        else:
            made.__hash__ = None
    stubs = {name: _stub(made, name, frozen) for name in names if name != "__init__"}
    if "__init__" in names:
        stubs["__init__"] = _constructor(made, frozen)
        made.__signature__ = _Signature(made, frozen)
    for name, stub in stubs.items():
        setattr(made, name, stub)
    if stubs:
        _PENDING[made] = (frozen, stubs)
    if frozen:
        made.__setattr__ = _refuse_assignment
        made.__delattr__ = _refuse_deletion
        if options.get("slots"):  # the default way of restoring a copy assigns attributes
            made.__getstate__ = own.get("__getstate__", _state_of_slots)
            made.__setstate__ = own.get("__setstate__", _restore_slots)
    return made  # type: ignore[no-any-return]


def _stub(owner: Any, name: str, frozen: bool) -> Any:
    """Return a method that replaces itself by the generated one, then calls that."""

    def generate_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _generate(owner, name, frozen)
        return getattr(owner, name)(self, *args, **kwargs)

    return _as_stub(generate_and_call, owner, name)


def _constructor(owner: Any, frozen: bool) -> Any:
    """Return an `__init__` that makes some instances itself, then replaces itself."""
    left = MADE_WITHOUT_INIT
    post_init = hasattr(owner, "__post_init__")
    # As `dataclasses` does: a class that is not frozen may check what is assigned.
    put = object.__setattr__ if frozen else setattr

    def make_or_generate(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0 or not _set_fields(owner, self, args, kwargs, put):
            _generate(owner, "__init__", frozen)
            owner.__init__(self, *args, **kwargs)
        elif post_init:
            self.__post_init__()

    return _as_stub(make_or_generate, owner, "__init__")


def _set_fields(
    owner: Any,
    made: object,
    args: Tuple[Any, ...],
    given: Dict[str, Any],
    put: Callable[[object, str, Any], None],
) -> bool:
    """Set the fields of a new instance as `__init__` does.

    Returns:
        False, with nothing set, if `__init__` would refuse the arguments, or does not take all
        fields.
    """
    fields = dataclasses.fields(owner)
    values = dict(given)
    if args:
        names = [one.name for one in fields if not getattr(one, "kw_only", False)]
        if len(args) > len(names) or any(name in given for name in names[: len(args)]):
            return False
        values.update(zip(names, args))
    known = 0
    for one in fields:
        if not one.init:
            return False
        if one.name in values:
            known += 1
        elif one.default is _MISSING and one.default_factory is _MISSING:
            return False
    if known != len(values):
        return False
    for one in fields:
        if one.name in values:
            value = values[one.name]
        elif one.default_factory is _MISSING:
            value = one.default
        else:
            value = one.default_factory()
        put(made, one.name, value)
    return True


def _generate(owner: Any, name: str, frozen: bool) -> None:
    """Give a class one of the methods that `dataclasses` generates for a class of the same fields.

    The method does not refer to the temporary class that it is generated in. Two threads may do
    this at the same time: both set equal methods.
    """
    if not getattr(vars(owner).get(name), "is_stub", False):
        return  # another thread was faster, or a test has replaced it
    fields = [(field.name, field.type, field) for field in dataclasses.fields(owner)]
    namespace = {"__post_init__": None} if hasattr(owner, "__post_init__") else {}
    model = dataclasses.make_dataclass(
        owner.__name__,
        fields,
        namespace=namespace,
        init=name == "__init__",
        repr=name == "__repr__",
        eq=name in ("__eq__", "__hash__"),
        # Only these need it: it also generates two methods that refuse changes.
        frozen=frozen and name in ("__init__", "__hash__"),
    )
    setattr(owner, name, _named(getattr(model, name), owner, name))


def _as_stub(method: Any, owner: Any, name: str) -> Any:
    method.is_stub = True
    return _named(method, owner, name)


def _named(method: Any, owner: Any, name: str) -> Any:
    method.__name__ = name
    method.__qualname__ = f"{owner.__qualname__}.{name}"
    method.__module__ = owner.__module__
    return method


class _Signature:
    """The signature of a class, for `inspect.signature`, which would find that of the stub."""

    def __init__(self, owner: type, frozen: bool) -> None:
        self._owner = owner
        self._frozen = frozen

    def __get__(self, instance: object, owner: Any = None) -> inspect.Signature:
        if instance is not None or owner is not self._owner:  # a subclass may differ
            raise AttributeError("__signature__")
        _generate(owner, "__init__", self._frozen)
        signature = inspect.signature(vars(owner)["__init__"])
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _refuse_assignment(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state_of_slots(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore_slots(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state):
        object.__setattr__(self, field.name, value)
