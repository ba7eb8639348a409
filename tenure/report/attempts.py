"""The launches of a job over time, as bars: when each began, was claimed and ended, and whether it was lost."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.dispatch.history import LaunchRow

_UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_GOOD_ENDS = frozenset({"finished", "running", "released:10", None})


@dataclass(frozen=True)
class Bar:
    """One launch of one job; all times are Unix times by the dispatchers' clocks."""

    line: str  # of one job
    rung: str
    begin_s: float
    claim_s: float | None  # when its worker began; None: it never did, or nobody saw it
    end_s: float
    lost: bool  # it ended against its will


def bar(line: str, row: LaunchRow, now_s: float) -> Bar:
    """Where a launch stands in the picture, as far as is known; at the latest it ends now.

    It ends with its bill. Where that is open, it has lasted to its last milestone at least, and one
    that nobody has seen the end of lasts still.
    """
    end_s = now_s
    if row.bill_at_s is not None and row.bill in ("closed", "bounded"):
        end_s = row.bill_at_s
    elif row.seen_s is not None and row.end != "running":
        end_s = row.at_s + row.seen_s
    end_s = max(row.at_s, min(end_s, now_s))
    claim_s = None if row.start_s is None else min(row.at_s + row.start_s, end_s)
    return Bar(line, row.rung, row.at_s, claim_s, end_s, row.end not in _GOOD_ENDS)


def unit(span_s: float) -> tuple[float, str]:
    """In what a span is best told: seconds in one of it, and its name.

    >>> unit(90.0), unit(7200.0), unit(0.0)
    ((60.0, 'minutes'), (3600.0, 'hours'), (1.0, 'seconds'))
    """
    return next(((each, name) for each, name in _UNITS if span_s >= each), _UNITS[-1])
