"""What a warrant is on the wire: gates/ signs it, the live side verifies it."""

from __future__ import annotations

from typing import Literal

#: An in-toto Statement v1 (https://github.com/in-toto/attestation/tree/main/spec/v1) in a DSSE envelope.
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:tenure:warrant:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"

#: Of a deployment: what is live, and what runs beside it and decides nothing.
Slot = Literal["live", "shadow"]
SLOTS: tuple[Slot, ...] = ("live", "shadow")
