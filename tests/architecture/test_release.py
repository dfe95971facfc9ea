"""The release workflow: it parses, calls only what exists, has narrow rights, and publishes nothing that was not tested and signed."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import yaml

from tests.architecture.documents import read
from tests.architecture.sources import ROOT

Job = dict[str, Any]
SCRIPT = runpy.run_path(str(ROOT / ".ci/release_notes.py"))
notes = cast("Callable[[str, str, dict[str, str]], str]", SCRIPT["notes"])
NotReady = cast("type[Exception]", SCRIPT["NotReady"])

TESTED = {"check", "build", "test", "pythons", "suites", "compose", "engines", "image", "chart"}
"""Jobs that build and test, and may only read the repository."""

CHANGELOG = """# Changelog

## Unreleased

- Later.

## 0.2.0 (2026-12-24)

### Tasks

- Added **a**.
- Removed b.

## [0.1.0] - 2026-12-01

- First.

## 0.0.9

Nothing.
"""


def workflow() -> dict[str | bool, Any]:
    """Return the parsed workflow; YAML 1.1 reads its key `on` as true."""
    return yaml.safe_load(read(".github/workflows/release.yml"))


def jobs() -> dict[str, Job]:
    return workflow()["jobs"]


def steps() -> Iterator[dict[str, Any]]:
    for job in jobs().values():
        yield from job["steps"]


def test_release_starts_only_from_a_version_tag() -> None:
    assert workflow()[True] == {"push": {"tags": ["v*"]}}


def test_every_script_and_target_of_the_workflow_exists() -> None:
    commands = "\n".join(step["run"] for step in steps() if "run" in step)
    scripts = re.findall(r"(?:bash|python|sh) (\.?[\w./-]+\.?\w+)(?: |$)", commands, re.MULTILINE)
    paths = [name for name in scripts if "/" in name]
    assert {".ci/release_notes.py", ".ci/run", ".ci/test_artifacts.sh", "deploy/package-chart.sh", "deploy/push.sh"} <= set(paths)
    assert [name for name in paths if not (ROOT / name).is_file()] == []
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z][\w-]*)", commands)) <= targets
    assert set(re.findall(r"\bmake ([a-z][\w-]*)", read(".ci/run").partition("set -euo")[2])) <= targets


def test_scripts_of_the_workflow_are_valid_shell() -> None:
    for step in steps():
        if "run" in step:
            text = re.sub(r"\$\{\{.*?\}\}", "x", step["run"])
            assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False).returncode == 0, text
    for path in (".ci/test_artifacts.sh", "deploy/build-image.sh", "deploy/package-chart.sh", "deploy/push.sh"):
        assert subprocess.run(["bash", "-n", path], cwd=ROOT, check=False).returncode == 0, path


def test_every_action_is_pinned_to_a_commit_and_names_its_version() -> None:
    used = [line.strip().removeprefix("- ") for line in read(".github/workflows/release.yml").splitlines() if "uses:" in line]
    assert len(used) == len([step for step in steps() if "uses" in step])
    for line in used:
        assert re.fullmatch(r"uses: actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    pinned = re.findall(r"pip install (.+)", read(".github/workflows/release.yml"))
    assert pinned and all(re.fullmatch(r'("[\w-]+==[\d.]+" ?)+', names) for names in pinned)


def test_no_text_of_an_event_reaches_a_script() -> None:
    for step in steps():
        assert "${{" not in step.get("run", ""), "pass it as an environment variable, which the shell quotes"


def test_jobs_have_only_the_rights_that_they_need() -> None:
    assert workflow()["permissions"] == {}
    rights = {name: job["permissions"] for name, job in jobs().items()}
    reads = {"contents": "read"}
    assert {name for name, given in rights.items() if given == reads} == TESTED
    assert {name: given for name, given in rights.items() if given != reads} == {
        "sign": {**reads, "id-token": "write", "attestations": "write"},
        "publish": {"id-token": "write"},
        "registry": {**reads, "packages": "write"},
        "release": {"contents": "write"},
    }
    assert "secrets." not in read(".github/workflows/release.yml")
    assert all("timeout-minutes" in job for job in jobs().values())


def before(name: str) -> set[str]:
    """Return the jobs that must have passed before this one starts."""
    needs = jobs()[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(before(earlier) for earlier in direct))


def test_nothing_is_published_before_it_was_tested_and_signed() -> None:
    assert before("sign") == TESTED
    assert before("publish") == before("registry") == {*TESTED, "sign"}
    assert before("release") == {*TESTED, "sign", "publish", "registry"}
    assert all("check" in before(name) for name in jobs() if name != "check")
    assert not any(job.get("if") or job.get("continue-on-error") for job in jobs().values())


def test_artifacts_are_tested_on_every_supported_python() -> None:
    stated = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', read("pyproject.toml"))
    assert stated == ["3.11", "3.12", "3.13", "3.14"]
    assert jobs()["test"]["strategy"]["matrix"]["python"] == stated
    [first] = [step["with"]["python-version"] for step in jobs()["check"]["steps"] if "setup-python" in step.get("uses", "")]
    assert [first, *jobs()["pythons"]["strategy"]["matrix"]["python"]] == stated
    assert run_in("pythons") == "make test"


def run_in(job: str) -> str:
    return "\n".join(step["run"] for step in jobs()[job]["steps"] if "run" in step)


def test_suites_that_need_other_programs_run_before_the_signature() -> None:
    assert "apt-get install --yes --no-install-recommends nginx" in run_in("suites")
    made = {name for line in re.findall(r"^make (.+)$", run_in("suites"), re.MULTILINE) for name in line.split()}
    assert {"fleet", "temporal", "s3", "packaging", "wheels"} <= made
    assert run_in("engines") == "make faults-engines"
    assert jobs()["engines"]["timeout-minutes"] >= 60
    assert "make up" in run_in("compose") and "--force-recreate" in run_in("compose")
    for name in ("check", "pythons", "suites", "engines"):
        own = [step for step in jobs()[name]["steps"] if step.get("env", {}).get("PYTHON") == "python"]
        assert own, f"{name}: without PYTHON the Makefile would use the Python of the runner"


def test_image_and_chart_are_built_once_and_signed_with_the_sbom() -> None:
    assert "make image OUT=" in run_in("image")
    assert 'deploy/package-chart.sh "${GITHUB_REF_NAME#v}" "ghcr.io/${GITHUB_REPOSITORY,,}"' in run_in("chart")
    signed = [step["with"] for step in jobs()["sign"]["steps"] if step.get("uses", "").startswith("actions/attest")]
    files, provenance, sbom = signed
    assert files["subject-path"].split() == ["dist/*", "chart/*", "image/sbom.cdx.json"]
    assert provenance["subject-digest"] == sbom["subject-digest"] == "${{ steps.image.outputs.digest }}"
    assert sbom["sbom-path"] == "image/sbom.cdx.json" and "sbom-path" not in provenance
    assert 'deploy/push.sh image chart/moongate-*.tgz "ghcr.io/${GITHUB_REPOSITORY,,}"' in run_in("registry")


def test_release_has_the_sbom_the_chart_and_all_signatures() -> None:
    attached = re.sub(r"\s*\\\n\s*", " ", run_in("release")).partition("--notes-file ")[2].split()
    wanted = {"parts/dist/*", "parts/chart/*", "parts/image/sbom.cdx.json", "parts/notes/SHA256SUMS", "parts/provenance/*"}
    assert wanted <= set(attached)


def test_jobs_take_only_what_earlier_jobs_have_uploaded() -> None:
    def named(job: str, action: str) -> set[str]:
        found = [step["with"] for step in jobs()[job]["steps"] if f"actions/{action}@" in step.get("uses", "")]
        return {given["name"] for given in found if "name" in given}

    for job in jobs():
        assert named(job, "download-artifact") <= {name for earlier in before(job) for name in named(earlier, "upload-artifact")}, job


@pytest.mark.parametrize(
    ("tag", "expected"),
    [("v0.2.0", "### Tasks\n\n- Added **a**.\n- Removed b."), ("v0.1.0", "- First.")],
)
def test_notes_of_a_release_are_its_changelog_section(tag: str, expected: str) -> None:
    assert notes(tag, CHANGELOG, {"pyproject.toml": tag[1:]}) == expected


@pytest.mark.parametrize(
    ("tag", "stated", "said"),
    [
        ("0.2.0", "0.2.0", "is not a version"),
        ("v0.2", "0.2", "is not a version"),
        ("v0.2.0; rm -rf /", "0.2.0", "is not a version"),
        ("v0.2.0", "0.1.0", "pyproject.toml has version 0.1.0"),
        ("v0.3.0", "0.3.0", "has 0 sections for 0.3.0"),
        ("v0.0.9", "0.0.9", "lists no changes"),
    ],
)
def test_release_that_is_not_ready_says_why(tag: str, stated: str, said: str) -> None:
    with pytest.raises(NotReady, match=re.escape(said)):
        notes(tag, CHANGELOG, {"pyproject.toml": stated})


def test_section_that_exists_twice_is_refused() -> None:
    with pytest.raises(NotReady, match="has 2 sections"):
        notes("v0.2.0", CHANGELOG + "\n## 0.2.0\n\n- Again.\n", {})


def test_program_reads_the_versions_of_this_repository() -> None:
    version = re.search(r'^version = "(.+)"$', read("pyproject.toml"), re.MULTILINE)
    assert version is not None
    done = subprocess.run([sys.executable, ".ci/release_notes.py", "v9.9.9"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"pyproject.toml has version {version[1]}, and the tag is v9.9.9" in done.stderr
