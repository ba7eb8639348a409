"""RunPod: a pod is one container, started again whenever its command ends, until the pod is terminated.

The SDK puts every value into the text of a GraphQL query as it stands, so nothing that could end a string
there is let through. The SDK writes the queries and its ``run_graphql_query`` sends them; the functions
above it (``create_pod``, ``terminate_pod``) read an answer by KeyError or not at all, so it is read here.
Written from runpod 1.11.0 (``runpod.api`` of 1.12.0 is the same); not run against the service.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

from pydantic import Field, model_validator

from runners.http import classify_http
from runners.order import Handle, Order, RentedConfig
from runners.sdk import SdkPlatform
from tenure.dispatch.contract import (
    Closed,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Rejected,
    Settlement,
    Unreachable,
)

_KEY = "RUNPOD_API_KEY"
_UNSAFE = re.compile(r"[\"'\\\x00-\x1f\x7f]")
_CARDS = (  # RunPod's own word for a card is what nvidia-smi prints
    "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-80GB", "NVIDIA A30", "NVIDIA A40", "NVIDIA B200",
    "NVIDIA GeForce RTX 3070", "NVIDIA GeForce RTX 3080", "NVIDIA GeForce RTX 3080 Ti",
    "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4070 Ti",
    "NVIDIA GeForce RTX 4080", "NVIDIA GeForce RTX 4080 SUPER", "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5080", "NVIDIA GeForce RTX 5090", "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL",
    "NVIDIA H100 PCIe", "NVIDIA H200", "NVIDIA L4", "NVIDIA L40", "NVIDIA L40S",
    "NVIDIA RTX 2000 Ada Generation", "NVIDIA RTX 4000 Ada Generation",
    "NVIDIA RTX 4000 SFF Ada Generation", "NVIDIA RTX 5000 Ada Generation",
    "NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX A2000", "NVIDIA RTX A4000", "NVIDIA RTX A4500",
    "NVIDIA RTX A5000", "NVIDIA RTX A6000", "Tesla V100-FHHL-16GB", "Tesla V100-PCIE-16GB",
    "Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB",
)  # fmt: skip
_MAY_NOT = "unauthori[sz]ed|not authori[sz]ed|forbidden|unauthenticated|api key|permission"
_WORDS: tuple[tuple[str, type[LaunchFailed]], ...] = (  # the first that is found decides
    ("no longer any instances|no instances|not enough free gpu|not have the resources", NoSlots),
    (_MAY_NOT, Rejected),
    (r"insufficient|\bbalance\b|\bfunds\b|spend(ing)? limit|quota", NoSlots),  # parks the rung too
    ("went wrong|try again|too many|rate limit|timed? ?out|internal|unavailable", Unreachable),
    (r"does not exist|not found|invalid|\bbid\b|must be", Rejected),
)


class RunPodConfig(RentedConfig):
    """Keys of a ``[runners.<name>]`` section with ``kind = "runpod"``."""

    TITLE: ClassVar[str] = "RunPod"
    CARDS: ClassVar[Mapping[str, str]] = {**{card: card for card in _CARDS}, "cpu": ""}
    COUNTS: ClassVar[Sequence[int]] = range(1, 9)

    # Has Python 3.11. An image with an ENTRYPOINT must run what it is given as arguments.
    image: str = Field(
        "runpod/pytorch:2.4.0-py3.11-cuda12.4.1-devel-ubuntu22.04", pattern=r"^[\w./:@+-]+$"
    )
    cloud: Literal["SECURE", "COMMUNITY", "ALL"] = "SECURE"  # COMMUNITY: third parties' machines
    bid_usd_per_h: float | None = Field(None, gt=0)  # for one card; makes the pod interruptible
    data_center: str | None = Field(None, pattern="^[A-Z0-9-]+$")  # such as "EU-RO-1"
    country: str | None = Field(None, pattern="^[A-Z]{2}$")
    disk_gb: int = Field(20, ge=5)  # of the container; gone with the pod
    vcpus: int = Field(2, ge=1)  # at least, as the following
    memory_gb: int = Field(8, ge=1)
    download_mbps: int | None = Field(None, ge=1)
    upload_mbps: int | None = Field(None, ge=1)
    cuda_versions: tuple[Annotated[str, Field(pattern=r"^\d+\.\d+$")], ...] = ()  # empty: any
    # A pod takes 50 variables, by the platform's documentation; one is TENURE_START.
    secrets: tuple[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], ...] = Field(
        (), max_length=49
    )

    @model_validator(mode="after")
    def _rentable(self) -> RunPodConfig:
        if self.card == "cpu" and self.bid_usd_per_h is not None:
            raise ValueError("bid_usd_per_h is for a card, and a pod of card 'cpu' has none")
        return self


class RunPodPlatform(SdkPlatform[RunPodConfig, Any]):
    """Pods of the account of ``$RUNPOD_API_KEY``, or else of ``~/.runpod/config.toml``."""

    KIND: ClassVar[str] = "runpod"
    EXTRA: ClassVar[str] = "runpod"
    MODULE: ClassVar[str] = "runpod"
    VARIABLES: ClassVar[tuple[str, ...]] = (_KEY,)
    Config: ClassVar[type[RentedConfig]] = RunPodConfig
    _account = ""  # whose pods were listed last

    def create(self, order: Order) -> Handle:
        """Deploy a pod by one request. Its id is all that is waited for."""
        for words in (order.name, order.shell, order.packet):
            if _UNSAFE.search(words):
                raise Rejected("create a pod: an order holds quotes, backslashes or line breaks")
        if not self._account:
            self._pods()
        data = self._data(
            "create a pod", lambda mutations, _: self._deployment(order, mutations), True
        )
        (pod,) = data.values() if len(data) == 1 else (None,)
        if not _has_id(pod):
            raise ProtocolError("create a pod: the answer names no pod")
        ident = str(pod["id"])
        self._newborns.add(ident)
        return self._handle(ident, order.name)

    def find(self, name: str) -> Handle | None:
        """The pod of a name; of several, one that is meant to run. ``end`` ends them all."""
        pods = [pod for pod in self._pods() if pod["name"] == name]
        pods.sort(key=lambda pod: pod["desiredStatus"] != "RUNNING")
        return self._handle(pods[0]["id"], name) if pods else None

    def running(self, prefix: str) -> Sequence[tuple[str, Handle]]:
        """All pods of such names, whatever their status says: a stopped one may be resumed."""
        pods = [pod for pod in self._pods() if pod["name"].startswith(prefix)]
        return [(pod["name"], self._handle(pod["id"], pod["name"])) for pod in pods]

    def end(self, handle: Handle) -> Settlement:
        """Terminate the pod and all others of its name; Closed when RunPod knows none of them.

        What RunPod says to the request itself proves nothing, so it is only repeated to people.
        """
        pod, name = str(handle.get("pod", "")), handle.get("name")
        if not re.fullmatch(r"[\w-]+", pod):
            raise ProtocolError("end a pod: the handle holds no id of a pod")
        bearers = {pod} | {one["id"] for one in self._pods() if one["name"] == name}
        if (owner := handle.get("account", self._account)) != self._account:
            raise Rejected(f"pod {pod} is of account {owner}, and {_KEY} opens {self._account}")
        said = [words for one in bearers if (words := self._terminate(one))]
        if self._is_known(pod) or any(one["name"] == name for one in self._pods()):
            return Pending(
                "; ".join([f"RunPod still knows pod {pod} or another of its name", *said])
            )
        if pod in self._newborns:
            return Pending(f"RunPod may not list pod {pod} yet, which is new")
        return Closed(f"RunPod knows no pod {pod}")

    def ending(self) -> Mapping[str, object]:
        """The pod terminates itself by the key that RunPod gives to it, which is good for itself."""
        base = os.environ.get("RUNPOD_API_BASE_URL", "https://api.runpod.io")  # as the SDK
        query = 'mutation { podTerminate(input: { podId: "${RUNPOD_POD_ID}" }) }'
        return {
            "method": "POST",
            "url": f"{base}/graphql",
            "headers": {
                "Content-Type": "application/json",
                "Authorization": f"Bearer ${{{_KEY}}}",
            },
            "body": json.dumps({"query": query}),
        }

    def _deployment(self, order: Order, mutations: ModuleType) -> str:
        """The SDK's text, and what it has no place for: the wall, and the bid of a spot pod."""
        config = self._config
        secrets = {name: f"{{{{ RUNPOD_SECRET_{name} }}}}" for name in order.secrets}
        text = str(
            mutations.generate_pod_deployment_mutation(
                order.name,
                config.image,
                config.CARDS[config.card] or None,
                config.cloud,
                support_public_ip=False,
                start_ssh=False,
                data_center_id=config.data_center,
                country_code=config.country,
                gpu_count=order.cards,
                volume_in_gb=0,  # a volume would be billed on after the pod
                container_disk_in_gb=config.disk_gb,
                min_vcpu_count=config.vcpus,
                min_memory_in_gb=config.memory_gb,
                docker_args=f"sh -c '{order.shell}'",
                env={**secrets, "TENURE_START": order.packet},
                allowed_cuda_versions=list(config.cuda_versions) or None,
                min_download=config.download_mbps,
                min_upload=config.upload_mbps,
            )
        )
        if config.card == "cpu":
            return text
        end_s = self._clock.wall_s() + config.claim_window_s + config.session_s
        more = f'terminateAfter: "{datetime.fromtimestamp(end_s, UTC):%Y-%m-%dT%H:%M:%SZ}",'
        if config.bid_usd_per_h is not None:
            more += f" bidPerGpu: {config.bid_usd_per_h},"
            text = text.replace("podFindAndDeployOnDemand", "podRentInterruptable", 1)
        return text.replace("input: {", f"input: {{ {more}", 1)

    def _pods(self) -> list[dict[str, str]]:
        """All pods of the account; there are no pages."""
        me = self._data(
            "list the pods",  # and whose they are, which the SDK does not ask for
            lambda _, queries: str(queries.QUERY_POD).replace("myself {", "myself { id", 1),
        ).get("myself")
        if not _has_id(me) or not isinstance(pods := me.get("pods"), list):
            raise ProtocolError("list the pods: the answer is no list of pods")
        if not all(map(_has_id, pods)):
            raise ProtocolError("list the pods: there is a row without an id")
        self._account = str(me["id"])
        for pod in pods:
            self._newborns.discard(str(pod["id"]))
        words = ("id", "name", "desiredStatus")
        return [{word: str(pod.get(word)) for word in words} for pod in pods]

    def _handle(self, pod: str, name: str) -> Handle:
        return {"pod": pod, "name": name, "account": self._account}

    def _is_known(self, pod: str) -> bool:
        """Whether RunPod knows a pod; ``False`` is proof, unless the pod is too new to be listed."""
        data = self._data("look at a pod", lambda _, queries: str(queries.generate_pod_query(pod)))
        if "pod" in data and data["pod"] is None:
            return False
        if not _has_id(data.get("pod")):
            raise ProtocolError("look at a pod: the answer is no pod")
        return True

    def _terminate(self, pod: str) -> str:
        """Ask for the end; what went wrong, in words."""
        try:
            self._data(
                "terminate a pod",
                lambda mutations, _: str(mutations.generate_pod_terminate_mutation(pod)),
            )
        except LaunchFailed as error:
            return str(error)
        self._newborns.discard(pod)  # it was there
        return ""

    def _data(
        self, what: str, text: Callable[[ModuleType, ModuleType], str], sent: bool = False
    ) -> dict[str, object]:
        """The ``data`` of a query's answer; ``text`` makes the query by two modules of the SDK."""

        def call(sdk: Any) -> dict[str, object]:
            send, mutations, queries = sdk
            key = _key()
            self._secrets[:] = [key]
            return _data(send(text(mutations, queries), api_key=key))

        return self._ask(what, call, sent)

    def _open(self) -> Any:
        from runpod.api.graphql import run_graphql_query
        from runpod.api.mutations import pods as mutations
        from runpod.api.queries import pods as queries

        return run_graphql_query, mutations, queries

    @staticmethod
    def _classify(error: BaseException) -> LaunchFailed | None:
        kind, words = type(error).__name__, f"{type(error).__name__}: {error}"
        if kind == "AuthenticationError":
            return Rejected(f"{error} ({_KEY})")
        if kind == "QueryError":
            return _meant(words)
        if kind == "JSONDecodeError":  # a proxy's answer, or a page about maintenance
            return Unreachable(words, sent=True)
        return classify_http(error)


