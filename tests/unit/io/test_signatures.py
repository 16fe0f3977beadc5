"""Signatures of folders: what was changed, added or removed is refused."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.models.random_bundle import random_bundle

from dstransformer.cli.program import run as dst
from dstransformer.errors import DataError, DstError, UserError
from dstransformer.io.signatures import PASSWORD, Signer, verify_signature

pytest.importorskip("model_signing", reason="needs model-signing: pip install 'dstransformer[sign]'")


def make_key(folder: Path, name: str) -> tuple[Path, Path]:
    """A private key and its public one, made as the documents say."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    new = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(private)]
    for command in (new, ["openssl", "ec", "-in", str(private), "-pubout", "-out", str(public)]):
        subprocess.run(command, check=True, capture_output=True)
    return private, public


@pytest.fixture
def key(tmp_path: Path) -> tuple[Path, Path]:
    return make_key(tmp_path, "key")


@pytest.fixture
def signed(tmp_path: Path, key: tuple[Path, Path]) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights").write_text("one")
    (folder / "sub" / "other").write_text("two")
    Signer(key[0]).sign(folder)
    return folder


def test_a_signed_folder_may_be_moved_and_signed_again(signed: Path, key: tuple[Path, Path]) -> None:
    verify_signature(signed, key[1])
    moved = signed.rename(signed.with_name("elsewhere"))
    verify_signature(moved, key[1])
    (moved / "weights").write_text("new")
    Signer(key[0]).sign(moved)
    verify_signature(moved, key[1])


def test_a_relative_path_signs_and_verifies(
    tmp_path: Path, key: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random_bundle(tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert dst(["sign", "bundle", "--key", "key.pem"]) == 0
        assert dst(["verify", "bundle", "--key", "key.pub"]) == 0
    assert dst(["verify", str(tmp_path / "bundle"), "--key", "key.pub"]) == 0
    (tmp_path / "bundle" / "config.yaml").write_text((tmp_path / "bundle" / "config.yaml").read_text() + "\n")
    capsys.readouterr()
    assert dst(["verify", "bundle"]) == 2
    assert "config.yaml was changed after the training" in capsys.readouterr().err
    assert dst(["verify", "bundle", "--key", "key.pub"]) == 2
    assert "changed: config.yaml" in capsys.readouterr().err


def test_a_link_is_refused(signed: Path, key: tuple[Path, Path]) -> None:
    (signed / "link").symlink_to(signed / "weights")
    with pytest.raises(DataError, match="link is a link"):
        verify_signature(signed, key[1])


def forge(folder: Path) -> None:
    """Change the signed hashes."""
    content = json.loads((folder / "model.sig").read_text())
    statement = json.loads(base64.b64decode(content["dsseEnvelope"]["payload"]))
    statement["subject"][0]["digest"]["sha256"] = "0" * 64
    content["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (folder / "model.sig").write_text(json.dumps(content))


@pytest.mark.parametrize(("change", "message"), [
    (lambda folder: (folder / "weights").write_text("two"), "is not what was signed: changed: weights"),
    (lambda folder: (folder / "new").write_text(""), "is not what was signed: added: new"),
    (lambda folder: (folder / ".gitattributes").write_text(""), "is not what was signed: added: .gitattributes"),
    (lambda folder: (folder / "sub" / "other").unlink(), "is not what was signed: missing: sub/other"),
    (lambda folder: (folder / "model.sig").unlink(), "is not signed: it has no model.sig"),
    (lambda folder: (folder / "model.sig").write_text("{}"), "model.sig is damaged"),
    (lambda folder: (folder / "model.sig").write_text("no"), "model.sig is damaged"),
    (forge, "model.sig was changed, or made with another key"),
])  # fmt: skip
def test_what_was_changed_is_refused(
    signed: Path, key: tuple[Path, Path], change: Callable[[Path], object], message: str
) -> None:
    change(signed)
    with pytest.raises(DataError) as caught:
        verify_signature(signed, key[1])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_keys_are_refused(
    signed: Path, key: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, other = make_key(tmp_path, "other")
    with pytest.raises(DataError, match=r"model.sig .*other\.pub"):
        verify_signature(signed, other)
    with pytest.raises(UserError, match=r"key\.pem"):
        verify_signature(signed, key[0])
    with pytest.raises(UserError, match=r"key\.pub"):
        Signer(key[1])
    with pytest.raises(UserError, match="none: No such file"):
        Signer(tmp_path / "none")
    rsa, locked = tmp_path / "rsa.pem", tmp_path / "locked.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(rsa), "2048"], check=True, capture_output=True)
    with pytest.raises(UserError, match=r"rsa\.pem"):
        Signer(rsa)
    lock = ["openssl", "ec", "-in", str(key[0]), "-aes256", "-passout", "pass:word", "-out", str(locked)]
    subprocess.run(lock, check=True, capture_output=True)
    with pytest.raises(UserError, match=r"locked\.pem has a password"):
        Signer(locked)
    monkeypatch.setenv(PASSWORD, "word")
    Signer(locked).sign(signed)
    verify_signature(signed, key[1])


def test_exports_and_bundles_are_signed_and_verified(
    tmp_path: Path, key: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, out = random_bundle(tmp_path / "bundle"), tmp_path / "hf"
    private, public = map(str, key)
    assert dst(["export", "hf", str(bundle), str(out), "--sign", private]) == 0
    assert dst(["verify", str(out), "--key", public]) == 0
    assert dst(["export", "hf", str(bundle), str(out), "--overwrite"]) == 0
    assert dst(["verify", str(out), "--key", public]) == 2
    assert f"{out} is not signed" in capsys.readouterr().err
    assert dst(["export", "hf", str(bundle), str(tmp_path / "no"), "--sign", public]) == 2
    assert not (tmp_path / "no").exists()
    assert dst(["sign", str(bundle), "--key", private]) == 0
    assert dst(["verify", str(bundle), "--key", public]) == 0
    capsys.readouterr()
    assert dst(["verify", str(bundle)]) == 0
    assert capsys.readouterr().out == f"{bundle}: its files match their hashes\n"
    with (bundle / "model.safetensors").open("ab") as file:
        file.write(b"0")
    for options in ([], ["--key", public]):
        assert dst(["verify", str(bundle), *options]) == 2
        assert "does not match its hash" in capsys.readouterr().err
    assert dst(["sign", str(bundle), "--key", private]) == 2


def test_other_folders_are_not_signed(tmp_path: Path, key: tuple[Path, Path]) -> None:
    (tmp_path / "notes").mkdir()
    assert dst(["sign", str(tmp_path / "notes"), "--key", str(key[0])]) == 2
    with pytest.raises(DstError, match="is not signed"):
        verify_signature(tmp_path / "notes", key[1])
