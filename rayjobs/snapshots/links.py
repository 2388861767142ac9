"""Resolves symbolic links inside a tree from the tree's own list of links."""

from __future__ import annotations

from collections.abc import Mapping

HOPS = 40  # as the kernel allows


def leaves_tree(path: str, links: Mapping[str, str]) -> bool:
    """Return whether following the link at `path` could step out of the tree.

    Every component is resolved as the kernel would, through other links of the tree; names that are
    not links count as folders. A chain of links can lead out even if each text stays inside, so the
    text alone proves nothing. Loops count as leaving.

    Args:
        path: Where the link is, relative to the tree, with ``/`` between names.
        links: Target text of every link of the tree by its path.
    """
    at = path.split("/")[:-1]
    left = _names(links[path])
    if left is None:
        return True
    hops = 0
    while left:
        name = left.pop()
        if name == "..":
            if not at:
                return True
            at.pop()
            continue
        at.append(name)
        target = links.get("/".join(at))
        if target is not None:
            hops += 1
            more = _names(target)
            if more is None or hops > HOPS:
                return True
            at.pop()
            left.extend(more)
    return False


def _names(target: str) -> list[str] | None:
    """Return the target's components, last first; None for an absolute or empty target."""
    if not target or target.startswith("/"):
        return None
    return [name for name in reversed(target.split("/")) if name not in ("", ".")]
