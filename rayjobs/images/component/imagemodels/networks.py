"""The networks, and the two kinds of model directories: untrained and trained."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .decoding import Preprocessing
from .errors import InvalidModelDirectoryError
from .names import NETWORKS as NETWORKS

UNTRAINED = "untrained_model.json"
TRAINED = "model.json"
WEIGHTS = "weights.pt"
VERSION = 1
_STATE_KEYS = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True)
class TrainedModel:
    """The content of a model directory.

    Attributes:
        network: Name of the network.
        classes: Names of the classes, in the order of the outputs.
        preprocessing: What is done to an image first.
        signature: Names, types and shapes of inputs and outputs.
        facts: How it was trained: epoch, metrics, parameters.
        module: The network with its weights, in evaluation mode.
    """

    network: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    signature: Mapping[str, Any]
    facts: Mapping[str, Any]
    module: nn.Module


def build(network: str, classes: int, weights: str | None = None) -> nn.Module:
    """Return a network with random weights, or with those of a file.

    If the weights are for another number of classes, the last layer gets random weights.

    Raises:
        InvalidModelDirectoryError: there is no such network, or the weights are not its own.
    """
    check_network(network)
    import torchvision

    module: nn.Module = getattr(torchvision.models, network)(weights=None, num_classes=classes)
    if weights is not None:
        _load_weights(module, weights, network)
    return module


def check_network(network: str) -> None:
    """Raise InvalidModelDirectoryError if there is no such network."""
    if network not in NETWORKS:
        raise InvalidModelDirectoryError(
            f"{network!r} is not a network; use one of: {', '.join(NETWORKS)}"
        )


def _load_weights(module: nn.Module, path: str, network: str) -> None:
    loaded = _read_weights(path)
    for key in _STATE_KEYS:
        if isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    # DistributedDataParallel adds a prefix to each name.
    given = {str(name).removeprefix("module."): value for name, value in loaded.items()}
    own = module.state_dict()
    last = ("fc.", "classifier.")
    wrong = [
        name
        for name in sorted(own.keys() | given.keys())
        if not name.endswith("num_batches_tracked")
        and (
            name not in own
            or name not in given
            or getattr(given[name], "shape", None) != own[name].shape
        )
    ]
    others = [name for name in wrong if not name.startswith(last)]
    if others:
        raise InvalidModelDirectoryError(
            f"the weights in {path} are not those of {network}: {len(others)} of its "
            f"{len(own)} tensors are missing or have another shape, first {others[0]!r}"
        )
    if wrong:
        print(f"the last layer of {path} is for other classes; it starts from random weights")
    kept = {name: value for name, value in given.items() if name in own and name not in wrong}
    module.load_state_dict({**own, **kept})


def _read_weights(path: str) -> dict[str, Any]:
    path = _only_file(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InvalidModelDirectoryError(f"there is no file {path}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        first = str(error).partition("\n")[0]
        raise InvalidModelDirectoryError(
            f"{path} does not hold weights alone ({first}); save model.state_dict()"
        ) from error
    if not isinstance(loaded, dict):
        raise InvalidModelDirectoryError(f"{path} holds a {type(loaded).__name__}, not weights")
    return loaded


def _only_file(path: str) -> str:
    """Return the only file in a folder: a job's input is a folder, even of a single file."""
    if not os.path.isdir(path):
        return path
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    if len(names) != 1:
        raise InvalidModelDirectoryError(
            f"{path} is a folder with {len(names)} entries; give the file of the weights"
        )
    return os.path.join(path, names[0])


def save_untrained(folder: str, network: str, weights: str | None = None) -> None:
    """Write an untrained model directory: the network's name, and weights to start from.

    Raises:
        InvalidModelDirectoryError: there is no such network, or the file holds no weights.
    """
    check_network(network)
    os.makedirs(folder, exist_ok=True)
    if weights is not None:
        torch.save(_read_weights(weights), os.path.join(folder, WEIGHTS))
    data = {"version": VERSION, "network": network, "weights": weights and WEIGHTS}
    _write_json(os.path.join(folder, UNTRAINED), data)


def read_untrained(folder: str) -> tuple[str, str | None]:
    """Return the network and the path of the weights of an untrained model directory.

    Raises:
        InvalidModelDirectoryError: the folder is not one.
    """
    data = _read_json(folder, UNTRAINED, "an untrained model (UntrainedModelDirectory)")
    check_network(str(data.get("network")))
    weights = data.get("weights")
    return str(data["network"]), os.path.join(folder, str(weights)) if weights else None


def save_trained(
    folder: str,
    module_state: Mapping[str, Any],
    *,
    network: str,
    classes: Sequence[str],
    preprocessing: Preprocessing,
    facts: Mapping[str, Any],
) -> None:
    """Write a model directory: weights, classes, preprocessing and signature."""
    os.makedirs(folder, exist_ok=True)
    torch.save(dict(module_state), os.path.join(folder, WEIGHTS))
    size = preprocessing.image_size
    signature = {
        "inputs": [{"name": "input", "type": "float32", "shape": ["batch", 3, size, size]}],
        "outputs": [{"name": "output", "type": "float32", "shape": ["batch", len(classes)]}],
    }
    _write_json(
        os.path.join(folder, TRAINED),
        {
            "version": VERSION,
            "network": network,
            "classes": list(classes),
            "preprocessing": preprocessing.to_json(),
            "signature": signature,
            "facts": dict(facts),
        },
    )


def read_trained(folder: str) -> TrainedModel:
    """Return the model in a model directory.

    Raises:
        InvalidModelDirectoryError: the folder is not one, or its weights do not fit.
    """
    data = _read_json(folder, TRAINED, "a trained model (ModelDirectory)")
    try:
        classes = tuple(map(str, data["classes"]))
        how = Preprocessing.of_json(data["preprocessing"])
        module = build(str(data["network"]), len(classes))
        weights = os.path.join(folder, WEIGHTS)
        module.load_state_dict(_read_weights(weights))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise InvalidModelDirectoryError(
            f"the model directory {folder} is damaged: {first}"
        ) from error
    return TrainedModel(
        str(data["network"]),
        classes,
        how,
        data.get("signature") or {},
        data.get("facts") or {},
        module.eval(),
    )


def _read_json(folder: str, name: str, what: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except FileNotFoundError:
        raise InvalidModelDirectoryError(f"{folder} is not {what}: it has no {name}") from None
    except ValueError as error:
        raise InvalidModelDirectoryError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise InvalidModelDirectoryError(f"{path} is not of version {VERSION}")
    return data


def _write_json(path: str, data: Mapping[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2, ensure_ascii=False)
        file.write("\n")
