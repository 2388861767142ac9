"""Source directories as content-addressed archives: packed once, unpacked once per node."""

from __future__ import annotations

from rayjobs.snapshots.limits import UNPACK_LIMITS as UNPACK_LIMITS
from rayjobs.snapshots.limits import Limits as Limits
from rayjobs.snapshots.limits import limits_from_environment as limits_from_environment
from rayjobs.snapshots.node import NodeSnapshots as NodeSnapshots
from rayjobs.snapshots.pack import Snapshot as Snapshot
from rayjobs.snapshots.pack import blob_key as blob_key
from rayjobs.snapshots.pack import pack as pack
from rayjobs.snapshots.pack import survey as survey
from rayjobs.snapshots.summary import Summary as Summary
