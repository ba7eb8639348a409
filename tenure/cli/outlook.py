"""What a plain look adds to a dispatcher's decisions: nobody may be there to act on them."""

from __future__ import annotations

import os
from urllib.parse import unquote

from tenure.dispatch.decide import Action, AskToYield, EnlistCopy, Launch, TakeAway
from tenure.dispatch.loop import Dispatcher, Tick
from tenure_protocol.clock import SYSTEM

_START = "`tenure dispatch` or `tenure run PLAN` starts one"


def wish(action: Action, reason: str) -> str:
    """A decision of a look, which changes nothing: what the next round of a dispatcher would do.

    >>> wish(Launch("j", "local", "none"), "nobody has run it yet")
    'a dispatcher would launch it next on rung local: nobody has run it yet'
    >>> wish(AskToYield("j", "demand"), "its speed is 0.31 of the usual")
    'a dispatcher would ask it to yield and go on on rung demand: its speed is 0.31 of the usual'
    """
    if isinstance(action, Launch):
        return f"a dispatcher would launch it next on rung {action.rung}: {reason}"
    if isinstance(action, AskToYield):
        where = f" and go on on rung {action.rung}" if action.rung else ""
        return f"a dispatcher would ask it to yield{where}: {reason}"
    if isinstance(action, EnlistCopy):
        return f"a dispatcher would enlist a backup copy for rung {action.rung}: {reason}"
    if isinstance(action, TakeAway):
        return f"a dispatcher would take it from its holder: {reason}"
    return reason


def no_dispatcher(dispatcher: Dispatcher, tick: Tick) -> str | None:
    """A sentence where jobs wait that a dispatcher would have launched, or ``None``.

    One that runs launches such a job within seconds, unless its platform has just refused.
    """
    waiting = {action.job for action, _ in tick.decisions if isinstance(action, Launch)}
    if not waiting:
        return None
    jobs = f"{len(waiting)} job{'s' if len(waiting) > 1 else ''} could be launched now"
    world = dispatcher.world
    if not any(each.witness and each.witness.launched for each in world.jobs.values()):
        return f"{jobs}, and no dispatcher has launched anything yet; {_START}"
    at_s = [bill.intent.at_s for bill in world.bills.values() if bill.intent]
    last = f"the last open launch is {SYSTEM.wall_s() - max(at_s):.0f} s old" if at_s else ""
    return f"{jobs}{f', and {last}' if last else ''}; if no dispatcher runs, {_START}"


def no_room(store_url: str) -> str | None:
    """A sentence where the disk of a directory store is full, or ``None``."""
    scheme, _, path = store_url.partition(":")
    if scheme != "file":
        return None
    try:
        space = os.statvfs(unquote(path))
    except OSError:
        return None  # the look itself tells what is wrong with the folder
    if space.f_bavail > 0 and (space.f_favail > 0 or space.f_files == 0):
        return None
    return (
        f"the disk of the store {store_url} is full (No space left on device): nothing is launched "
        "and no milestone is kept until there is room"
    )
