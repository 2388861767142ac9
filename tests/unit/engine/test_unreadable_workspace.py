"""One workspace that cannot be read leaves the work for the others undisturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from rayjobs.core.errors import StoreUnreachableError
from rayjobs.policy import Shape
from rayjobs.store.base import Store
from rayjobs.store.sql import SqlStore
from tests.fakes.world import World, play


class _Unreadable:
    """A store that fails every call once `is_away` is set."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        if self.is_away:
            raise StoreUnreachableError("the store cannot be reached")
        return getattr(self.store, name)


def test_unreadable_workspace_does_not_stop_the_work_for_the_others(tmp_path: Path) -> None:
    """Off switch: one workspace's error ends the round of all."""
    stores = {}
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
        stores[str(tmp_path / name)] = _Unreadable(SqlStore(tmp_path / name / "store.db"))

    async def scene(here: World) -> None:
        await here.crash()
        here.open_at = lambda path: cast(Store, stores[path])
        here.engine = here._engine()
        first, second, third = stores
        for path in (first, second):
            await here.engine.board.add(path)
        await here.engine.turn()
        # An allocation that a previous actor recorded late, in the workspace looked at last.
        late = stores[second].store
        late.add_allocation("rj-local-late", target="local", shape=Shape().to_dict())
        here.cluster.groups["rj-local-late"] = (Shape(), ("node0",))
        here.cluster.groups["rj-local-ghost"] = (Shape(), ("node0",))
        stores[first].is_away = True
        await here.engine.tidying.tidy(here.engine.nodes)
        assert not late.allocations("local")
        assert {*here.cluster.groups} == {"rj-local-ghost"}  # it may belong to the first workspace
        await here.engine.board.add(third)
        await here.engine.turn()  # takes over the third workspace, and raises nothing
        assert len(here.engine.board.served) == 3
        stores[first].is_away = False
        await here.engine.tidying.tidy(here.engine.nodes)
        assert not here.cluster.groups

    play(scene, tmp_path)
    for one in stores.values():
        one.store.close()
