"""What a newcomer meets first: init, the deploy key, a port, a larger grid."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gates.warrant import PublicKey, load_deploy_key
from tenure.errors import UsageError
from tenure.settings import load_settings
from tests.tenure_command import complaint, tenure


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty folder, without variables of the one who tests."""
    monkeypatch.chdir(tmp_path)
    for name in ("TENURE_CONFIG", "TENURE_STORE", "TENURE_DEPLOY_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_init_makes_a_key_that_signs_and_that_git_never_sees(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")  # a project that is there already
    assert tenure("init").code == 0
    settings = load_settings(tmp_path / "tenure.toml", environ={})
    key = tmp_path / ".tenure" / "deploy_key.pem"
    before = key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    made = load_deploy_key(settings.gates.deploy_key, settings.root, environ={})
    assert PublicKey.from_pem(key.with_name("deploy_key.pem.pub").read_bytes()) == made.public
    assert tenure("init").code == 0 and key.read_bytes() == before
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    seen = subprocess.run(
        ["git", "status", "--porcelain", "-uall"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "tenure.toml" in seen and ".tenure/" not in seen


def test_init_makes_no_key_for_settings_that_name_another(tmp_path: Path) -> None:
    (tmp_path / "tenure.toml").write_text('[gates]\ndeploy_key = "file:own.pem"\n')
    assert tenure("init").code == 0
    assert not list(tmp_path.rglob("*.pem"))


@pytest.mark.parametrize("on_path", [True, False])
def test_the_commands_that_init_prints_work_where_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool
) -> None:
    called = tmp_path / "my bin" / "tenure"
    called.parent.mkdir()
    called.write_text("#!/bin/sh\npwd\n")
    called.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["my bin/tenure", "init"])
    monkeypatch.setenv("PATH", f"{called.parent}:/usr/bin:/bin" if on_path else "/usr/bin:/bin")
    for folder in ("with space", "."):
        said = tenure("init", folder).out.partition("Next:\n")[2]
        assert (" tenure status" in said) is on_path
        done = subprocess.run(
            ["sh", "-ec", said], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        where = str((tmp_path / folder).resolve())
        assert done.returncode == 0 and done.stdout.split("\n") == [*[where] * 4, ""], done.stderr


def test_key_makes_one_and_never_overwrites(tmp_path: Path) -> None:
    ended = tenure("key", "keys/deploy.pem")
    path = tmp_path / "keys" / "deploy.pem"
    assert ended.code == 0 and path.stat().st_mode & 0o777 == 0o600
    # what it proposes to write into tenure.toml is what works
    (tmp_path / "tenure.toml").write_text(ended.out.partition("tenure.toml:\n")[2])
    settings = load_settings(tmp_path / "tenure.toml", environ={})
    load_deploy_key(settings.gates.deploy_key, settings.root, environ={})
    before = path.read_bytes()
    assert "never overwritten" in complaint("key", "keys/deploy.pem").err
    assert path.read_bytes() == before
    public = path.with_name("deploy.pem.pub")
    half = public.read_bytes()
    public.unlink()  # the private half alone
    assert "deploy.pem exists" in complaint("key", "keys/deploy.pem").err
    assert path.read_bytes() == before
    public.write_bytes(half)
    path.unlink()  # the public half alone: warrants may need it
    ended = complaint("key", "keys/deploy.pem")
    assert ended.code == 2 and "deploy.pem.pub exists" in ended.err and not path.exists()
    (tmp_path / "file").write_text("")
    for bad in ("file/x.pem", ".", "keys"):
        assert complaint("key", bad).code == 2


def test_who_lacks_a_key_is_told_the_command_that_makes_one(tmp_path: Path) -> None:
    for source in ("env:NO_SUCH_KEY", "file:no such.pem"):
        with pytest.raises(UsageError, match="tenure key ") as error:
            load_deploy_key(source, tmp_path, environ={})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("port", ["80000", "65536", "0", "-5"])
def test_a_port_that_is_none_is_one_sentence(tmp_path: Path, port: str) -> None:
    ended = complaint("up", "--port", port)
    assert ended.code == 2
    assert ended.err == f"tenure: --port is {port}; it must be a number from 1 to 65535\n"
    assert not (tmp_path / ".tenure").exists()
    (tmp_path / "tenure.toml").write_text(f"[dagster]\nport = {port}\n")
    ended = complaint("up")
    assert ended.code == 2 and "tenure.toml:2: dagster.port: must be at" in ended.err


def test_a_larger_grid_says_that_it_needs_a_baseline(tmp_path: Path) -> None:
    tenure("init")
    plan = tmp_path / "plans" / "first.yaml"
    plan.write_text(plan.read_text().replace("[0.01]\n", "[0.01, 0.003]\n"))
    ended = complaint("enlist", str(plan))
    assert ended.code == 2 and "baseline: this key is missing" in ended.err
    assert "more than one point" in ended.err and '{"learning_rate": 0.01}' in ended.err
    # the comment of the plan, without its sign, is what is needed
    plan.write_text(plan.read_text().replace("# baseline:", "baseline:"))
    assert tenure("enlist", str(plan)).code == 0
