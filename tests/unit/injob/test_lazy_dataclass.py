"""Classes whose methods are generated on demand behave like those of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import threading
from dataclasses import FrozenInstanceError, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rayjobs.injob import lazy_dataclass
from rayjobs.injob.lazy_dataclass import MADE_WITHOUT_INIT, dataclass, generate_all


@pytest.fixture(autouse=True)
def _only_classes_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep `generate_all` from the product's classes: other tests see their first instances."""
    monkeypatch.setattr(lazy_dataclass, "_PENDING", {})


@dataclass(frozen=True)
class Point:
    """A point."""

    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)
    kind: ClassVar[str] = "point"


@dataclass(frozen=True, kw_only=True)
class Named(Point):
    """A point with a name."""

    name: str
    hidden: int = field(default=1, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.upper())


@dataclass(frozen=True, slots=True)
class Slim:
    """A class with slots."""

    a: int
    b: str = "b"


@dataclass
class Changing:
    """A class whose instances change."""

    a: int = 1


@dataclass(frozen=True)
class Own:
    """A class with some methods of its own."""

    a: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __repr__(self) -> str:
        return "mine"


def _standard(**options: Any) -> tuple[type, type, type]:
    """Return `Point`, `Named` and `Slim` as `dataclasses` makes them."""

    class Point:
        x: int
        y: int = 0
        tags: list[str] = field(default_factory=list, compare=False)
        kind: ClassVar[str] = "point"

    plain: Any = dataclasses.dataclass(frozen=True)(Point)

    class Named(plain):
        name: str
        hidden: int = field(default=1, repr=False)

    class Slim:
        a: int
        b: str = "b"

    return (
        plain,
        dataclasses.dataclass(frozen=True, kw_only=True)(Named),
        dataclasses.dataclass(frozen=True, slots=True)(Slim),
    )


def test_fields_and_signatures_are_those_of_dataclasses() -> None:
    for ours, standard in zip((Point, Named, Slim), _standard(), strict=True):
        assert [f.name for f in dataclasses.fields(ours)] == [
            f.name for f in dataclasses.fields(standard)
        ]
        assert str(inspect.signature(ours)) == str(inspect.signature(standard))
        assert str(inspect.signature(ours.__init__)) == str(inspect.signature(standard.__init__))  # type: ignore[misc]
        assert ours.__match_args__ == standard.__match_args__  # type: ignore[attr-defined]


def test_instances_compare_hash_print_and_convert() -> None:
    point = Point(1, tags=["a"])
    assert point == Point(1, 0, ["b"])
    assert point != Point(2)
    assert point != Named(x=1, name="n")
    equal_values: object = (1, 0)
    assert point != equal_values
    assert hash(point) == hash(Point(1)) == hash((1, 0))
    assert repr(point) == "Point(x=1, y=0, tags=['a'])"
    assert repr(Named(x=1, name="n")) == "Named(x=1, y=0, tags=[], name='N')"
    assert dataclasses.asdict(point) == {"x": 1, "y": 0, "tags": ["a"]}
    assert replace(Named(x=1, name="n"), x=3) == Named(x=3, name="N")
    match point:
        case Point(x, y):
            assert (x, y) == (1, 0)


def test_copies_are_equal() -> None:
    for each in (Point(1, 2), Named(x=1, name="n"), Slim(1), Changing(2)):
        assert copy.copy(each) == copy.deepcopy(each) == pickle.loads(pickle.dumps(each)) == each


def test_frozen_instances_do_not_change() -> None:
    for each, name in ((Point(1), "x"), (Named(x=1, name="n"), "x"), (Slim(1), "a")):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(each, name, 2)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(each, name)
    assert not hasattr(Slim(1), "__dict__")


def test_unfrozen_instances_change_and_have_no_hash() -> None:
    changing = Changing()
    changing.a = 5
    assert changing == Changing(5)
    with pytest.raises(TypeError, match="unhashable"):
        hash(changing)


