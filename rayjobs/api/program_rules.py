"""Rules for compute targets in this process; `rayjobs.azureml` changes them for Azure ML programs.

Imports nothing else of rayjobs: a driver loads it first.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """The meaning of a compute target's name in this process.

    Attributes:
        unknown_is_local: An unknown name means ``local`` instead of an error.
        whole_node: A job gets all CPUs and GPUs of its node, even if no compute says how many.
        allow_cpu: Jobs that request GPUs run on CPUs if their target has no GPU.
    """

    unknown_is_local: bool = False
    whole_node: bool = False
    allow_cpu: bool = False


rules = Rules()
