"""The same real S3 server with users, a role and STS: credentials that open some keys alone.

Three users: the operator, who may do everything and assume the role; a stranger, who may neither; and
a neighbour, who may do everything in the store and whom the role does not trust. What a session may is
what both its role and its own policy allow; the role allows everything in S3, so that what a test sees
refused was refused by the session's policy alone.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.seaweed import Seaweed

OPERATOR = ("OPERATORSKEY", "operators-secret-words")
STRANGER = ("STRANGERSKEY", "strangers-secret-words")
NEIGHBOUR = ("NEIGHBOURSKEY", "neighbours-secret-words")

ROLE = "arn:aws:iam::000000000000:role/tenure-worker"
ROLE_WITHOUT_RIGHTS = "arn:aws:iam::000000000000:role/tenure-nobody"
_ACCOUNT = "arn:aws:iam::000000000000:user/"  # the ARN that the server gives a user of s3.json
#: Signs the tokens of sessions. Who knows it can write any token: one that has expired, for a test.
SIGNING_KEY = b"a key of 32 bytes, for tests only"[:32]


class SeaweedIam(Seaweed):
    """A server that knows its users by s3.json and its role by iam.json."""

    access_key, secret_key = OPERATOR

    def __init__(self, folder: Path, policies: Mapping[str, object] | None = None) -> None:
        """``policies`` are documents, each of a further user of that name with keys of its own."""
        super().__init__(folder)
        self._policies = dict(policies or {})

    def start(self) -> None:
        """Start, and wait until it takes requests; the bucket exists afterwards."""
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        users = [{**_user(name, keys_of(name)), "policyNames": [name]} for name in self._policies]
        documents = [
            {"name": name, "document": document} for name, document in self._policies.items()
        ]
        for path, content, more in (
            (self._users, _USERS, {"identities": [*_USERS["identities"], *users]}),
            (self._roles, _ROLES, {"policies": [*_POLICIES, *documents]}),
        ):
            path.write_text(json.dumps({**content, **more}))
        super().start()

    @property
    def _users(self) -> Path:
        return self._folder.with_suffix(".s3.json")

    @property
    def _roles(self) -> Path:
        return self._folder.with_suffix(".iam.json")

    def _options(self) -> list[str]:
        return [
            f"-s3.config={self._users}",
            f"-s3.iam.config={self._roles}",
            "-s3.iam=true",
            "-s3.iam.readOnly=false",  # else it refuses changes of users to everybody alike
        ]

    def _environ(self) -> dict[str, str]:
        # Its users are those of s3.json: keys that the tests' environment holds are nobody's here.
        return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def keys_of(name: str) -> tuple[str, str]:
    """The access key and the secret of a user who has a policy."""
    return f"{name.upper().replace('-', '')}KEY", f"secret-words-of-{name}"


def _user(name: str, keys: tuple[str, str], *actions: str) -> dict[str, object]:
    credentials = [{"accessKey": keys[0], "secretKey": keys[1]}]
    return {"name": name, "credentials": credentials, "actions": list(actions)}


def _document(**statement: object) -> dict[str, object]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement}]}


def _role(arn: str, *policies: str) -> dict[str, object]:
    # Trusts one user by its ARN: '*' would let a session assume the role again, without its policy.
    trusted = {"AWS": f"{_ACCOUNT}operator"}
    return {
        "roleName": arn.rpartition("/")[2],
        "roleArn": arn,
        "attachedPolicies": list(policies),
        "trustPolicy": _document(Principal=trusted, Action=["sts:AssumeRole"]),
    }


_USERS = {
    "identities": [
        _user("operator", OPERATOR, "Admin"),
        _user("neighbour", NEIGHBOUR, "Admin"),
        _user("stranger", STRANGER),
    ]
}
_POLICIES = [
    {"name": "everything", "document": _document(Action=["s3:*"], Resource=["arn:aws:s3:::*"])}
]
_ROLES = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "tenure-tests",
        "signingKey": base64.b64encode(SIGNING_KEY).decode(),
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "policies": _POLICIES,
    "roles": [_role(ROLE, "everything"), _role(ROLE_WITHOUT_RIGHTS)],
}


@contextmanager
def running(folder: Path, policies: Mapping[str, object] | None = None) -> Iterator[SeaweedIam]:
    """A server for the time of the block."""
    server = SeaweedIam(folder, policies)
    server.start()
    try:
        yield server
    finally:
        server.stop()
