"""Lightning: a job of one image and one command in a teamspace. It ends, and is billed, with its command.

The service keeps names unique by renaming: a second create under one name makes another job, of another
name. So each job carries the name it was ordered under in a variable of its own, by which twins are found.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from runners.http import Answer, classify_http
from runners.order import Handle, Order, RentedConfig
from runners.sdk import SdkPlatform, pages
from tenure.dispatch.contract import (
    Closed,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Rejected,
    Settlement,
)

_VARIABLES = ("LIGHTNING_USER_ID", "LIGHTNING_API_KEY", "LIGHTNING_AUTH_TOKEN")
_ENDED = ("stopped", "completed", "failed", "deleted")  # any other state may still be billed
_ENDING = ("stopping", "stop", "delete", "complete", "fail")  # nothing more needs to be asked for
_NAME = "TENURE_MACHINE"  # the variable that holds the name a job was ordered under
_RESOURCE_EXHAUSTED = 8  # google.rpc.Code, in the body of a refusal


class LightningConfig(RentedConfig):
    """Further keys of a ``[runners.<name>]`` section with ``kind = "lightning"``."""

    TITLE: ClassVar[str] = "Lightning"
    COUNTS: ClassVar[Sequence[int]] = (1, 2, 4, 8)
    COUNTS_OF: ClassVar[Mapping[str, Sequence[int]]] = {"cpu": (1,), "NVIDIA B200": (1, 8)}
    CARDS: ClassVar[Mapping[str, str]] = {  # the slug of lightning_sdk.Machine, without the count
        "cpu": "cpu-4",
        "Tesla T4": "lit-t4",
        "NVIDIA L4": "lit-l4",
        "NVIDIA L40S": "lit-l40s",
        "NVIDIA A100-SXM4-40GB": "lit-a100-40gb",
        "NVIDIA A100-SXM4-80GB": "lit-a100-80gb",
        "NVIDIA H100 80GB HBM3": "lit-h100",
        "NVIDIA H200": "lit-h200",
        "NVIDIA B200": "lit-b200",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "lit-rtx-6000-pro",
    }

    teamspace: str  # its name, or its id where several of that name can be seen
    image: str = Field(
        "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime", min_length=1
    )  # with sh, base64 and python3
    image_secret: str = ""  # name of the secret that holds the registry's credentials
    cloud_account: str = ""  # its id; empty: the teamspace's default
    interruptible: bool = False  # cheaper, and may be taken away

    @field_validator("teamspace")
    @classmethod
    def _teamspace(cls, name: str) -> str:
        if not name.strip() or "/" in name:
            raise ValueError(f"{name!r}: write the name of the teamspace alone, without its owner")
        return name


class LightningPlatform(SdkPlatform[LightningConfig, Any]):
    """The calls of ``lightning_sdk``; see :class:`runners.order.Platform` for what each must do."""

    KIND: ClassVar[str] = "lightning"
    EXTRA: ClassVar[str] = "lightning"
    MODULE: ClassVar[str] = "lightning_sdk"
    VARIABLES: ClassVar[tuple[str, ...]] = _VARIABLES
    Config: ClassVar[type[RentedConfig]] = LightningConfig
    _project = ""  # id of the teamspace, looked up once

    def create(self, order: Order) -> Handle:
        """Submit one job; where no machine is free, it waits there for as long as the claim window."""
        project = self._teamspace()
        ident = self._ask(
            "create", lambda sdk: self._submit(sdk, order, project), True, [order.packet]
        )
        self._newborns.add(ident)
        return {"id": ident}

    def find(self, name: str) -> Handle | None:
        """The job of this name while it may cost money, else one that was renamed because of it."""
        project = self._teamspace()
        job = self._job("find", lambda sdk: sdk.jobs_service_find_job(project, name=name))
        if job is None:
            return None
        if job.name != name:
            raise ProtocolError(f"lightning find: asked for {name}, the service told of {job.name}")
        if job.state not in _ENDED:
            return {"id": job.id}
        return next((handle for known, handle in self.running(name) if known == name), None)

    def end(self, handle: Handle) -> Settlement:
        """Ask for the end of a job that is not ending; closed in an end state, or when it is gone."""
        ident = handle.get("id")
        if not isinstance(ident, str):
            raise Rejected(f"no job of Lightning is meant by the handle {dict(handle)!r}")
        project = self._teamspace()
        job = self._job("status", lambda sdk: sdk.jobs_service_get_job(project, ident))
        if job is None:
            if ident in self._newborns:
                return Pending(f"Lightning does not know the new job {ident} yet")
            return Closed(f"Lightning has no job {ident}")
        if job.state in _ENDED:
            return Closed(f"job {ident} is {job.state}")
        if job.state not in _ENDING:
            self._ask("stop", lambda sdk: _stop(sdk, project, ident))
        return Pending(f"job {ident} was {job.state!r} and is to stop")

    def running(self, prefix: str) -> Sequence[tuple[str, Handle]]:
        """All jobs of the teamspace that have not ended, under the names they were ordered under."""
        project = self._teamspace()
        jobs = pages("lightning listing", lambda token: self._page(project, token))
        named = [(_ordered_as(job), {"id": job.id}) for job in jobs if job.state not in _ENDED]
        return [(name, handle) for name, handle in named if name.startswith(prefix)]

    # ---------------------------------------------------------------------------- one call each

    def _submit(self, sdk: Any, order: Order, project: str) -> str:
        from lightning_sdk.lightning_cloud.openapi import (
            JobsServiceCreateJobBody,
            V1EnvVar,
            V1JobSpec,
        )

        config, word = self._config, self._config.CARDS[self._config.card]
        variables = {"TENURE_START": order.packet, _NAME: order.name}
        spec = V1JobSpec(
            cluster_id=config.cloud_account,
            command=order.shell,
            entrypoint="sh -c",
            env=[V1EnvVar(name=name, value=value) for name, value in variables.items()]
            + [V1EnvVar(name=name, from_secret=name) for name in order.secrets],
            image=config.image,
            image_secret_ref=config.image_secret,
            include_credentials=False,  # the account's own have no business on the machine
            instance_name=word if config.card == "cpu" else f"{word}-{config.cards}",
            max_run_attempts=1,  # launching again is the ladder's part
            spot=config.interruptible,
        )
        body = JobsServiceCreateJobBody(name=order.name, spec=spec)
        return str(_known(sdk.jobs_service_create_job(body, project)).id)

    def _teamspace(self) -> str:
        """Id of the teamspace, by what the account can see."""
        if not self._project:
            wanted = self._config.teamspace
            answer = self._ask(
                "teamspaces",
                lambda sdk: sdk.projects_service_list_memberships(filter_by_user_id=True),
            )
            rows = _rows(answer, "memberships")
            ids = {r.project_id for r in rows if wanted in (r.project_id, r.name, r.display_name)}
            if len(ids) != 1:
                seen = ", ".join(sorted(f"{row.name} ({row.project_id})" for row in rows))
                many = "several teamspaces" if ids else "no teamspace"
                raise Rejected(f"this account of Lightning has {many} {wanted!r}; it has {seen}")
            self._project = str(ids.pop())
        return self._project

    def _page(self, project: str, token: str) -> tuple[list[Any], object]:
        asked = {"standalone": True, "limit": "100", **({"page_token": token} if token else {})}
        page = self._ask("listing", lambda sdk: sdk.jobs_service_list_jobs(project, **asked))
        return [_known(job) for job in _rows(page, "jobs")], page.next_page_token

    def _job(self, what: str, call: Callable[[Any], Any]) -> Any:
        """A job; ``None`` where the service says that there is none."""

        def look(sdk: Any) -> Any:
            try:
                return _known(call(sdk))
            except Exception as error:
                # Another 404, of a proxy or a wrong address, is a page of text and proves nothing.
                answer = Answer.to(error)
                if answer is not None and answer.status == 404 and answer.told:
                    return None
                raise

        return self._ask(what, look)

    def _open(self) -> Any:
        """The SDK's client. It reaches nobody yet, and without credentials it would open a browser."""
        values = [os.environ.get(name, "") for name in _VARIABLES]
        if not any(values[1:]) or not all(v.isascii() and v.isprintable() for v in values):
            raise Rejected(
                "no credentials of Lightning: set LIGHTNING_USER_ID and LIGHTNING_API_KEY, "
                "each to one line of plain characters"
            )
        user, key, token = values
        basic = base64.b64encode(f"{user}:{key}".encode()).decode()  # as the SDK sends them
        self._secrets[:] = [basic, key, token]
        os.environ.setdefault("LIGHTNING_DISABLE_VERSION_CHECK", "1")  # its import would ask PyPI
        from lightning_sdk.lightning_cloud.rest_client import LightningClient

        sdk = LightningClient(retry=False)
        settings, pool = sdk.api_client.configuration, sdk.api_client.rest_client.pool_manager
        settings.host = (os.environ.get("LIGHTNING_CLOUD_URL") or settings.host).rstrip("/")
        settings.request_timeout = (self._config.deadline_s, self._config.deadline_s)
        settings.debug = False  # $DEBUG=1 would print each request with its credentials
        pool.connection_pool_kw["retries"] = False  # urllib3's own: three, and redirects
        return sdk

    @staticmethod
    def _classify(error: BaseException) -> LaunchFailed | None:
        if isinstance(error, ConnectionError) and "Authentication failed" in str(error):  # a 401
            return Rejected("the service does not accept the credentials in LIGHTNING_API_KEY")
        return classify_http(error, _judge)


def _judge(answer: Answer) -> LaunchFailed | None:
    """No machine and no credit have one code; what is there already was made by a create before."""
    if answer.told.get("code") == _RESOURCE_EXHAUSTED:
        return NoSlots(answer.words)
    return ProtocolError(answer.words) if answer.status == 409 else None


def _known(job: Any) -> Any:
    """A job that the service tells of; without an id it tells of none."""
    if not isinstance(getattr(job, "id", None), str) or not job.id:
        raise ProtocolError("the answer holds no job")
    return job


def _rows(answer: Any, name: str) -> list[Any]:
    rows = getattr(answer, name, None)
    if not isinstance(rows, list) or None in rows:
        raise ProtocolError(f"lightning: the answer holds no list of {name}")
    return rows


def _ordered_as(job: Any) -> str:
    """The name that a job was ordered under."""
    variables = getattr(job.spec, "env", None) or []
    return next((str(v.value) for v in variables if v.name == _NAME and v.value), str(job.name))


def _stop(sdk: Any, project: str, ident: str) -> None:
    from lightning_sdk.lightning_cloud.openapi import JobsServiceUpdateJobBody

    sdk.jobs_service_update_job(JobsServiceUpdateJobBody(state="stop"), project, ident)
