"""Whose run it is: the team of a plan, its share of the rungs, and how far down the queue its jobs are."""

from __future__ import annotations

from collections.abc import Iterable

from assets.facts import Facts
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.queueing import Queue

TEAM, SHARE, PLACE = "tenure/team", "tenure/share", "tenure/place"


def team_facts(queue: Queue | None, team: str) -> Facts:
    """The metadata of an asset: its team, and where several share, what it is entitled to and has had."""
    numbers = queue.teams.get(team) if queue else None
    if numbers is None:
        return {"team": team}
    return {
        "team": team,
        "team_weight": numbers["weight_now"],
        "team_entitlement": numbers["entitlement"],
        "team_share": numbers["share"],
        "team_charged_card_h": numbers["charged_card_h"],
    }


def team_tags(queue: Queue | None, team: str, jobs: Iterable[str]) -> dict[str, str]:
    """The tags of a run as they are now: its team, and where several share, its share and best place.

    >>> team_tags(None, "vision", ["j"])
    {'tenure/team': 'vision'}
    """
    found = {TEAM: team}
    numbers = queue.teams.get(team) if queue else None
    if queue is None or numbers is None:
        return found
    found[SHARE] = f"{numbers['share']:.0%} of use, entitled to {numbers['entitlement']:.0%}"
    wanted = set(jobs)
    placed = [each.place for each in queue.decisions if each.place is not None]
    mine = [each.place for each in queue.decisions if each.place and each.job in wanted]
    found[PLACE] = f"{min(mine)} of {len(placed)}" if mine else "not waiting"
    return found


def queue_of(dispatcher: Dispatcher | None) -> Queue | None:
    """Everybody's place as of the dispatcher's last look; ``None`` where there is one team."""
    return dispatcher.team_queue() if dispatcher is not None else None
