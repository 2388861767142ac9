"""PyTorch models as ONNX: the command, and a script that exports its own model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

from rayjobs import Model, Workspace
from rayjobs.core.errors import UsageError
from rayjobs.models import onnx_export
from tests.unit.cli.conftest import Terminal, terminal

pytestmark = pytest.mark.long

__all__ = ["terminal"]

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.drop = torch.nn.Dropout()
        self.out = torch.nn.Linear(2 * 6 * 6, 3)

    def forward(self, x):
        return torch.log_softmax(self.out(self.drop(torch.relu(self.conv(x)).flatten(1))), 1)
"""


@pytest.fixture
def workspace(own_home: Path) -> Iterator[Workspace]:
    made = Workspace.create("w", path=Path(os.environ["RAYJOBS_WORKSPACE"]))
    yield made
    made.close()


# Like most scripts, this one trains in the file that defines the network.
TRAINS = """
import argparse
try:
    import a_package_that_is_missing
except ImportError:
    a_package_that_is_missing = None
SIZES = [1, 8]
{net}
parser = argparse.ArgumentParser()
parser.add_argument("--lr", required=True)
args = parser.parse_args()
def made():
    return Net(args.lr)
open("trained", "w").close()
for epoch in range(args.epochs):
    raise SystemExit("it trains")
"""


def test_weights_are_exported_checked_and_registered(
    workspace: Workspace, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(TRAINS.format(net=NET))
    names: dict[str, object] = {}
    exec(NET, names)
    net = names["Net"]().eval()  # type: ignore[operator]
    weights = {f"module.{name}": value for name, value in net.state_dict().items()}
    torch.save({"state_dict": weights}, "net.pt")
    Model.register(workspace, "net.pt", "net")
    export = ("model", "export", "net", "--onnx", "--input", "2,1,8,8")
    done = terminal.type(*export, "--code", "net.py:Net", "--register", "--json")
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["path"], facts["registered"]) == ("net-1.onnx", "net-onnx:1")
    assert facts["difference"] < 1e-4
    image = torch.randn(5, 1, 8, 8)  # not the batch size that was exported
    session = onnxruntime.InferenceSession("net-1.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": image.numpy()})
    assert numpy.allclose(found, net(image).detach().numpy(), atol=1e-4)
    assert Model(workspace, "net-onnx").model_framework == "Onnx"
    assert not Path("trained").exists()
    shown = terminal.type("model", "lineage", "net-onnx")
    assert "net:1 (digest sha256:" in shown.out
    assert "net.pt" in shown.out  # where the user had it
    for wrong, message in {
        (): "contains only weights; name the class or function",
        ("--code", "net.py:Other"): "defines no Other",
        ("--code", "net.py:made"): "cannot be made from the definitions of net.py alone",
        ("--code", "net"): "write FILE.py:NAME",
    }.items():
        refused = terminal.type(*export, *wrong)
        assert refused.code == 2 and message in refused.err, refused.err
    assert terminal.type("model", "export", "net", "--onnx", "--input", "a").code == 2


def test_a_module_that_was_saved_whole_is_loaded_only_if_allowed(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 3), tmp_path / "whole.pt")
    target = tmp_path / "out.onnx"
    with pytest.raises(UsageError, match="--allow-pickle"):
        onnx_export.export(tmp_path / "whole.pt", target, shapes=[[1, 2]])
    assert not target.exists()
    stages: list[str] = []
    done = onnx_export.export(
        tmp_path / "whole.pt",
        target,
        shapes=[[2, 2]],
        allow_pickle=True,
        on_stage=stages.append,
    )
    assert [stage.split()[0] for stage in stages] == ["loading", "reading", "writing", "checking"]
    assert target.exists() and done.inputs == ("input",)
    with pytest.raises(UsageError, match="PyTorch cannot export"):
        onnx_export.export(tmp_path / "whole.pt", target, shapes=[[2, 7]], allow_pickle=True)
    assert target.exists()  # the previous one


IN_JOB = """
import sys, torch
sys.path.insert(0, "code")
from net import Net
net = Net().eval()
torch.onnx.export(
    net, (torch.randn(2, 1, 8, 8),), "outputs/net.onnx", input_names=["input"], dynamo=True,
    verbose=False,
)
"""


def test_a_script_that_exports_by_itself_has_a_model_that_runs(
    workspace: Workspace, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    for folder in ("code", "outputs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "code" / "net.py").write_text(NET)
    subprocess.run([sys.executable, "-c", IN_JOB], cwd=tmp_path, check=True, timeout=200)
    assert (tmp_path / "outputs" / "net.onnx.data").exists()  # without it the model is broken
    model = Model.register(
        workspace, tmp_path / "outputs/net.onnx", "net", model_framework=Model.Framework.ONNX
    )
    path = Path(model.download(tmp_path / "got"))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": numpy.zeros((2, 1, 8, 8), dtype="float32")})
    assert found.shape == (2, 3)
