"""Vast.ai: a marketplace of hosts. An offer is found, then taken; the machine is a container of one image there.

An instance that was outbid is stopped, and its disk is billed until it is destroyed: stopped is not closed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from runners.http import Answer, classify_answer, classify_http
from runners.order import Handle, Order, RentedConfig
from runners.sdk import SdkPlatform, pages
from tenure.dispatch.contract import (
    Closed,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Quota,
    Rejected,
    Settlement,
)

Row = dict[str, Any]  # JSON as the service sends it

_TRIES = 3  # offers: one may be taken between the search and the create
_LOOKED_AT = 16
_FULL = (
    "no_such_ask", "not available", "no longer available", "currently unavailable",
    "insufficient_credit", "quota_exceeded",
)  # fmt: skip
_HALTED = ("stopped", "exited", "offline", "unknown")
_GEFORCE = (
    "3060", "3070", "3080", "3080 Ti", "3090", "3090 Ti", "4060 Ti", "4070", "4070 Ti", "4080", "4090",
    "5060 Ti", "5070", "5070 Ti", "5080", "5090",
)  # fmt: skip


class VastConfig(RentedConfig):
    """Further keys of a ``[runners.<name>]`` section with ``kind = "vast"``."""

    TITLE: ClassVar[str] = "Vast"
    CARDS: ClassVar[Mapping[str, str]] = {
        **{f"NVIDIA GeForce RTX {name}": f"RTX {name}" for name in _GEFORCE},
        **{f"NVIDIA GeForce RTX {n} SUPER": f"RTX {n}S" for n in ("4070", "4080")},
        **{f"NVIDIA RTX {name}": f"RTX {name}" for name in ("A4000", "A5000", "A6000")},
        **{f"NVIDIA RTX {n} Ada Generation": f"RTX {n}Ada" for n in ("4000", "5000", "6000")},
        **{
            f"NVIDIA {n}": n
            for n in ("A10", "A40", "L4", "L40", "L40S", "H100 NVL", "H200", "B200")
        },
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 S",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 WS",
        "NVIDIA A100-SXM4-40GB": "A100 SXM4",
        "NVIDIA A100-SXM4-80GB": "A100 SXM4",
        "NVIDIA A100-PCIE-40GB": "A100 PCIE",
        "NVIDIA A100 80GB PCIe": "A100 PCIE",
        "NVIDIA H100 80GB HBM3": "H100 SXM",
        "NVIDIA H100 PCIe": "H100 PCIE",
        "NVIDIA H200 NVL": "H200 NVL",
        "Tesla T4": "Tesla T4",
        "Tesla V100-SXM2-16GB": "Tesla V100",
        "Tesla V100-SXM2-32GB": "Tesla V100",
    }

    image: str = "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime"  # with bash, base64 and python3
    disk_gb: float = Field(32.0, ge=8)  # billed until the instance is destroyed
    interruptible: bool = False  # a bid: somebody else's higher one stops the machine
    bid_factor: float = Field(1.2, ge=1)  # of the lowest bid that would win now
    max_usd_per_h: float | None = Field(None, gt=0)  # of the whole machine; no dearer one is rented
    min_reliability: float = Field(0.95, ge=0, le=1)
    min_inet_down_mbps: float = Field(100.0, ge=0)
    min_cuda: float = Field(12.4, ge=0)  # the newest one that the host's driver takes
    min_driver: str = ""  # of the host, such as "550.54.15"
    avoid_machines: tuple[int, ...] = ()  # machine_id, as in a receipt's handle
    # True: launches end with the account's credit. Not for one that is topped up by itself, whose
    # credit says nothing of what may be spent.
    credit_counts: bool = False

    @field_validator("min_driver")
    @classmethod
    def _driver(cls, driver: str) -> str:
        if driver and not re.fullmatch(r"\d{1,3}(\.\d{1,3}){2}", driver):
            raise ValueError(f"{driver!r} is no driver version: write three numbers, as 550.54.15")
        return driver


class VastPlatform(SdkPlatform[VastConfig, Any]):
    """The calls of the SDK ``vastai``; see :class:`runners.order.Platform` for what each must do."""

    KIND: ClassVar[str] = "vast"
    EXTRA: ClassVar[str] = "vast"
    MODULE: ClassVar[str] = "vastai"
    VARIABLES: ClassVar[tuple[str, ...]] = ("VAST_API_KEY", "CONTAINER_API_KEY")
    Config: ClassVar[type[RentedConfig]] = VastConfig

    def create(self, order: Order) -> Handle:
        """Take the cheapest offer that fits, or one of the next two if it was just taken.

        Another offer is tried only after a refusal, never after an answer that was lost.
        """
        if missing := self.unknown_secrets(order.secrets):
            raise Rejected(
                f"the account has no variable {missing[0]}; create it on the account page of Vast "
                f"or with: vastai create env-var {missing[0]} VALUE"
            )
        offers = self._offers()
        why = f"Vast has no offer of {self._config.cards} x {self._config.card} that fits just now"
        for offer in offers[:_TRIES]:
            try:
                ident = self._take(offer, order)
            except NoSlots as error:
                why = str(error)
                continue
            return _handle({**offer, "id": ident}, order.name)
        raise NoSlots(why)

    def find(self, name: str) -> Handle | None:
        """The instance with this label: one that runs if there is one, of several the oldest."""
        mine = [row for row in self._rows({"label": {"in": [name]}}) if row.get("label") == name]
        if not mine:
            return None
        return _handle(min(mine, key=lambda r: (r.get("actual_status") in _HALTED, r["id"])), name)

    def end(self, handle: Handle) -> Settlement:
        """Destroy it; closed when the service says that it has no such instance."""
        ident = handle.get("id")
        if not isinstance(ident, int):
            raise Rejected(f"no instance of Vast is meant by the handle {dict(handle)!r}")
        if self._ask("destroy", lambda sdk: _destroyed(sdk, ident)):
            return Closed(f"Vast has no instance {ident}")
        return Pending(f"Vast was asked to destroy instance {ident}")

    def running(self, prefix: str) -> Sequence[tuple[str, Handle]]:
        """All instances with such a label, stopped ones too: their disks are billed."""
        named = [(str(row.get("label") or ""), row) for row in self._rows({})]
        return [(name, _handle(row, name)) for name, row in named if name.startswith(prefix)]

    def quota(self) -> Quota | None:
        """The account's credit in dollars, where the configuration says that it counts."""
        if not self._config.credit_counts:
            return None
        credit = self._ask("credit", lambda sdk: _said(sdk.show_user())).get("credit")
        if isinstance(credit, bool) or not isinstance(credit, (int, float)):
            raise ProtocolError("vast credit: the answer holds no credit of the account")
        return Quota(0.0, float(credit), None, "usd")

    def ending(self) -> Mapping[str, object] | None:
        """The instance destroys itself, by the key to itself alone that Vast puts into it."""
        return {
            "method": "DELETE",
            "url": f"{_server()}/api/v0/instances/${{CONTAINER_ID}}/",
            "headers": {
                "Authorization": "Bearer ${CONTAINER_API_KEY}",
                "Content-Type": "application/json",
            },
            "body": "{}",
        }

    def unknown_secrets(self, names: Sequence[str]) -> Sequence[str]:
        """Those of ``names`` that are no variables of the account, which reach each instance by themselves."""
        if not names:
            return ()
        known = self._ask("variables", lambda sdk: _said(sdk.show_env_vars()))
        return [name for name in names if name not in known]

    # ---------------------------------------------------------------------------- one call each

    def _offers(self) -> list[Row]:
        """Offers that fit, the cheapest first; what costs money is checked here again."""
        config = self._config
        kind = "bid" if config.interruptible else "on-demand"
        how = {"type": kind, "order": "dph_total", "limit": _LOOKED_AT, "storage": config.disk_gb}
        found = self._ask("search", lambda sdk: sdk.search_offers(self._query(), **how))
        if not isinstance(found, list):
            raise ProtocolError("vast search: the offers are no list")
        most = config.max_usd_per_h or float("inf")
        word = config.CARDS[config.card]
        fits = [
            row
            for row in found
            if isinstance(row.get("id"), int)
            and (row.get("gpu_name"), row.get("num_gpus")) == (word, config.cards)
            and 0 <= self._usd_per_h(row) <= most
            and row.get("machine_id") not in config.avoid_machines
        ]
        return sorted(fits, key=self._usd_per_h)

    def _query(self) -> Row:
        config = self._config
        query: Row = {
            "gpu_name": {"eq": config.CARDS[config.card]},
            "num_gpus": {"eq": config.cards},
            "reliability": {"gte": config.min_reliability},
            "inet_down": {"gte": config.min_inet_down_mbps},
            "cuda_max_good": {"gte": config.min_cuda},
            "disk_space": {"gte": config.disk_gb},
            "duration": {"gte": config.session_s},  # the host stays at least so long
        }
        if config.max_usd_per_h:
            query["dph_total"] = {"lte": config.max_usd_per_h}
        if config.min_driver:  # "550.54.15" is 550054015 there
            parts = config.min_driver.split(".")
            query["driver_version"] = {"gte": int("".join(part.zfill(3) for part in parts))}
        if memory := re.search(r"(\d+)GB", config.card):  # two cards of one name there
            query["gpu_ram"] = {"gte": int(memory[1]) * 870, "lte": int(memory[1]) * 1130}  # MB
        return query

    def _usd_per_h(self, offer: Row) -> float:
        price = offer.get("min_bid" if self._config.interruptible else "dph_total")
        return float(price) if isinstance(price, (int, float)) else -1.0

    def _take(self, offer: Row, order: Order) -> int:
        """Rent one offer; the id of the instance."""
        config, bid = self._config, None
        if config.interruptible:
            bid = min(self._usd_per_h(offer) * config.bid_factor, config.max_usd_per_h or 1e9)

        def call(sdk: Any) -> int:
            answer = sdk.create_instance(
                offer["id"],
                image=config.image,
                disk=config.disk_gb,
                env={"TENURE_START": order.packet},
                label=order.name,
                onstart_cmd=order.shell,
                runtype="ssh",  # the one mode without a notebook that runs an onstart
                bid_price=bid and round(bid, 4),
                cancel_unavail=True,  # else a host that is full keeps a stopped instance
            )
            ident = _said(answer).get("new_contract")
            if not isinstance(ident, int):
                raise ProtocolError("the answer to a create holds no new_contract")
            return ident

        return self._ask("create", call, sent=True, hide=[order.packet])

    def _rows(self, filters: Row) -> list[Row]:
        wanted = {"select_filters": filters, "order_by": [{"col": "id", "dir": "asc"}], "limit": 25}

        def page(token: str) -> tuple[list[Row], object]:
            asked = {**wanted, **({"after_token": token} if token else {})}
            told = self._ask("listing", lambda sdk: _listing(sdk.show_instances_v1(asked)))
            return told["instances"], told.get("next_token")

        return list(pages("vast listing", page))

    def _open(self) -> Any:
        from vastai import VastAI

        try:
            sdk = VastAI(server_url=_server(), retry=1)
        except RuntimeError:
            raise Rejected(
                "no API key of Vast: set VAST_API_KEY, or run: vastai set api-key KEY"
            ) from None
        key = sdk.client.api_key = str(sdk.client.api_key).strip()
        if not re.fullmatch("[!-~]+", key):  # whose failure would repeat the header
            raise Rejected("the API key of Vast holds characters that no key has; see VAST_API_KEY")
        self._secrets[:] = [key]
        sdk.client.timeout = self._config.deadline_s
        return sdk

    @staticmethod
    def _classify(error: BaseException) -> LaunchFailed | None:
        return classify_http(error, _full)


