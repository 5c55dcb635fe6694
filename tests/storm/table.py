"""What a storm prints: a line for each run; a table, the aims that were missed, and what does not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tests.storm.census import Census
from tests.storm.recovery import DETECTION_S, RECOVERY_S, Recovery, percentile
from tests.storm.storm import Outcome

_SHARE: Final = 0.99
_SLACK_S: Final = 0.5
"""Silence counts from the last message, and those of a frozen process may come a moment later."""


def line(outcome: Outcome) -> str:
    """One run in one line."""
    counts, cell = outcome.counts, " ".join(outcome.spec.cell)
    text = f"{cell:<28} {outcome.seconds:5.1f} s, {len(outcome.faults):2} faults, {outcome.lives} lives"
    if outcome.violated:
        return f"{text}; VIOLATED: {outcome.violated}"
    if not outcome.spec.counts:
        return f"{text}; the bits of a calm run"
    text += f"; {counts.acknowledged:,} acknowledged, {counts.lost} lost"
    return text + (f" ({counts.reported} reported)" if outcome.spec.loses() else "")


def table(outcomes: Sequence[Outcome], census: Census) -> str:
    """What the storm was, and what came of it."""
    seconds = sum(outcome.seconds for outcome in outcomes)
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    kills = Counter(fault.role for fault in faults if fault.frozen_s is None)
    freezes = Counter(fault.role for fault in faults if fault.frozen_s is not None)
    lines = [
        "",
        f"{len(outcomes)} runs in {seconds:.0f} s, {len(faults)} faults, one every "
        f"{seconds / max(len(faults), 1):.1f} s; times are p50, p99 (how many)",
        f"{'role':<12} {'kills':>5} {'freezes':>7}  {'detection':<20} {'recovery':<20} {'alone':<20} aim",
    ]
    for role in sorted({*kills, *freezes}):
        found = [one for outcome in outcomes for one in outcome.recoveries if one.fault.role == role]
        times = (
            _times([one.detection_s for one in found]),
            _times([one.recovery_s for one in found]),
            _times([one.recovery_s for one in found if one.alone]),
        )
        aim = f"{DETECTION_S:g} s, {RECOVERY_S[role]:g} s" if role in RECOVERY_S else ""
        text = " ".join(f"{one:<20}" for one in times)
        lines.append(f"{role:<12} {kills[role]:>5} {freezes[role]:>7}  {text} {aim}".rstrip())
    moments = Counter(fault.moment for fault in faults if fault.moment != "any")
    if moments:
        lines.append(f"of them {', '.join(f'{n} during {moment}' for moment, n in sorted(moments.items()))}")
    for role, (first, last, most) in sorted(census.growth().items()):
        memory = f"{first:.1f} MiB at first, {last:.1f} at last; the most that one took is {most:.1f}"
        lines.append(f"memory of {role:<12} {memory}")
    return "\n".join([*lines, *_losses(outcomes), *missed(outcomes)])


def missed(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields a line for each aim that was missed by a fault alone. A busy machine misses them, too."""
    alone = [one for outcome in outcomes for one in outcome.recoveries if one.alone]
    for role, aim_s in RECOVERY_S.items():
        of_role = [one for one in alone if one.fault.role == role]
        recovered = percentile([one.recovery_s for one in of_role], _SHARE)
        detected = percentile([one.detection_s for one in of_role], _SHARE)
        if recovered > aim_s:
            worst = max(of_role, key=_recovery_s)
            yield f"missed aim: {role} at work within {aim_s:g} s, p99 {recovered:.2f} s; {worst}"
        if detected > DETECTION_S + _SLACK_S:
            worst = max(of_role, key=_detection_s)
            yield f"missed aim: {role} detected within {DETECTION_S:g} s, p99 {detected:.2f} s; {worst}"


def _recovery_s(one: Recovery) -> float:
    return one.recovery_s


def _detection_s(one: Recovery) -> float:
    return one.detection_s


def _times(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{percentile(values, 0.5):.2f}, {percentile(values, _SHARE):.2f} s ({len(values)})"


def _losses(outcomes: Sequence[Outcome]) -> list[str]:
    """For each durability, what became of the acknowledged pushes; then what did not hold."""
    lines, held = [], [one for one in outcomes if not one.violated]
    for durability in dict.fromkeys(one.spec.durability for one in held if one.spec.counts):
        counts = [one.counts for one in held if one.spec.counts and one.spec.durability == durability]
        acknowledged, lost = sum(one.acknowledged for one in counts), sum(one.lost for one in counts)
        reported = ", all of them reported" if lost else ""
        lines.append(f"{durability}: {acknowledged:,} acknowledged, {lost:,} lost{reported}; 0 doubled")
    same = sum(not one.spec.counts for one in held)
    lines.append(f"{same} runs with the bits of a calm one; 0 left behind")
    violated = [f"VIOLATED in {' '.join(one.spec.cell)}: {one.violated}" for one in outcomes if one.violated]
    return [*lines, *violated]
