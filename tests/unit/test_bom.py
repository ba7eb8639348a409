"""The bill of materials: valid CycloneDX 1.6, complete, and the same for the same model."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from gates.bom import bill_of_materials, written
from tenure_protocol.codec import Json
from tenure_protocol.records import FileEntry
from tests.record_builders import MEASURED

FILES = {"weights.bin": FileEntry("a" * 64, 3), "parts/scaler.bin": FileEntry("b" * 64, 5)}
CARD = {"card": "NVIDIA H200", "cards": 1, "compute_capability": "9.0", "driver": "570.1"}


def made(environment: Mapping[str, object] = MEASURED) -> dict[str, Json]:
    return bill_of_materials(
        name="vol",
        record="r" * 26,
        seed=11,
        config={"lr": 0.003, "layers": [1, 2]},
        code="c" * 26,
        data="d" * 26,
        files=FILES,
        environment=environment,
    )


def components(bom: Mapping[str, Json]) -> dict[str, dict[str, Json]]:
    rows = bom["components"]
    assert isinstance(rows, list)
    return {str(row["bom-ref"]): row for row in rows if isinstance(row, dict)}


def properties(row: Json) -> dict[str, str]:
    assert isinstance(row, dict)
    found = row.get("properties", [])
    assert isinstance(found, list)
    return {str(one["name"]): str(one["value"]) for one in found if isinstance(one, dict)}


def test_it_is_valid_and_holds_model_data_and_libraries() -> None:
    bom = made({**MEASURED, **CARD, "python": "CPython 3.11.7", "builds": {"numpy": "e" * 64}})
    text = json.dumps(bom)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    metadata = bom["metadata"]
    assert isinstance(metadata, dict)
    model = metadata["component"]
    assert isinstance(model, dict) and model["type"] == "machine-learning-model"
    files = model["components"]
    assert isinstance(files, list)
    hashes = {row["name"]: row["hashes"] for row in files if isinstance(row, dict)}
    assert hashes == {
        name: [{"alg": "SHA-256", "content": entry.sha256}] for name, entry in FILES.items()
    }
    assert properties(model)["tenure:config"] == '{"layers":[1,2],"lr":0.003}'
    found = components(bom)
    assert (found["data"]["type"], found["data"]["version"]) == ("data", "d" * 26)
    numpy = found["package:numpy"]
    assert (numpy["type"], numpy["version"]) == ("library", "2.4.6")
    assert numpy["purl"] == "pkg:pypi/numpy@2.4.6"
    assert properties(numpy) == {"tenure:build": "e" * 64}
    assert "purl" not in found["package:tenure"]  # a checkout, which no index has
    assert (found["python"]["name"], found["python"]["version"]) == ("CPython", "3.11.7")
    assert found["card"]["name"] == "NVIDIA H200" and found["driver"]["version"] == "570.1"
    assert "deterministic_algorithms" in properties(metadata)["tenure:environment:determinism"]
    (depends,) = [row for row in bom["dependencies"] if row["ref"] == "model"]  # type: ignore[union-attr, index, call-overload]
    assert set(depends["dependsOn"]) == set(found)  # type: ignore[arg-type, call-overload, index]


def test_equal_models_have_equal_bills() -> None:
    first, again = written(made()), written(made())
    assert first == again
    assert b"timestamp" not in first
    other = {**MEASURED, "packages": {"numpy": "2.4.7"}}
    assert written(made(other)) != first