def test_methods_that_the_class_defines_are_not_replaced() -> None:
    assert repr(Own(1)) == "mine"
    assert Own(1) == Own(2)
    assert hash(Own(1)) == hash(Own(1)) != hash(Own(2))  # a hash of the fields, as in dataclasses


def test_wrong_arguments_name_the_class() -> None:
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required positional"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected options: order"):
        dataclass(order=True)(Point)
    with pytest.raises(TypeError, match="defines __setattr__"):

        @dataclass(frozen=True)
        class Wrong:
            a: int

            def __setattr__(self, name: str, value: object) -> None: ...


def test_equality_and_the_constructor_may_be_left_out() -> None:
    @dataclass(frozen=True, eq=False)
    class ByIdentity:
        a: int

    @dataclass(frozen=True, init=False)
    class OwnConstructor:
        a: int

        def __init__(self, text: str) -> None:
            object.__setattr__(self, "a", int(text))

    one = ByIdentity(1)
    assert one == one != ByIdentity(1)
    assert hash(one) != hash(ByIdentity(1))
    assert OwnConstructor("3").a == 3
    assert str(inspect.signature(OwnConstructor)) == "(text: 'str') -> 'None'"


def test_a_subclass_that_is_no_dataclass_has_the_methods_of_its_parent() -> None:
    @dataclass(frozen=True)
    class Parent:
        a: int

    class Child(Parent):
        def __init__(self, a: int, extra: str) -> None:
            super().__init__(a)
            object.__setattr__(self, "extra", extra)

    assert Child(1, "e").a == 1
    assert str(inspect.signature(Child)) == "(a: 'int', extra: 'str') -> 'None'"
    assert repr(Child(1, "e")).endswith("Child(a=1)")


def test_methods_are_generated_only_at_their_first_use() -> None:
    @dataclass(frozen=True)
    class Unused:
        a: int

    stubs = {name: vars(Unused)[name] for name in ("__init__", "__repr__", "__eq__", "__hash__")}
    made = [Unused(a=1) for _ in range(MADE_WITHOUT_INIT)]
    assert {name: vars(Unused)[name] for name in stubs} == stubs
    assert made[0] == made[-1] == Unused(a=1)  # made by `__init__`
    assert {name for name in stubs if vars(Unused)[name] is stubs[name]} == {"__repr__", "__hash__"}
    assert vars(Unused)["__init__"].__code__.co_varnames == ("self", "a")
    assert vars(Unused)["__eq__"].__qualname__.endswith("Unused.__eq__")
    assert hash(made[0]) == hash(made[1])
    assert repr(made[0]).endswith("Unused(a=1)")


def test_the_first_instances_are_like_those_after_them() -> None:
    @dataclass(frozen=True)
    class Made:
        a: int
        b: list[int] = field(default_factory=list)
        c: str = "c"
        total: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.a + 1)

    @dataclass
    class Parent:
        a: int
        d: int = 4

        def __post_init__(self) -> None:
            self.d += 1

    class Child(Parent):
        pass

    for one in (Made, Parent, Child):
        first = [one(1), one(a=1)]
        generate_all()
        assert [vars(each) for each in first] == [vars(one(1)), vars(one(a=1))]
    assert Made(1, c="x").b is not Made(1).b


def test_the_first_instance_of_a_class_that_checks_assignments_is_checked() -> None:
    @dataclass
    class Checking:
        a: int

        def __setattr__(self, name: str, value: int) -> None:
            if value < 0:
                raise ValueError(value)
            super().__setattr__(name, value)

    with pytest.raises(ValueError, match="-1"):
        Checking(-1)
    assert Checking(1).a == 1


