"""Make a model live again that was live before; its warrant is there already, so no key is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gates.head import KnownHead
from gates.slots import Deployment, check_deployment_name, history, moved
from gates.trust import Trust
from gates.verification import check_log, prove
from gates.warrant import BadWarrant
from tenure.errors import Blocked
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.store.api import Store


def rollback(
    store: Store,
    name: str,
    trust: Trust,
    to: int | None = None,
    *,
    head: KnownHead | None = None,
    by: str | None = None,
    reason: str | None = None,
    clock: Clock = SYSTEM,
) -> Deployment:
    """Make the model before the live one live again, or the one that warrant ``to`` let be live.

    Log, warrant, key, record and every byte of its files are verified again first. Of a rollback and
    anything else that moves the slot meanwhile, exactly one is done. Raises Blocked, UsageError, Corrupt,
    and StoreSilent when the store does not answer: then do the same again.
    """
    check_deployment_name(name)
    states = history(store, name)
    if not states:
        raise Blocked(f"nothing is deployed as {name!r}, so there is nothing to roll back")
    now = states[-1]
    target = before(states) if to is None else _named(states, to)
    nothing = f"warrant {target.warrant} is not made live again, and nothing was moved"
    try:
        check_log(store, trust, head)
    except BadWarrant as error:
        raise Blocked(f"{error}; {nothing}") from None
    for check in prove(store, target, trust)[0]:
        if not check.ok:
            raise Blocked(f"{check.check}: {check.detail}; {nothing}")
    wanted = replace(target, what="rollback", by=by, reason=reason, at_s=clock.wall_s())

    def decide(state: Deployment | None) -> Deployment:
        if state is None or state.write_id != now.write_id:
            which = f"to warrant {state.warrant} (move {state.move})" if state else "away"
            raise Blocked(
                f"{name!r} was moved {which} meanwhile, so nothing was rolled back; look at it with "
                f"`tenure verify {name}`, and roll back again if it is still wanted"
            )
        return wanted

    return moved(store, name, "live", decide, clock)


def before(states: Sequence[Deployment]) -> Deployment:
    """The state to which a rollback without a number leads: of the model before the live one.

    That is the one the live model replaced when it was deployed, whatever was rolled back since; a
    second warrant of the same record is no other model. Raises Blocked when there is none.
    """
    state = now = states[-1]
    while True:
        deployed = next(
            one
            for one in reversed(states[: state.move])
            if one.warrant == state.warrant and (one.what == "deploy" or one.move == 1)
        )
        if deployed.move == 1:
            raise Blocked(
                f"no other model was live as {now.name!r} before record {now.record} (warrant "
                f"{now.warrant}); --to WARRANT names one that was live at any time"
            )
        state = states[deployed.move - 2]
        if state.record != now.record:
            return state


def _named(states: Sequence[Deployment], to: int) -> Deployment:
    now = states[-1]
    if to == now.warrant:
        raise Blocked(f"warrant {to} is live as {now.name!r} already")
    found = [state for state in states if state.warrant == to]
    if not found:
        known = ", ".join(str(number) for number in sorted({one.warrant for one in states}))
        raise Blocked(f"warrant {to} never let a model be live as {now.name!r}; these did: {known}")
    return found[-1]
