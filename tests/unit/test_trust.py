"""Whose warrants are believed: trusted keys, revoked ones, and who may sign at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gates.deploy import deploy
from gates.slots import current, proved
from gates.trust import Trust, load_signer, load_trust
from gates.warrant import BadWarrant, DeployKey, make_key, read_log
from tenure.errors import UsageError
from tenure.settings import Settings, load_settings
from tenure_protocol.records import ModelRecord
from tenure_protocol.store.memory import MemoryStore
from tests.record_builders import research, retrain
from tests.tenure_command import complaint, tenure


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Settings]:
    """Settings with this ``[gates]`` section, in a folder with two keys, old and new."""
    for name in ("old", "new"):
        make_key(tmp_path / "keys" / f"{name}.pem")
    monkeypatch.chdir(tmp_path)

    def settings(gates: str) -> Settings:
        file = tmp_path / "tenure.toml"
        file.write_text(f"[gates]\n{gates}\n")
        return load_settings(file, environ={})

    return settings


def key(name: str) -> DeployKey:
    from gates.warrant import load_deploy_key

    return load_deploy_key(f"file:keys/{name}.pem")


def ids(trust: Trust) -> list[str]:
    return [one.id for one in trust.keys]


def test_by_default_the_half_beside_the_deploy_key_is_trusted(
    house: Callable[[str], Settings], tmp_path: Path
) -> None:
    settings = house('deploy_key = "file:keys/old.pem"')
    private = tmp_path / "keys" / "old.pem"
    wanted = key("old").public.id
    pem = private.read_text()
    private.unlink()  # who verifies has the public half alone
    assert ids(load_trust(settings)) == [wanted]
    private.with_name("old.pem.pub").unlink()
    with pytest.raises(UsageError, match=r"no public key at .*old\.pem\.pub; .*trusted_keys"):
        load_trust(settings)
    by_variable = house('deploy_key = "env:K"')
    assert ids(load_trust(by_variable, {"K": pem})) == [wanted]
    with pytest.raises(
        UsageError, match=r"Whoever only verifies needs no deploy key: .*trusted_keys"
    ):
        load_trust(by_variable, {})


def test_named_keys_are_trusted_and_no_other(house: Callable[[str], Settings]) -> None:
    both = house(
        'deploy_key = "file:keys/new.pem"\n'
        'trusted_keys = ["keys/old.pem.pub", "keys/new.pem.pub", "keys/new.pem.pub"]'
    )
    assert ids(load_trust(both)) == [key("old").public.id, key("new").public.id]
    assert load_signer(both)[0].public == key("new").public
    old = house('deploy_key = "file:keys/new.pem"\ntrusted_keys = ["keys/old.pem.pub"]')
    with pytest.raises(UsageError, match=r"is not among the trusted keys .*; nothing was signed"):
        load_signer(old)


@pytest.mark.parametrize(
    ("gates", "words"),
    [
        ("trusted_keys = []", "gates.trusted_keys: must be a list of files"),
        ('trusted_keys = "keys/old.pem.pub"', "must be a list of files"),
        ('trusted_keys = ["keys/old.pem"]', "holds a private key where a public one belongs"),
        (
            'trusted_keys = ["keys/gone.pub"]',
            "tenure.toml:2: gates.trusted_keys: there is no public",
        ),
        ('trusted_keys = ["tenure.toml"]', "holds no public key in PEM form"),
        ('revoked_keys = {"abc" = 1}', "must give each revoked key's id"),
        (f'revoked_keys = {{"{"a" * 64}" = -1}}', "must give each revoked key's id"),
        (f'revoked_keys = {{"{"a" * 64}" = true}}', "must give each revoked key's id"),
    ],
)
def test_what_names_no_key_is_told_with_its_place(
    house: Callable[[str], Settings], gates: str, words: str
) -> None:
    with pytest.raises(UsageError) as error:
        load_trust(house(gates))
    assert words in str(error.value) and "PRIVATE" not in str(error.value)


# ------------------------------------------------------------------------- rotate, revoke


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def record(store: MemoryStore) -> ModelRecord:
    return retrain(store, research(store))


def test_rotation_the_new_key_signs_and_both_are_believed(
    house: Callable[[str], Settings], store: MemoryStore, record: ModelRecord
) -> None:
    old, new = key("old"), key("new")
    both = Trust.only(old.public, new.public)
    first = deploy(store, record, old, "vol", trust=both)
    assert deploy(store, record, old, "vol", trust=both) == first
    second = deploy(store, record, new, "vol", trust=both)  # the same model, signed anew
    assert (first.warrant, second.warrant, second.replaced) == (1, 2, 1)
    assert proved(store, first, both).key == old.public.id
    assert proved(store, second, Trust.only(new.public)).key == new.public.id


def test_a_revoked_key_is_believed_up_to_a_number_and_signs_nothing(
    house: Callable[[str], Settings], store: MemoryStore, record: ModelRecord
) -> None:
    stolen, other = key("old"), key("new")
    before = deploy(store, record, stolen, "vol")
    after = deploy(store, record, stolen, "live")  # what a thief signed
    trust = Trust((stolen.public, other.public), {stolen.public.id: before.warrant})
    assert proved(store, before, trust).record == record.id
    with pytest.raises(BadWarrant, match=r"revoked here: its last warrant .* believed is 1"):
        proved(store, after, trust)
    with pytest.raises(BadWarrant, match="revoked here: none of its warrants"):
        proved(store, before, Trust((stolen.public,), {stolen.public.id: 0}))
    with pytest.raises(BadWarrant, match="not signed by a key that is trusted here"):
        proved(store, deploy(store, record, other, "x"), Trust((stolen.public,), trust.revoked))
    for whom in (trust, Trust((other.public,)), Trust((other.public,), trust.revoked)):
        logged = len(read_log(store))
        with pytest.raises(UsageError, match="nothing was signed"):
            deploy(store, record, stolen, "third", trust=whom)
        assert len(read_log(store)) == logged and current(store, "third") is None


def test_the_command_tells_a_keys_id_and_what_to_put_where(
    house: Callable[[str], Settings], tmp_path: Path
) -> None:
    private = tmp_path / "keys" / "old.pem"
    wanted = key("old").public.id
    for name in ("keys/old.pem", "keys/old.pem.pub"):
        shown = tenure("key", "--show", name)
        assert shown.code == 0 and f"key id   {wanted}\n" in shown.out
    private.chmod(0o644)  # not looked at: its public half says all
    assert tenure("key", "--show", "keys/old.pem").code == 0
    lines = shown.out.splitlines()
    trust, revoke = (line.partition("[gates] ")[2].partition(", ")[0] for line in lines[1:])
    settings = house(f"{trust.removesuffix(', ...]')}]\n{revoke.replace(' = N', ' = 3')}")
    assert ids(load_trust(settings)) == [wanted] and load_trust(settings).revoked == {wanted: 3}
    private.with_name("old.pem.pub").unlink()
    assert "holds a private key" in complaint("key", "--show", "keys/old.pem").err
    assert "cannot be read" in complaint("key", "--show", "keys/gone.pem").err
    made = tenure("key", "keys/third.pem")
    assert f"key id   {key('third').public.id}\n" in made.out
