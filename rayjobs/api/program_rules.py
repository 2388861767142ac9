"""How this process treats compute targets; `rayjobs.azureml` changes it for Azure ML programs.

It imports nothing: a driver begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """What a compute target's name means here.

    Attributes:
        unknown_is_local: A name that nothing answers for means ``local``; else it is an error.
        whole_node: A job has its node's CPUs and GPUs, also where no compute says how many.
        allow_cpu: Jobs that ask for GPUs run on CPUs where a target has no GPU.
    """

    unknown_is_local: bool = False
    whole_node: bool = False
    allow_cpu: bool = False


rules = Rules()
