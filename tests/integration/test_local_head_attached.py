"""A running cluster attached as a target: here the shared head, from another home."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayjobs.core.errors import UnreachableError, UsageError
from rayjobs.target import dashboard, start_processes, starting, targets
from rayjobs.target.stopping import TargetLocation
from tests.support.local_target import LocalTarget

pytestmark = pytest.mark.ray


def test_attached_cluster_is_started_replaced_and_released(
    local_target: LocalTarget, own_home: Path, tmp_path: Path
) -> None:
    home, head = own_home / "h", local_target.head
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    with pytest.raises(UsageError, match="rejected this token"):
        targets.create_target("pool", address=head.gcs_address, token_file=wrong, home=home)

    targets.create_target(
        "pool", address=head.gcs_address, token_file=local_target.paths.token, home=home
    )
    assert targets.target_status("pool", home=home).state == "ready"
    stages: list[str] = []
    started = targets.start_target("pool", home=home, on_stage=stages.append)
    assert started.was_started and started.epoch
    assert f"connecting to Ray at {head.gcs_address}" in stages
    view = targets.target_status("pool", home=home, ask=True)
    assert (view.kind, view.state, view.address) == ("attached", "running", head.gcs_address)
    assert dashboard.dashboard_of("pool", home=home).url == head.dashboard_url
    assert dashboard.dashboard_of("pool", home=home).read_token() == local_target.token

    # As after an upgrade: another actor replaces the running one.
    start_processes.run_starter(TargetLocation("pool", home), "replace")
    again = starting.ensure_target("pool", home=home)
    assert again.epoch != started.epoch and not again.was_started

    targets.remove_target("pool", home=home)
    assert [view.name for view in targets.list_targets(home=home)] == ["local"]
    assert head.is_running, "the cluster does not belong to the target"
    assert targets.target_status("local", home=local_target.home).state == "running"


def test_submits_are_checked_against_the_running_head(local_target: LocalTarget) -> None:
    capacity = targets.capacity_of(home=local_target.home)
    assert [(node.cpus, node.gpus) for node in capacity.nodes] == [(8.0, 4.0)]
    assert capacity.nodes[0].memory_bytes == local_target.head.memory_bytes > 0


def test_vanished_cluster_is_unreachable(own_home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o600)
    with pytest.raises(UnreachableError, match="no Ray cluster"):
        targets.create_target("gone", address="127.0.0.1:1", token_file=token, home=own_home / "h")
