"""Kaggle: a script in a private kernel of one's own, on a pair of T4 or without a card, for at most 12 hours.

Calls go through ``kagglesdk``, which the package ``kaggle`` is made of: ``import kaggle`` itself signs in, prints
and exits. Credentials are found where the SDK looks: ``KAGGLE_API_TOKEN``, ``~/.kaggle/access_token``,
``KAGGLE_USERNAME`` with ``KAGGLE_KEY``, ``~/.kaggle/kaggle.json``. ``KAGGLE_API_BASE_URL`` is another address of the API.

A kernel is known by ``owner/slug``; each push is a version of it with a run of its own. No call ends a run: the
kernel is deleted, and where that is refused, the timeout that every push sets is all there is.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import Field, field_validator

from runners.http import Answer, classify_http
from runners.order import USUAL_SESSION_S, Handle, Order, RentedConfig
from runners.sdk import SdkPlatform, pages
from tenure.dispatch.contract import (
    Bounded,
    Closed,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Quota,
    Rejected,
    Settlement,
    Unreachable,
)

if TYPE_CHECKING:
    from requests import Response
    from requests.adapters import HTTPAdapter

T = TypeVar("T")

_WALL_S = 12 * 3600.0  # of a session; the timeout must be below it
_RECENT_S = 4 * _WALL_S  # no run waits and runs for longer
_SLUG = re.compile(r"(?=.{5,50}$)[a-z0-9]+(-[a-z0-9]+)*")  # else Kaggle makes a slug of its own
_FULL = re.compile(r"maximum batch|session count|quota", re.IGNORECASE)
_OVER = frozenset({"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"})
_NO_CREDENTIALS = (
    "no credentials found: set KAGGLE_API_TOKEN, or KAGGLE_USERNAME and KAGGLE_KEY, "
    "or put kaggle.json into ~/.kaggle"
)


class KaggleConfig(RentedConfig):
    """Further keys of a ``[runners.<name>]`` section with ``kind = "kaggle"``."""

    TITLE: ClassVar[str] = "Kaggle"
    CARDS: ClassVar[Mapping[str, str]] = {"Tesla T4": "NvidiaTeslaT4", "cpu": ""}
    GONE: ClassVar[Mapping[str, str]] = {
        "P100": "the P100 is retired, a pair of T4 runs in its place"
    }
    COUNTS_OF: ClassVar[Mapping[str, Sequence[int]]] = {"Tesla T4": (2,), "cpu": (1,)}

    machines: int = Field(2, ge=1, le=1024)  # an account may run two GPU sessions at once
    session_s: float = Field(USUAL_SESSION_S, ge=60.0, lt=_WALL_S)
    image: str = Field("", pattern=r"^(gcr\.io/kaggle\S+)?$")  # empty: Kaggle's latest

    @field_validator("secrets")
    @classmethod
    def _none(cls, secrets: tuple[str, ...]) -> tuple[str, ...]:
        if secrets:
            raise ValueError(
                "on Kaggle a secret is attached to one notebook by hand, and each launch is a new "
                "one: no secret can reach it"
            )
        return secrets


class _Absent(Rejected):
    """There is no such kernel, as far as one answer can tell."""


def classify(error: BaseException) -> LaunchFailed | None:
    """What an exception of the SDK means; ``None`` for one that must not happen."""
    if isinstance(error, SystemExit):
        return Rejected(_NO_CREDENTIALS)
    return classify_http(error, _absent)


def _absent(answer: Answer) -> LaunchFailed | None:
    forbidden = answer.status == 403 and "kernels.get" in answer.words
    absent = answer.told and (answer.status == 404 or forbidden)
    return _Absent(answer.words) if absent else None


class KagglePlatform(SdkPlatform[KaggleConfig, Any]):
    """The kernels of the account whose credentials are found."""

    KIND: ClassVar[str] = "kaggle"
    EXTRA: ClassVar[str] = "kaggle"
    MODULE: ClassVar[str] = "kagglesdk"
    VARIABLES: ClassVar[tuple[str, ...]] = ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY")
    Config: ClassVar[type[RentedConfig]] = KaggleConfig
    _owner = ""  # the user name that the credentials belong to, asked for once

    def create(self, order: Order) -> Handle:
        """Push a script under the order's name, which starts a run."""
        if not _SLUG.fullmatch(order.name):
            raise Rejected(
                f"{order.name!r} cannot name a kernel, which has 5 to 50 lowercase letters, digits "
                "and single dashes"
            )
        ref = f"{self._account()}/{order.name}"
        self._kernels("push", lambda api: _push(api, self._request(order, ref)), sent=True)
        return {"kernel": ref}

    def find(self, name: str) -> Handle | None:
        """The kernel of that name while a run of any of its versions is not over."""
        ref = f"{self._account()}/{name}"
        kernel = self._kernel(ref)
        return {"kernel": ref} if kernel is not None and self._live(ref, kernel) else None

    def end(self, handle: Handle) -> Settlement:
        """Delete the kernel, and so all its versions, while a run of any of them is not over."""
        ref = str(handle.get("kernel"))
        if ref.partition("/")[0] != self._account():
            raise Rejected(f"the kernel {ref} does not belong to the account {self._account()}")
        kernel = self._kernel(ref)
        if kernel is None:
            return Closed(f"there is no kernel {ref}")
        live = self._live(ref, kernel)
        if not live:
            return Closed(f"the kernel {ref} has ended")
        try:
            self._kernels("delete", lambda api: _delete(api, ref))
        except Rejected as error:
            if self._kernel(ref) is None:
                return Closed(f"the kernel {ref} is deleted")
            until_s = _unix_s(kernel.last_run_time) or self._clock.wall_s()
            until_s += self._config.claim_window_s + self._config.session_s
            return Bounded(until_s, f"{live}; {error}; its timeout ends it")
        return Pending(f"{live}; its kernel is being deleted")

    def running(self, prefix: str) -> Sequence[tuple[str, Handle]]:
        """The account's kernels that were pushed of late and have a run that is not over."""
        oldest_s = self._clock.wall_s() - _RECENT_S
        found: list[tuple[str, Handle]] = []
        for kernel in self._listed():
            ref = kernel.ref.lower()
            owner, _, slug = ref.rpartition("/")
            ours = owner == self._account() and slug.startswith(prefix)
            if (
                ours
                and (_unix_s(kernel.last_run_time) or oldest_s) >= oldest_s
                and self._live(ref, kernel)
            ):
                found.append((slug, {"kernel": ref}))
        return found

    def quota(self) -> Quota | None:
        """GPU hours of this week."""
        if self._config.card == "cpu":
            return None
        told = self._kernels("quota", lambda api: api.get_accelerator_quota_statistics())
        gpu, renews = told.gpu_quota, told.quota_refresh_time
        if gpu is None or gpu.total_time_allowed is None:
            return None
        used_h = gpu.time_used.total_seconds() / 3600 if gpu.time_used else 0.0
        granted_h = gpu.total_time_allowed.total_seconds() / 3600
        return Quota(used_h, granted_h, _unix_s(renews))

    def _request(self, order: Order, ref: str) -> Any:
        from kagglesdk.kernels.types.kernels_api_service import ApiSaveKernelRequest

        request = ApiSaveKernelRequest()
        request.slug, request.new_title = ref, order.name
        request.text, request.language, request.kernel_type = _script(order), "python", "script"
        request.is_private = request.enable_internet = True
        request.enable_gpu = self._config.card != "cpu"
        request.machine_shape = self._config.CARDS[self._config.card] or None
        request.docker_image = self._config.image or None
        request.session_timeout_seconds = int(self._config.session_s)
        return request

    def _kernel(self, ref: str) -> Any | None:
        """A kernel's metadata; ``None`` where it is proved that there is none."""
        try:
            told = self._kernels("get", lambda api: api.get_kernel(_of(ref, "GetKernel")))
        except _Absent as error:
            # Kaggle forbids to see what is not there: only with our own listing is that a proof.
            if any(kernel.ref.lower() == ref for kernel in self._listed(ref.rpartition("/")[2])):
                raise Rejected(f"{error}, but {ref} is listed") from None
            return None
        if told.metadata is None:
            raise ProtocolError(f"Kaggle: get: no metadata of {ref}")
        return told.metadata

    def _live(self, ref: str, kernel: Any) -> str:
        """The runs of a kernel's versions that are not over, in words; empty where all are."""
        versions = kernel.current_version_number or 1
        labels = [f"v{n}" for n in range(1, versions + 1)] if versions > 1 else [None]
        return ", ".join(filter(None, (self._live_run(ref, label) for label in labels)))

    def _live_run(self, ref: str, label: str | None) -> str:
        request = _of(ref, "GetKernelSessionStatus", version_label=label)
        try:
            told = self._kernels("status", lambda api: api.get_kernel_session_status(request))
        except _Absent:
            return ""
        return "" if told.status.name in _OVER else f"run {label or 'v1'} is {told.status.name}"

    def _listed(self, search: str = "") -> Iterator[Any]:
        """Metadata of all kernels of the account, or of those that a search finds."""
        from kagglesdk.kernels.types.kernels_api_service import ApiListKernelsRequest
        from kagglesdk.kernels.types.kernels_enums import KernelsListSortType, KernelsListViewType

        request = ApiListKernelsRequest()
        request.group = KernelsListViewType.PROFILE
        request.sort_by = KernelsListSortType.DATE_CREATED
        request.search, request.page_size = search, 100
        request.language = request.kernel_type = request.output_type = "all"

        def page(token: str) -> tuple[Sequence[Any], object]:
            request.page_token = token
            told = self._kernels("list", lambda api: api.list_kernels(request))
            return told.kernels, told.next_page_token

        return pages("kaggle list", page)

    def _account(self) -> str:
        """The user name that the credentials belong to."""
        if not self._owner:
            self._owner = self._ask("sign in", _user_of).lower()
        return self._owner

    def _kernels(self, what: str, call: Callable[[Any], T], sent: bool = False) -> T:
        return self._ask(what, lambda client: call(client.kernels.kernels_api_client), sent)

    _classify = staticmethod(classify)

    def _talk(self, call: Callable[[Any], T]) -> T:
        with self._open() as client:  # anew each time: its token may have been renewed in the file
            return call(client)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        from kagglesdk import KaggleClient, KaggleEnv

        user, key = os.environ.get("KAGGLE_USERNAME"), os.environ.get("KAGGLE_KEY")
        client = KaggleClient(KaggleEnv.PROD, username=user, password=key)
        http = client.http_client()
        http._endpoint = os.environ.get("KAGGLE_API_BASE_URL") or http._endpoint
        with client:
            session = http._session
            if session.auth is None:
                raise Rejected(_NO_CREDENTIALS)
            auth = session.auth
            pair = auth if isinstance(auth, tuple) else ("", auth.token)
            self._secrets[:] = [pair[1], base64.b64encode(":".join(pair).encode()).decode()]
            for scheme in ("http://", "https://"):
                session.mount(scheme, _edge(self._config.deadline_s))
            yield client


