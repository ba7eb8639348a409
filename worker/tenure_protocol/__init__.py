"""What both sides of the wire agree on: records, keys, the lease, the store, the only clock."""

from tenure_protocol.snapshots import PROTOCOL_VERSION

__all__ = ["PROTOCOL_VERSION"]
