"""What each step from the teacher to the shipped student costs and gains, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

#: What changes from the system before to this one.
CHANGES = {
    "baseline": "the student's architecture",
    "student": "the teacher's translations",
    "finetuned": "updates with 8-bit weights",
    "shipped": "the shortlist",
}


def chains(found: Mapping[str, Mapping[str, float]], shipped: str, *, shortlist: bool) -> list[dict[str, Any]]:
    """The steps of two paths: from the teacher in PyTorch to what is shipped, and within CTranslate2.

    Args:
        found: BLEU on the first test set, bytes, and sentences a second on one core, of each system by model and
            engine, such as ``student.ct2``; what was not measured is left out.
        shipped: The student that is shipped.
        shortlist: Whether its export has a shortlist.

    Returns:
        For each step its path, the systems before and after it, what changes, the values after it and their changes:
        the difference in BLEU, and the factors of bytes and of speed. The last step of a path is all of it.
    """
    ends = ["finetuned.ct2"] if "finetuned.ct2" in found else []
    last = [f"{shipped}.ct2", *(["shipped.ct2"] if shortlist else [])]
    paths = {
        "PyTorch, then CTranslate2": ["teacher.torch", "baseline.torch", "student.torch", "student.ct2"],
        "CTranslate2": ["teacher.ct2", "student.ct2"],
    }
    steps = []
    for path, names in paths.items():
        present = [name for name in names if name in found]
        if len(present) < 2:
            continue
        pairs = [*pairwise(present), *((present[-1], end) for end in ends)]
        pairs += pairwise(last)
        steps += [_step(found, path, one, other) for one, other in pairs]
        if len(pairs) > 1:
            steps.append(_step(found, path, present[0], last[-1]) | {"change": "all of it"})
    return steps


def _step(found: Mapping[str, Mapping[str, float]], path: str, one: str, other: str) -> dict[str, Any]:
    before, after = found[one], found[other]
    step: dict[str, Any] = {"path": path, "from": one, "to": other, "change": _change(one, other), **after}
    if "bleu" in before and "bleu" in after:
        step["bleu_difference"] = round(after["bleu"] - before["bleu"], 4)
    for name in ("bytes", "sentences_per_second"):
        if before.get(name) and name in after:
            step[f"{name}_factor"] = round(after[name] / before[name], 4)
    return step


def _change(one: str, other: str) -> str:
    (before, engine), (after, other_engine) = one.split("."), other.split(".")
    if engine != other_engine:
        return "8-bit weights and the engine"
    if before == "teacher" and after == "student":
        return f"{CHANGES['baseline']} and {CHANGES['student']}"
    return CHANGES[after]


def costs(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds, cores and core hours of each step, and of all.

    Args:
        records: Those of the steps, see ``step.py``. One without ``cores`` had one.
    """
    steps = {
        one["step"]: {
            "seconds": one["seconds"],
            "cores": one.get("cores", 1),
            "core_hours": round(one["seconds"] * one.get("cores", 1) / 3600, 6),
        }
        for one in records
    }
    return {
        "steps": steps,
        "seconds": round(sum(one["seconds"] for one in steps.values()), 2),
        "core_hours": round(sum(one["core_hours"] for one in steps.values()), 6),
    }
