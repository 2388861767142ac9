"""How this process treats compute targets; `rayjobs.azureml` changes it for Azure ML programs.

It imports nothing: a driver begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """The meaning of a compute target's name here.

    Attributes:
        unknown_is_local: A name that nothing answers for means ``local``; else it is an error.
        whole_node: A job gets all CPUs and GPUs of its node, even if no compute names their number.
        allow_cpu: Jobs that ask for GPUs run on CPUs where a target has no GPU.
    """

    unknown_is_local: bool = False
    whole_node: bool = False
    allow_cpu: bool = False


rules = Rules()