def _meant(words: str) -> LaunchFailed | None:
    """The failure that a text of RunPod tells of; it gives no code."""
    for pattern, kind in _WORDS:
        if re.search(pattern, words, re.IGNORECASE):
            return Unreachable(words, sent=True) if kind is Unreachable else kind(words)
    return None


def _data(body: object) -> dict[str, object]:
    """The ``data`` of a well-formed answer; the SDK looks at no status but 401."""
    if isinstance(body, dict) and "data" not in body:  # a 403, 429 or 503 with a body of its own
        words = f"an answer without data: {json.dumps(body)}"
        denied = re.search(_MAY_NOT, words, re.IGNORECASE)
        raise Rejected(words) if denied else Unreachable(words, sent=True)
    if not isinstance(body, dict) or not isinstance(body["data"], dict):
        raise ProtocolError("an answer whose data is no object")
    return body["data"]


def _key() -> str:
    import runpod

    key = str(os.environ.get(_KEY) or runpod.api_key or "").strip()
    if not key:
        raise Rejected(f"there are no credentials: set {_KEY}")
    if not re.fullmatch(r"[\x21-\x7e]+", key):  # requests would repeat such a header in its words
        raise Rejected(f"{_KEY} holds characters that no key has")
    return key


def _has_id(row: object) -> TypeGuard[dict[str, object]]:
    return isinstance(row, dict) and isinstance(row.get("id"), str)
