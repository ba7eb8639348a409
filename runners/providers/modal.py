"""Modal: a sandbox under the launch's own name, in an image that Modal builds by our lock.

A sandbox's name is unique among those of its app that have not ended, so a second create under it is
refused and the first is adopted; no two machines can bear one name. The SDK has no switch for its three
retries of a call (within a second, under one idempotency key): that name makes them harmless.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

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

if TYPE_CHECKING:
    import modal

_LONGEST_S = 24 * 3600.0  # a sandbox lives no longer
_TAG = "tenure"  # its value is the name, which a listing does not tell
# By gRPC status; what is in neither (UNIMPLEMENTED, DATA_LOSS) must not happen: a ProtocolError.
_REFUSED = frozenset(
    "INVALID_ARGUMENT NOT_FOUND PERMISSION_DENIED UNAUTHENTICATED FAILED_PRECONDITION OUT_OF_RANGE".split()
)
_AMBIGUOUS = frozenset(
    "CANCELLED UNKNOWN DEADLINE_EXCEEDED UNAVAILABLE INTERNAL ABORTED ALREADY_EXISTS".split()
)


class ModalConfig(RentedConfig):
    """Further keys of a ``[runners.<name>]`` section with ``kind = "modal"``."""

    TITLE: ClassVar[str] = "Modal"
    # "H100!" and "A100-40GB" are what is promised; a plain "H100" or "A100" may come as something larger.
    CARDS: ClassVar[Mapping[str, str]] = {
        "cpu": "",
        "Tesla T4": "T4",
        "NVIDIA L4": "L4",
        "NVIDIA A10": "A10",
        "NVIDIA L40S": "L40S",
        "NVIDIA A100-SXM4-40GB": "A100-40GB",
        "NVIDIA A100-SXM4-80GB": "A100-80GB",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000",
        "NVIDIA H100 80GB HBM3": "H100!",
        "NVIDIA H200": "H200",
        "NVIDIA B200": "B200",
    }
    COUNTS: ClassVar[Sequence[int]] = range(1, 9)
    COUNTS_OF: ClassVar[Mapping[str, Sequence[int]]] = {"cpu": (1,), "NVIDIA A10": range(1, 5)}

    app: str = "tenure"  # its sandboxes are ours; made when it is missing
    environment: str = ""  # Modal's own word for a part of a workspace; empty: the default one
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"  # of the image
    region: str = ""  # empty: wherever there is room
    cpu_cores: float | None = Field(None, gt=0)  # None: what Modal gives
    memory_mib: int | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _possible(self) -> ModalConfig:
        if not 1 <= self.session_s <= _LONGEST_S:
            raise ValueError(f"a sandbox lives at most 24 hours: session_s is 1 to {_LONGEST_S:g}")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.app):
            raise ValueError(f"app is 1 to 64 letters, digits and any of ._-, not {self.app!r}")
        if not re.fullmatch(r"3\.1[1-9]", self.python):
            raise ValueError(f"python is '3.11' or a later series, not {self.python!r}")
        return self


class ModalPlatform(SdkPlatform[ModalConfig, ModuleType]):
    """One sandbox for one launch. It ends with its program, and at ``session_s`` by itself."""

    KIND: ClassVar[str] = "modal"
    EXTRA: ClassVar[str] = "modal"
    MODULE: ClassVar[str] = "modal"
    VARIABLES: ClassVar[tuple[str, ...]] = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
    BUILDS: ClassVar[bool] = True
    Config: ClassVar[type[RentedConfig]] = ModalConfig
    _client: modal.Client | None = None

    def create(self, order: Order) -> Handle:
        """A sandbox's id, which one with GPUs has when it is scheduled: till then it is found by its name.

        So is one whose name is taken, which is what an earlier try has made: Unreachable, too.
        """
        app, image, secrets = self._ask(
            "build the image (nothing was launched)", lambda sdk: self._prepared(sdk, order)
        )
        return self._ask(
            "create a sandbox", lambda sdk: self._create(sdk, order, app, image, secrets), sent=True
        )

    def find(self, name: str) -> Handle | None:
        """The sandbox under ``name`` that has not ended."""
        return self._ask("find a sandbox", lambda sdk: self._find(sdk, name))

    def end(self, handle: Handle) -> Settlement:
        """Terminate, whatever its status says, and believe in its end when it has a result."""
        ident = handle.get("sandbox")
        if not isinstance(ident, str):
            raise ProtocolError(f"{dict(handle)} is no handle of a sandbox of Modal")
        return self._ask("end a sandbox", lambda sdk: _end(sdk, ident, self._client))

    def running(self, prefix: str) -> Sequence[tuple[str, Handle]]:
        """The app's sandboxes that have not ended."""
        return self._ask("list sandboxes", lambda sdk: self._running(sdk, prefix))

    # ------------------------------------------------------------ the SDK's own calls, inside of ask

    def _open(self) -> ModuleType:
        # Else the SDK obeys a server that tells it to wait, for as long as it is told to.
        os.environ.setdefault("MODAL_MAX_THROTTLE_WAIT", "0")
        import modal
        from modal.config import config

        token, secret = config.get("token_id"), config.get("token_secret")
        if not (token and secret):
            raise Rejected(
                "no credentials: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run: modal token new"
            )
        self._secrets[:] = [token, secret]
        self._client = modal.Client.from_credentials(token, secret)
        sdk: ModuleType = modal
        return sdk

    @staticmethod
    def _classify(error: BaseException) -> LaunchFailed | None:
        return classify(error)

    def _app(self, sdk: ModuleType, make: bool) -> modal.App:
        return sdk.App.lookup(self._config.app, create_if_missing=make, **self._where())

    def _where(self) -> dict[str, object]:
        return {"client": self._client, "environment_name": self._config.environment or None}

    def _prepared(
        self, sdk: ModuleType, order: Order
    ) -> tuple[modal.App, modal.Image, list[modal.Secret]]:
        app = self._app(sdk, make=True)
        image = sdk.Image.debian_slim(self._config.python)
        if order.lock:
            image = image.pip_install_from_requirements(str(order.lock))
        secrets = [sdk.Secret.from_name(name, **self._where()) for name in order.secrets]
        for secret in secrets:
            secret.hydrate()
        return app, image.build(app), secrets

    def _create(
        self,
        sdk: ModuleType,
        order: Order,
        app: modal.App,
        image: modal.Image,
        secrets: list[modal.Secret],
    ) -> Handle:
        config = self._config
        sandbox = sdk.Sandbox.create(
            *("sh", "-c", order.shell),
            app=app,
            name=order.name,
            tags={_TAG: order.name},
            image=image,
            env={"TENURE_START": order.packet},
            secrets=secrets,
            timeout=int(config.session_s),
            gpu=None if config.card == "cpu" else f"{config.CARDS[config.card]}:{order.cards}",
            region=config.region or None,
            cpu=config.cpu_cores,
            memory=config.memory_mib,
            client=self._client,
        )
        return {"sandbox": sandbox.object_id}

    def _find(self, sdk: ModuleType, name: str) -> Handle | None:
        try:
            sandbox = sdk.Sandbox.from_name(self._config.app, name, **self._where())
        except sdk.exception.NotFoundError:
            return None
        return {"sandbox": sandbox.object_id}

    def _running(self, sdk: ModuleType, prefix: str) -> list[tuple[str, Handle]]:
        found: list[tuple[str, Handle]] = []
        with suppress(sdk.exception.NotFoundError):  # no such app: nothing was ever launched
            app_id = self._app(sdk, make=False).app_id
            for sandbox in sdk.Sandbox.list(app_id=app_id, client=self._client):
                with suppress(sdk.exception.NotFoundError):  # ended since it was listed
                    name = sandbox.get_tags().get(_TAG)
                    if name and name.startswith(prefix):
                        found.append((name, {"sandbox": sandbox.object_id}))
        return found


