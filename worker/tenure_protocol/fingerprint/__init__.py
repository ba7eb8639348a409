"""What a process can say about the environment its numbers come from, and how two of them differ.

The promise a pinned job makes is exact: *bitwise reproducible on the same device class, build and
software versions*. This package measures that class, build and those versions, turns a measurement
into a requirement (:func:`pin`), and names every field in which two of them differ. PyTorch itself
promises no reproducibility across releases, commits or platforms
(https://docs.pytorch.org/docs/stable/notes/randomness.html), which is why they all count.

Two processes on one machine with the same settings measure the same: no times, process numbers,
free memory or load. Standard library only at import; torch and pynvml are asked when installed.
``python -m tenure_protocol.fingerprint`` prints a measurement, on any machine that has the wheel.
"""

from tenure_protocol.fingerprint.fields import (
    CLOSED as CLOSED,
)
from tenure_protocol.fingerprint.fields import (
    FIELD_CLASSES as FIELD_CLASSES,
)
from tenure_protocol.fingerprint.fields import (
    FIELDS as FIELDS,
)
from tenure_protocol.fingerprint.fields import (
    KNOWN_WORDS as KNOWN_WORDS,
)
from tenure_protocol.fingerprint.fields import (
    OWN_PACKAGES as OWN_PACKAGES,
)
from tenure_protocol.fingerprint.fields import (
    Difference as Difference,
)
from tenure_protocol.fingerprint.fields import (
    Field as Field,
)
from tenure_protocol.fingerprint.fields import (
    Kind as Kind,
)
from tenure_protocol.fingerprint.fields import (
    Known as Known,
)
from tenure_protocol.fingerprint.fields import (
    changes as changes,
)
from tenure_protocol.fingerprint.fields import (
    compare as compare,
)
from tenure_protocol.fingerprint.fields import (
    field_of as field_of,
)
from tenure_protocol.fingerprint.fields import (
    refusing as refusing,
)
from tenure_protocol.fingerprint.fields import (
    telling as telling,
)
from tenure_protocol.fingerprint.pinning import (
    NO_TORCH as NO_TORCH,
)
from tenure_protocol.fingerprint.pinning import (
    PINNED_DETERMINISM as PINNED_DETERMINISM,
)
from tenure_protocol.fingerprint.pinning import (
    THREAD_VARIABLES as THREAD_VARIABLES,
)
from tenure_protocol.fingerprint.pinning import (
    TORCH_NOT_ASKED as TORCH_NOT_ASKED,
)
from tenure_protocol.fingerprint.pinning import (
    apply_determinism as apply_determinism,
)
from tenure_protocol.fingerprint.pinning import (
    environment_variables as environment_variables,
)
from tenure_protocol.fingerprint.pinning import (
    missing_from_pin as missing_from_pin,
)
from tenure_protocol.fingerprint.pinning import (
    pin as pin,
)
from tenure_protocol.fingerprint.process import (
    IMAGE_VARIABLE as IMAGE_VARIABLE,
)
from tenure_protocol.fingerprint.process import (
    LOCK_VARIABLE as LOCK_VARIABLE,
)
from tenure_protocol.fingerprint.process import (
    measure as measure,
)