def _told(response: Response) -> int:
    """An answer's status: the body's own where HTTP says 200 over an error.

    Raises a LaunchFailed for a success that no answer of Kaggle's is: another's page, or other JSON.
    """
    if response.status_code >= 400:
        return response.status_code
    try:
        body = response.json()
    except ValueError:
        words = f"{response.status_code} and no JSON: somebody else's answer"
        raise Unreachable(words, sent=True) from None
    if not isinstance(body, dict):
        raise ProtocolError(f"{response.status_code} and no JSON object")
    code = body.get("code")
    return code if isinstance(code, int) and code >= 400 else response.status_code


def _edge(timeout_s: float) -> HTTPAdapter:
    """Sends once, with a timeout, and judges the answer before the SDK does.

    The SDK sets no timeout, and takes ``[]`` or an error without a message for an empty success.
    """
    from requests import HTTPError, PreparedRequest
    from requests.adapters import HTTPAdapter

    class Edge(HTTPAdapter):
        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            response = super().send(request, *args, **{**options, "timeout": timeout_s})
            response.status_code = _told(response)
            if response.status_code >= 400:
                raise HTTPError(response=response)
            return response

    return Edge(max_retries=0)


def _user_of(client: Any) -> str:
    auth = client.http_client()._session.auth
    if isinstance(auth, tuple):
        return str(auth[0])
    from kagglesdk.security.types.oauth_service import IntrospectTokenRequest

    request = IntrospectTokenRequest()
    request.token = auth.token
    told = client.security.oauth_client.introspect_token(request)
    if not told.active or not told.username:
        raise Rejected("the access token is not valid")
    return str(told.username)


