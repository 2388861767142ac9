"""`dataclass` whose methods are generated at their first use.

`dataclasses.dataclass` compiles six methods when a class is defined: 0.8 ms for a frozen class of
eight fields. `rayjobs ls` defines seventy such classes and makes instances of a few. Here, a class
takes 0.05 ms until it is used; from then on its methods are those of `dataclasses`, so that
instances cost the same. See docs/decisions/0042-dataclasses-on-demand.md.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional

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


# What generates the methods of a class, for each class that has none yet.
_PENDING: Dict[type, Callable[[], None]] = {}


def generate_all() -> None:
    """Generate the methods of every class defined so far.

    For a process that forks others: each fork that uses a class would have to generate its methods.
    """
    for generate in list(_PENDING.values()):
        generate()


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
    stubs: Dict[str, Any] = {}

    def generate() -> None:
        _generate(made, stubs, frozen)
        _PENDING.pop(made, None)

    for name in names:
        stubs[name] = _stub(made, name, generate)
        setattr(made, name, stubs[name])
    if frozen:
        made.__setattr__ = _refuse_assignment
        made.__delattr__ = _refuse_deletion
        if options.get("slots"):  # the default way of restoring a copy assigns attributes
            made.__getstate__ = own.get("__getstate__", _state_of_slots)
            made.__setstate__ = own.get("__setstate__", _restore_slots)
    if "__init__" in names:
        made.__signature__ = _Signature(made, generate)
    if stubs:
        _PENDING[made] = generate
    return made  # type: ignore[no-any-return]


def _stub(owner: type, name: str, generate: Callable[[], None]) -> Callable[..., Any]:
    """Return a method that generates the methods of its class, then calls its namesake."""

    def generate_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        generate()
        return getattr(owner, name)(self, *args, **kwargs)

    generate_and_call.__name__ = name
    generate_and_call.__qualname__ = f"{owner.__qualname__}.{name}"
    generate_and_call.__module__ = owner.__module__
    return generate_and_call


def _generate(owner: Any, stubs: Mapping[str, Any], frozen: bool) -> None:
    """Give a class the methods that `dataclasses` generates for a class of the same fields.

    None of them refers to the class for which it was generated. Two threads may do this at the same
    time: both set equal methods.
    """
    fields = [(field.name, field.type, field) for field in dataclasses.fields(owner)]
    namespace = {"__post_init__": None} if hasattr(owner, "__post_init__") else {}
    model = dataclasses.make_dataclass(
        owner.__name__, fields, namespace=namespace, frozen=frozen, eq=True
    )
    for name, stub in stubs.items():
        if vars(owner).get(name) is not stub:
            continue  # another thread was faster, or a test has replaced it
        method = getattr(model, name)
        method.__qualname__ = f"{owner.__qualname__}.{name}"
        method.__module__ = owner.__module__
        setattr(owner, name, method)


class _Signature:
    """The signature of a class, for `inspect.signature`, which would find that of the stub."""

    def __init__(self, owner: type, generate: Callable[[], None]) -> None:
        self._owner = owner
        self._generate = generate

    def __get__(self, instance: object, owner: Any = None) -> inspect.Signature:
        if instance is not None or owner is not self._owner:  # a subclass may differ
            raise AttributeError("__signature__")
        self._generate()
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
