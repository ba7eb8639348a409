"""The bill of materials of a model: its files, and what computed them, as a CycloneDX ML-BOM.

CycloneDX 1.6 in JSON (https://cyclonedx.org/docs/1.6/json/). Equal models and environments give equal
bytes: the serial number is derived from the record, and no time is told.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tenure_protocol.codec import Json, canonical, parse
from tenure_protocol.records import FileEntry

if TYPE_CHECKING:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component

_EDITABLE = " (editable)"  # how a fingerprint marks an installed checkout
#: Fields of an environment that are components of their own or rows of them.
_APART = ("packages", "builds", "python", "card", "cards", "compute_capability", "driver")


def bill_of_materials(
    *,
    name: str,
    record: str,
    seed: int,
    config: Mapping[str, object],
    code: str,
    data: str,
    files: Mapping[str, FileEntry],
    environment: Mapping[str, object],
) -> dict[str, Json]:
    """The ML-BOM of one member of a record, computed in ``environment`` (a fingerprint)."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    described = {"record": record, "seed": seed, "config": config, "code": code, "data": data}
    model = Component(
        name=name,
        version=f"{record}/{seed}",
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        components=[_file(file, entry) for file, entry in sorted(files.items())],
        properties=_properties("tenure", described),
    )
    made_of = [
        Component(
            name=f"{name} code", version=code, type=ComponentType.APPLICATION, bom_ref="code"
        ),
        Component(name=f"{name} data", version=data, type=ComponentType.DATA, bom_ref="data"),
        *_platform(environment),
        *_libraries(environment),
    ]
    scalars = {field: value for field, value in environment.items() if field not in _APART}
    bom = Bom(
        components=made_of,
        metadata=BomMetaData(
            component=model, properties=_properties("tenure:environment", scalars)
        ),
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"urn:tenure:{name}:{record}:{seed}"),
    )
    bom.register_dependency(model, made_of)
    found = parse(JsonV1Dot6(bom).output_as_string().encode(), "the bill of materials")
    metadata = found["metadata"]
    assert isinstance(metadata, dict)
    metadata.pop("timestamp", None)  # the library's own clock
    return found


def _file(name: str, entry: FileEntry) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType

    return Component(
        name=name,
        type=ComponentType.FILE,
        bom_ref=f"file:{name}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=entry.sha256)],
        properties=_properties("tenure", {"bytes": entry.size}),
    )


def _platform(environment: Mapping[str, object]) -> Iterator[Component]:
    """The interpreter, the card, and its driver where there is one."""
    from cyclonedx.model.component import Component, ComponentType

    python = str(environment.get("python") or "")
    if python:
        implementation, _, version = python.rpartition(" ")
        yield Component(
            name=implementation or "Python",
            version=version,
            type=ComponentType.PLATFORM,
            bom_ref="python",
        )
    card = {name: environment.get(name) for name in ("cards", "compute_capability")}
    yield Component(
        name=str(environment.get("card") or "cpu"),
        type=ComponentType.DEVICE,
        bom_ref="card",
        properties=_properties("tenure", card),
    )
    if driver := environment.get("driver"):
        yield Component(
            name="driver of the card",
            version=str(driver),
            type=ComponentType.DEVICE_DRIVER,
            bom_ref="driver",
        )


def _libraries(environment: Mapping[str, object]) -> Iterator[Component]:
    """A component for every installed package.

    ``builds`` says for some which build it is (a digest of its RECORD). That is a property and no hash
    of the component: one of those is compared with the digest of an archive.
    """
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    packages, builds = environment.get("packages"), environment.get("builds")
    if not isinstance(packages, Mapping):
        return
    known = builds if isinstance(builds, Mapping) else {}
    for name, version in sorted(packages.items()):
        text = str(version)
        checkout = text.endswith(
            _EDITABLE
        )  # came from no index, so that no address of one names it
        yield Component(
            name=str(name),
            version=text,
            type=ComponentType.LIBRARY,
            bom_ref=f"package:{name}",
            purl=None if checkout else PackageURL("pypi", name=str(name), version=text),
            properties=_properties("tenure", {"build": known.get(name)}),
        )


def _properties(prefix: str, values: Mapping[str, object]) -> list[Property]:
    """Name and value of each; what is no string is written as JSON, a missing one left out."""
    from cyclonedx.model import Property

    return [
        Property(
            name=f"{prefix}:{name}",
            value=value if isinstance(value, str) else canonical(value).decode(),
        )
        for name, value in sorted(values.items())
        if value is not None
    ]


def written(bom: Json) -> bytes:
    """The file of a bill of materials, the same for equal ones."""
    return canonical(bom) + b"\n"
