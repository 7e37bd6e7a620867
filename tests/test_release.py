"""A release: the version follows the tag, and `scripts/release` makes the same files of it each time."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import release_files
import tag_version

from loadgen.base import version

ROOT = Path(__file__).parent.parent
TAG = "v9.9.9"


@pytest.mark.parametrize(("described", "named"), [
    ("v1.2.0-0-gabc1234", "1.2.0"),
    ("v1.2.0-0-gabc1234-dirty", "1.2.1.dev0+gabc1234.dirty"),
    ("v1.2.0-3-gabc1234", "1.2.1.dev3+gabc1234"),
    ("v1.2.0-3-gabc1234-dirty", "1.2.1.dev3+gabc1234.dirty"),
    ("v1.2.0rc1-0-gabc1234", "1.2.0rc1"),
    ("v1.2.0rc1-2-gabc1234", "1.2.0rc2.dev2+gabc1234"),
    ("v1-beta-0-gabc1234", "0+unknown"),
])  # fmt: skip
def test_the_version_follows_the_tag(described: str, named: str) -> None:
    assert tag_version.name_version(described) == named


def test_a_folder_without_git_has_no_version(tmp_path: Path) -> None:
    assert tag_version.find_version(tmp_path) == "0+unknown"


def test_the_version_is_that_of_the_first_installed_metadata(tmp_path: Path) -> None:
    for path, number in (("one/llm_loadgen", "1.2.0"), ("two/llm_loadgen", "3"), ("none/llm", "1")):
        installed, name = tmp_path / f"{path}-{number}.dist-info", path.partition("/")[2]
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(f"Name: {name}\nVersion: {number}\n")
    places = [str(tmp_path / name) for name in ("absent", "none", "one", "two")]
    assert version.read_version(places) == "1.2.0"
    assert version.read_version(places[:2]) == "0+unknown"


CHANGES = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.1] - 2026-01-02\n\n### Added\n\n- One\n\n## [1.0]\n\n- Two\n"
)


@pytest.mark.parametrize(
    ("named", "notes"),
    [("1.1", "### Added\n\n- One"), ("1.0", "- Two"), ("Unreleased", ""), ("1", ""), ("1.2", "")],
)
def test_notes_are_the_section_of_the_version(named: str, notes: str) -> None:
    assert release_files.find_notes(CHANGES, named) == notes


def test_constraints_are_what_is_locked_without_hashes() -> None:
    locked = "# made by\na-b==1.2 \\\n    --hash=sha256:0\nc==3 ; os_name == 'nt' \\\n"
    assert release_files.strip_hashes(locked) == "a-b==1.2\nc==3 ; os_name == 'nt'\n"


def test_a_packed_folder_has_no_trace_of_who_packed_it(tmp_path: Path) -> None:
    for name, mode in (("site/b.txt", 0o600), ("site/a/c.txt", 0o755)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    packed = release_files.pack(tmp_path / "site", 1000)
    (tmp_path / "site").rename(tmp_path / "moved")
    (tmp_path / "moved" / "b.txt").touch()
    (tmp_path / "moved").rename(tmp_path / "site")
    assert packed == release_files.pack(tmp_path / "site", 1000)
    (tmp_path / "packed.tar").write_bytes(gzip.decompress(packed))
    with tarfile.open(tmp_path / "packed.tar") as archive:
        members = [(one.name, one.mode, one.uid, one.mtime) for one in archive]
    assert members == [("site/a/c.txt", 0o644, 0, 1000), ("site/b.txt", 0o644, 0, 1000)]


def test_an_sbom_is_about_this_package_without_its_path() -> None:
    ours = {
        "name": "llm-loadgen",
        "type": "library",
        "externalReferences": [{"url": "file:///tmp/x.whl"}, {"url": "https://llm-loadgen.example"}],
    }
    made = {"metadata": {}, "components": [{"name": "numpy"}, ours]}
    cleaned = json.loads(release_files.clean_sbom(json.dumps(made)))
    assert cleaned["components"] == [{"name": "numpy"}, *release_files.VENDORED]
    assert cleaned["metadata"]["component"] == {
        "name": "llm-loadgen",
        "type": "application",
        "externalReferences": [{"url": "https://llm-loadgen.example"}],
    }


def git(clone: Path, *words: str) -> None:
    """Run git in a clone, as no one in particular."""
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.invalid", "-c", "tag.gpgSign=false"]
    subprocess.run(["git", "-C", str(clone), *who, *words], check=True, capture_output=True)


def release(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `scripts/release` of a clone, with this Python, without an image."""
    return subprocess.run(
        ["scripts/release", *words],
        cwd=clone,
        env={**os.environ, "PYTHON": sys.executable, "BUILDER": "none"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of these sources whose changelog has the version, and whose last commit has the tag."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("these sources are no clone")
    made = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(ROOT), str(made))
    changes = (made / "CHANGELOG.md").read_text("utf-8")
    (made / "CHANGELOG.md").write_text(
        changes.replace("## [Unreleased]", f"## [{TAG[1:]}] - 2026-12-01"), "utf-8"
    )
    git(made, "commit", "-qam", "Release")
    git(made, "tag", TAG)
    return made


@pytest.mark.whole
@pytest.mark.timeout(300)  # two builds, each in an environment of its own
def test_a_release_of_a_clone_is_whole_and_the_same_twice(clone: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        done = release(clone, TAG, str(out))
        assert done.returncode == 0, done.stdout + done.stderr
    files = {path.name: path.read_bytes() for path in outs[0].iterdir()}
    assert files == {path.name: path.read_bytes() for path in outs[1].iterdir()}
    base = f"llm_loadgen-{TAG[1:]}"
    wheel, sbom, site = f"{base}-py3-none-any.whl", f"{base}.cdx.json", f"{base}-docs.tar.gz"
    assert set(files) == {wheel, sbom, site, f"{base}.tar.gz", "NOTES.md", "SHA256SUMS"}
    sums = {line[66:]: line[:64] for line in files["SHA256SUMS"].decode().splitlines()}
    assert sums == {name: hashlib.sha256(files[name]).hexdigest() for name in set(files) - {"SHA256SUMS"}}
    with zipfile.ZipFile(outs[0] / wheel) as packed:
        assert f"\nVersion: {TAG[1:]}\n" in packed.read(f"{base}.dist-info/METADATA").decode()
    with tarfile.open(outs[0] / site) as packed_site:
        assert {"site/index.html", "site/llms.txt"} <= set(packed_site.getnames())
    made = json.loads(files[sbom])
    assert (made["metadata"]["component"]["name"], made["metadata"]["component"]["version"]) == (
        "llm-loadgen",
        TAG[1:],
    )
    components = {one["name"] for one in made["components"]}
    assert {"httpx", "numpy"} <= components
    assert {"pip", "pytest", "scipy"} & components == set()
    assert str(tmp_path) not in files[sbom].decode()


def leave_a_file(clone: Path) -> None:
    """A file that git does not know."""
    (clone / "left.txt").write_text("")


def commit_more(clone: Path) -> None:
    """A commit after the tag."""
    git(clone, "commit", "-q", "--allow-empty", "-m", "More")


def tag_again(clone: Path) -> None:
    """A tag that names no section of the changelog."""
    git(clone, "tag", "-d", TAG)
    git(clone, "tag", "v9.9.8")


def tag_a_word(clone: Path) -> None:
    """A tag that is no version."""
    git(clone, "tag", "vnext")


REFUSED: dict[str, tuple[Callable[[Path], None] | None, str, str]] = {
    "no tag": (None, "v1.0", "no tag v1.0: make it, or fetch it"),
    "changed": (leave_a_file, TAG, f"1 files differ from {TAG}: commit them, or git stash -u"),
    "another commit": (commit_more, TAG, f"HEAD is not at {TAG}: git checkout {TAG}"),
    "no notes": (tag_again, "v9.9.8",
                 "CHANGELOG.md has no section [9.9.8]: rename [Unreleased], commit, and"),
    "no version": (tag_a_word, "vnext",
                   "the version here is 9.9.9, which is not vnext: name a tag as v1.2.3"),
}  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_clean_tag_is_refused_in_one_line(case: str, clone: Path, tmp_path: Path) -> None:
    spoil, tag, line = REFUSED[case]
    if spoil is not None:
        spoil(clone)
    done = release(clone, tag, str(tmp_path / "out"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"scripts/release: {line}")
    assert not (tmp_path / "out").exists()


def builder() -> str:
    """The program that can build an image here; "" if none can."""
    for program in ("docker", "podman"):
        if shutil.which(program) and subprocess.run([program, "info"], capture_output=True).returncode == 0:
            return program
    return ""


@pytest.mark.whole
@pytest.mark.timeout(600)  # a base image is fetched, and packages
def test_the_image_of_the_wheel_runs_without_root(tmp_path: Path) -> None:
    if not (program := builder()):
        pytest.skip("neither docker nor podman can build an image here")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    pins = release_files.strip_hashes((ROOT / "requirements" / "ci.txt").read_text("utf-8"))
    (tmp_path / "constraints.txt").write_text(pins, "utf-8")
    image = "loadgen-test:smoke"
    containerfile = str(ROOT / "Containerfile")
    subprocess.run([program, "build", "-q", "-f", containerfile, "-t", image, str(tmp_path)], check=True)
    ran = [program, "run", "--rm", image, "bench", "--profile", "smoke", "--preset", "instant", "--quiet"]
    done = subprocess.run(ran, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Serving Benchmark Result" in done.stdout
    who = subprocess.run(
        [program, "run", "--rm", "--entrypoint", "id", image, "-u"], capture_output=True, text=True
    )
    assert who.stdout == "65532\n"


def test_the_workflow_runs_the_script_and_names_no_host() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    assert 'scripts/release "$GITHUB_REF_NAME"' in text
    assert re.findall(r"\b[\w-]+\.(?:com|org|io|dev)\b", text) == []
