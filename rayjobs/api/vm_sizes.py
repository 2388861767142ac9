"""The number of CPUs and GPUs of an Azure machine size: a table, and the naming rules.

Source: the size tables of Azure's virtual machines (families A, B, D, E, F, H, L, M, NC, ND, NV).
"""

from __future__ import annotations

import re

from rayjobs.injob.lazy_dataclass import dataclass


@dataclass(frozen=True)
class VmSize:
    """The resources of a machine size."""

    name: str
    cpus: int
    gpus: int = 0


# Families whose number is not the number of CPUs.
_D = {1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 11: 2, 12: 4, 13: 8, 14: 16, 15: 20}
_A = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 8: 8, 9: 16, 10: 8, 11: 16}
_OLD_G = {1: 2, 2: 4, 3: 8, 4: 16, 5: 32}
# Number of CPUs → GPUs, by family and the suffix after the number; the first match applies.
_GPUS_BY_CPUS = (
    ("NC", "as_T4_v3", {4: 1, 8: 1, 16: 1, 64: 4}),
    ("NC", "ads_A100_v4", {24: 1, 48: 2, 96: 4}),
    ("NC", "ads_H100_v5", {40: 1}),
    ("NC", "adis_H100_v5", {80: 2}),
    ("NC", "ads_A10_v4", {8: 1, 16: 1, 32: 2}),
    ("ND", "rs_v2", {40: 8}),
    ("ND", "", {96: 8}),
    ("NV", "as_v4", {4: 1, 8: 1, 16: 1, 32: 1}),
    ("NV", "ads_A10_v5", {6: 1, 12: 1, 18: 1, 36: 1, 72: 2}),
    ("NV", "s_v3", {12: 1, 24: 2, 48: 4}),
    ("NP", "s", {10: 1, 20: 2, 40: 4}),
)
_SIX_PER_GPU = ("NC", "ND", "NV")  # NC6 has one GPU, NC12 two, NC24 four

_NAME = re.compile(r"(?:Standard|Basic)_([A-Z]+?)(\d+)(?:-(\d+))?(.*)", re.IGNORECASE)


def vm_size(name: str) -> VmSize | None:
    """Return the resources of a machine size; None if the size is unknown.

    Args:
        name: A size such as ``STANDARD_NC6s_v3``; case does not matter.
    """
    found = _NAME.fullmatch(name.strip())
    if found is None:
        return None
    family, number, limited, rest = found[1].upper(), int(found[2]), found[3], found[4]
    if family.startswith("N"):
        gpus = _gpus(family, number, rest)
        return None if gpus is None else VmSize(name, number, gpus)
    cpus = _cpus(family, number, rest)
    # The number after a dash limits the CPUs of such a size.
    return None if cpus is None else VmSize(name, int(limited) if limited else cpus)


def _gpus(family: str, number: int, rest: str) -> int | None:
    plain = rest.lower().lstrip("_")
    for of_family, ending, table in _GPUS_BY_CPUS:
        if family == of_family and plain.endswith(ending.lower()) and number in table:
            return table[number]
    if family in _SIX_PER_GPU and number in (6, 12, 24):
        return number // 6
    return None


def _cpus(family: str, number: int, rest: str) -> int | None:
    version = re.search(r"_v(\d+)$", rest, re.IGNORECASE)
    newest = int(version[1]) if version else 1
    table = None
    if family in ("D", "DS", "DC") and newest <= 2:
        table = _D
    elif family == "A" and newest == 1:
        table = _A
    elif family in ("G", "GS"):
        table = _OLD_G
    if table is not None:
        return table.get(number)
    known = ("A", "B", "D", "DC", "DS", "E", "EC", "F", "FX", "H", "HB", "HC", "HX", "L", "M")
    return number if family in known and number else None