@pytest.mark.parametrize(
    ("args", "given"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"x": 2}), ((1,), {"z": 2}), ((), {"y": 2})],
)
def test_the_first_instance_refuses_what_later_ones_refuse(
    args: tuple[int, ...], given: dict[str, int]
) -> None:
    @dataclass
    class New:
        x: int
        y: int = 0

    @dataclasses.dataclass
    class Standard:
        x: int
        y: int = 0

    messages = []
    for one in (New, Standard):
        with pytest.raises(TypeError) as refused:
            one(*args, **given)
        messages.append(str(refused.value).rpartition(".")[2])
    assert messages[0] == messages[1]
    assert New(1).y == 0


def test_methods_of_all_classes_may_be_generated_before_their_use() -> None:
    @dataclass(frozen=True)
    class Unused:
        a: int

    generate_all()
    assert vars(Unused)["__init__"].__code__.co_varnames == ("self", "a")
    assert Unused(1) == Unused(a=1)


def test_forks_of_the_warm_interpreter_generate_no_methods(tmp_path: Path) -> None:
    program = f"""
import argparse, dataclasses, typing
from rayjobs.injob import warm_loop
warm_loop.Warm(argparse.Namespace(preload="json", socket={str(tmp_path / "s")!r}), ())
def refuse(*args, **options):
    raise AssertionError(args)
dataclasses.make_dataclass = typing.get_type_hints = refuse
from rayjobs.injob.exit_record import ExitRecord, Leftovers
from rayjobs.injob.host_messages import HostRequest
from rayjobs.injob.outcomes import Outcome
record = ExitRecord("job", 1, 0, "marker", Outcome.COMPLETED, leftovers=Leftovers(killed=1))
assert record.to_json()["leftovers"] == {{"killed": 1, "proven_dead": True, "remaining": []}}
print(HostRequest.from_json({{"op": "cancel", "grace_s": 1.5}}).grace_s)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1.5\n"


def test_a_method_that_was_replaced_before_the_first_use_stays() -> None:
    @dataclass(frozen=True)
    class Patched:
        a: int

    Patched.__repr__ = lambda self: "patched"  # type: ignore[method-assign]
    assert repr(Patched(1)) == "patched"
    assert Patched(1) == Patched(1)


def test_a_class_of_a_program_is_pickled_by_value_and_stays_whole(tmp_path: Path) -> None:
    program, copied = tmp_path / "program.py", tmp_path / "copied"
    program.write_text(
        "import sys\n"
        "from ray import cloudpickle\n"
        "from rayjobs.injob.lazy_dataclass import dataclass\n"
        "@dataclass(frozen=True)\n"
        "class A:\n"
        "    x: int\n"
        "    y: str = 'q'\n"
        f"open({str(copied)!r}, 'wb').write(cloudpickle.dumps(A))\n"
    )
    subprocess.run([sys.executable, str(program)], check=True)
    made: Any = pickle.loads(copied.read_bytes())
    assert repr(made(1)) == "A(x=1, y='q')"
    assert str(inspect.signature(made)) == "(x: int, y: str = 'q') -> None"


def test_threads_may_use_a_class_first_at_the_same_time() -> None:
    @dataclass(frozen=True)
    class Shared:
        a: int

    start = threading.Barrier(8)
    made: list[Shared] = []

    def use(number: int) -> None:
        start.wait()
        made.append(Shared(number))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.a for each in made} == set(range(8))


def test_everyday_commands_compile_few_methods() -> None:
    """Importing a command defines its records, and compiles methods for few of them."""
    program = """
import dataclasses, sys
import rayjobs.cli.ls, rayjobs.store.sql, rayjobs.jobs.records
known = [
    value
    for name, module in list(sys.modules.items())
    if name.startswith("rayjobs.")
    for value in vars(module).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == name
]
lazy = [one for one in known if "args" in vars(one)["__init__"].__code__.co_varnames[:2]]
print(len(known), len(lazy))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    known, lazy = map(int, done.stdout.split())
    assert known > 40
    assert lazy > 0.8 * known
