"""Root folders with a signature rule serve only skills whose signature matches."""

from __future__ import annotations

import datetime
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.config.load import load_text
from gateway.config.skill_settings import SignatureRule
from gateway.errors import ConfigError
from gateway.skills.source import SkillRules, SkillSource
from tests.skills.on_disk import codes, entries_of, load, write_skill

pytestmark = pytest.mark.skipif(find_spec("model_signing") is None, reason="the extra `signatures` is not installed")

FILE = "skill.oms.sig"


def write_key(folder: Path, name: str) -> ec.EllipticCurvePrivateKey:
    """Write `<name>.key` and `<name>.pub`."""
    key = ec.generate_private_key(ec.SECP256R1())
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.key").write_bytes(private)
    (folder / f"{name}.pub").write_bytes(public)
    return key


def sign(skill: Path, key: Path, chain: tuple[Path, ...] = ()) -> None:
    """Sign a skill as the library's own command does, with the signature beside the files."""
    from model_signing import hashing, signing

    signature = skill / FILE
    config: Any = signing.Config()
    ignored: Any = hashing.Config()
    if chain:
        config.use_certificate_signer(private_key=key, signing_certificate=chain[0], certificate_chain=list(chain[1:]))
    else:
        config.use_elliptic_key_signer(private_key=key)
    config.set_hashing_config(ignored.set_ignored_paths(paths=[signature])).sign(skill, signature)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two keys, and a skill signed with the first."""
    place = tmp_path_factory.mktemp("signed")
    for name in ("ours", "theirs"):
        write_key(place, name)
    sign(write_skill(place / "roots" / "good", files={"scripts/run.py": "print()"}), place / "ours.key")
    return place


def rules(place: Path, root: Path, key: str = "ours") -> dict[str, SignatureRule]:
    return {str(root): SignatureRule.model_validate({"publicKey": str(place / f"{key}.pub")})}


async def test_only_signed_skills_are_served(signed: Path, tmp_path: Path) -> None:
    root = shutil.copytree(signed / "roots", tmp_path / "roots")
    write_skill(root / "unsigned")
    sign(write_skill(root / "foreign"), signed / "theirs.key")
    added = shutil.copytree(root / "good", root / "added")
    (added / "more.md").write_text("not signed")
    shutil.copytree(root / "good", root / "short").joinpath("scripts", "run.py").unlink()
    shutil.copytree(root / "good", root / "torn").joinpath(FILE).write_text("{")
    write_skill(tmp_path / "free" / "other")
    async with SkillSource([root, tmp_path / "free"], refresh_seconds=0, rules=SkillRules(signed=rules(signed, root))) as source:
        assert [skill.id for skill in source.index.skills] == ["good", "other"]
        assert (await load(source, "good"))["files"]
        found = codes(source)
        assert {name: found[name] for name in ("unsigned", "foreign", "added", "short", "torn")} == {
            "unsigned": {"signature-missing"},
            "foreign": {"signature-invalid"},
            "added": {"signature-invalid", "name-not-directory"},
            "short": {"signature-invalid", "name-not-directory"},
            "torn": {"signature-invalid", "name-not-directory"},
        }
        assert [entry["uri"] for entry in entries_of(source)] == ["skill://good/SKILL.md", "skill://other/SKILL.md"]


async def test_altered_skill_is_gone_at_once(signed: Path, tmp_path: Path) -> None:
    root = shutil.copytree(signed / "roots", tmp_path / "roots")
    async with SkillSource([root], refresh_seconds=0, rules=SkillRules(signed=rules(signed, root))) as source:
        assert len(source.index.skills) == 1
        with (root / "good" / "SKILL.md").open("a") as file:
            file.write("x")
        await source.refresh()
        assert source.index.skills == () and codes(source) == {"good": {"signature-invalid"}}


async def test_outer_root_does_not_bypass_signature_rule(signed: Path, tmp_path: Path) -> None:
    root = shutil.copytree(signed / "roots", tmp_path / "roots")
    write_skill(root / "unsigned")
    async with SkillSource([tmp_path, root], refresh_seconds=0, rules=SkillRules(signed=rules(signed, root))) as source:
        assert [skill.id for skill in source.index.skills] == ["good"]


async def test_verified_index_is_not_cached(signed: Path, tmp_path: Path) -> None:
    root, state = shutil.copytree(signed / "roots", tmp_path / "roots"), tmp_path / "state"
    for key, served in (("ours", 1), ("theirs", 0)):
        async with SkillSource([root], state_folder=state, rules=SkillRules(signed=rules(signed, root, key))) as source:
            assert len(source.index.skills) == served


async def test_certificate_chain_is_verified(signed: Path, tmp_path: Path) -> None:
    issuer_key, key = write_key(tmp_path, "root"), write_key(tmp_path, "leaf")
    root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
    now = datetime.datetime.now(datetime.UTC)

    def certify(subject: x509.Name, public: ec.EllipticCurvePublicKey, *, is_authority: bool) -> Path:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(root_name).public_key(public)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        usage = x509.KeyUsage(not is_authority, False, False, False, False, is_authority, is_authority, False, False)
        builder = builder.add_extension(usage, critical=True)
        if not is_authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        name = "ca" if is_authority else "leaf"
        path = tmp_path / f"{name}.pem"
        path.write_bytes(builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    authority = certify(root_name, issuer_key.public_key(), is_authority=True)
    leaf = certify(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf")]), key.public_key(), is_authority=False)
    skills = tmp_path / "skills"
    sign(write_skill(skills / "pdf"), tmp_path / "leaf.key", (leaf, authority))
    for trusted, served in ((authority, 1), (leaf, 0)):
        rule = SignatureRule.model_validate({"certificates": [str(trusted)]})
        async with SkillSource([skills], rules=SkillRules(signed={str(skills): rule})) as source:
            assert len(source.index.skills) == served, source.problems


async def test_key_signature_does_not_satisfy_identity(signed: Path) -> None:
    rule = SignatureRule.model_validate({"identity": "ci@example.com", "issuer": "https://id.example.com", "trustConfig": "/nowhere.json"})
    async with SkillSource([signed / "roots"], rules=SkillRules(signed={str(signed / "roots"): rule})) as source:
        assert codes(source) == {"good": {"signature-invalid"}}


async def test_missing_library_serves_nothing(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    async with SkillSource([signed / "roots"], rules=SkillRules(signed=rules(signed, signed / "roots"))) as source:
        assert codes(source) == {"good": {"signature-unchecked"}}
        assert "moongate[signatures]" in source.problems[0].diagnostics[-1].message


def test_invalid_signature_rule_is_an_error(tmp_path: Path) -> None:
    def read(text: str) -> None:
        load_text(text, tmp_path / "gateway.json", {})

    with pytest.raises(ConfigError, match=r"not a folder of `expose.skills`"):
        read('{"skills": {"signatures": {"./skills": {"publicKey": "a.pub"}}}}')
    with pytest.raises(ConfigError, match="give one of publicKey"):
        read('{"expose": {"skills": ["./s"]}, "skills": {"signatures": {"./s": {"publicKey": "a", "certificates": ["b"]}}}}')
    with pytest.raises(ConfigError, match="identity and issuer"):
        read('{"expose": {"skills": ["./s"]}, "skills": {"signatures": {"./s": {"identity": "a@b.c"}}}}')