def _of(ref: str, call: str, **fields: str | None) -> Any:
    """The SDK's request of a call about one kernel."""
    from kagglesdk.kernels.types import kernels_api_service

    request = getattr(kernels_api_service, f"Api{call}Request")()
    request.user_name, _, request.kernel_slug = ref.partition("/")
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def _push(api: Any, request: Any) -> None:
    """Save a kernel and judge the answer. Raises a LaunchFailed."""
    told = api.save_kernel(request)
    if told.error:
        raise (NoSlots if _FULL.search(told.error) else Rejected)(told.error)
    missing = [
        *told.invalid_dataset_sources,
        *told.invalid_competition_sources,
        *told.invalid_kernel_sources,
        *told.invalid_model_sources,
    ]
    if missing:
        with suppress(Exception):  # else whoever closes the bill of this launch finds it by name
            _delete(api, request.slug)
        raise Rejected(f"unknown sources: {', '.join(missing)}")
    if told.ref.rpartition("/")[2] != request.slug.rpartition("/")[2]:
        raise ProtocolError(f"{request.slug} was pushed and {told.ref or 'nothing'} was saved")


def _delete(api: Any, ref: str) -> None:
    """Delete a kernel. Raises Rejected where the answer's body says that it was not done."""
    if refused := api.delete_kernel(_of(ref, "DeleteKernel")).error_message:
        raise Rejected(refused)


def _unix_s(utc: datetime | None) -> float | None:
    return utc.replace(tzinfo=UTC).timestamp() if utc else None


def _script(order: Order) -> str:
    """A kernel's text: it has no variables but those that it sets itself."""
    return (
        f'import os\nos.environ["TENURE_START"] = {order.packet!r}\n'
        f"exec(compile({order.program!r}, 'start.py', 'exec'), {{'__name__': '__main__'}})\n"
    )