def _full(answer: Answer) -> LaunchFailed | None:
    """No place, no credit or no more searches; a page of somebody else's may hold such words as well."""
    full = answer.told and any(word in answer.words.lower() for word in _FULL)
    return NoSlots(answer.words) if full else None


def _said(answer: object) -> Row:
    """An answer that is one; what says ``success: false`` is raised as what it means."""
    if not isinstance(answer, dict):
        raise ProtocolError(f"the answer is no mapping, but {type(answer).__name__}")
    if answer.get("success", True) is not True:
        refused = Answer.of(200, answer)
        raise classify_answer(refused, _full) or Rejected(refused.words)
    return answer


def _listing(answer: object) -> Row:
    """A page of instances; only such a one proves that another instance is not there."""
    page = _said(answer)
    rows = page.get("instances")
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("id"), int) for row in rows
    ):
        raise ProtocolError("the listing does not list instances")
    return page


def _destroyed(sdk: Any, ident: int) -> bool:
    """Ask for the end of an instance; whether there is none. A 404 in HTML is not the service's."""
    try:
        said = _said(sdk.destroy_instance(ident))
    except Exception as error:
        answer = Answer.to(error)
        if answer is None or answer.status != 404:
            raise
        if answer.told:
            return True
        raise ProtocolError(f"{answer.words}, and not from Vast") from None
    if "success" not in said:
        raise ProtocolError("the answer to a destroy does not say that it succeeded")
    return False


def _handle(row: Row, name: str) -> Handle:
    """With the host's machine_id, by which people and ``avoid_machines`` know it."""
    return {"id": row["id"], "name": name, "machine_id": row.get("machine_id")}


def _server() -> str:
    return (os.environ.get("VAST_URL") or "https://console.vast.ai").rstrip("/")