def _end(sdk: ModuleType, ident: str, client: modal.Client | None) -> Settlement:
    try:
        sandbox = sdk.Sandbox.from_id(ident, client)
        sandbox.terminate()
        code = sandbox.poll()
    except sdk.exception.NotFoundError:
        return Closed("Modal knows no such sandbox")
    if code is None:
        return Pending("the sandbox was told to end and has no result yet")
    return Closed(f"the sandbox has ended with exit code {code}")


def classify(error: BaseException) -> LaunchFailed | None:
    """By gRPC status; what the SDK raises without one, by what it stands for."""
    import asyncio

    from grpclib.exceptions import StreamTerminatedError
    from modal import exception as sdk

    words = str(error) or type(error).__name__
    status = vars(error).get("_grpc_status")  # its public twin warns of being removed
    if status is not None:
        if status.name == "RESOURCE_EXHAUSTED":
            return NoSlots(words)
        if status.name in _REFUSED:
            return Rejected(words)
        return Unreachable(words, sent=True) if status.name in _AMBIGUOUS else None
    if isinstance(error, sdk.ResourceExhaustedError):  # not scheduled within 21 minutes
        return NoSlots(words)
    refused = (sdk.AuthError, sdk.ImageBuildError, sdk.ConflictError, sdk.VersionError)
    if isinstance(error, refused):
        return Rejected(words)
    silent = (sdk.ConnectionError, sdk.TimeoutError, sdk.ClientClosed, StreamTerminatedError)
    if isinstance(error, (*silent, OSError, asyncio.TimeoutError)):
        return Unreachable(words, sent=True)
    return None
