"""Profiles: found by their bare names once linked, nobody's own is overwritten, the same promises in both."""

import os
import re
import subprocess
import sys

import pytest
import yte
from sources import ROOT, SCRIPTS, rules

PROFILES = ROOT / "profiles"
NAMES = ("local", "slurm-gpu")


def install(home):
    command = [sys.executable, str(SCRIPTS / "install_profiles.py")]
    return subprocess.run(
        command, env=os.environ | {"XDG_CONFIG_HOME": str(home)}, capture_output=True, text=True, check=False
    )


def read(name):
    with open(PROFILES / name / "config.v8+.yaml", encoding="utf-8") as file:
        return yte.process_yaml(file, require_use_yte=True)


def test_profiles_are_linked_and_a_second_call_changes_nothing(tmp_path):
    for _ in range(2):
        done = install(tmp_path)
        assert done.returncode == 0, done.stderr
    assert {path.name: path.resolve() for path in (tmp_path / "snakemake").iterdir()} == {
        name: PROFILES / name for name in NAMES
    }


@pytest.mark.parametrize("kind", ["folder", "link", "dangling link"])
def test_a_foreign_profile_is_not_overwritten(tmp_path, kind):
    there = tmp_path / "snakemake" / "local"
    there.parent.mkdir()
    (tmp_path / "mine").mkdir()
    if kind == "folder":
        there.mkdir()
    else:
        there.symlink_to(tmp_path / ("mine" if kind == "link" else "gone"))
    before = os.readlink(there) if there.is_symlink() else None
    done = install(tmp_path)
    assert done.returncode == 1 and str(there) in done.stderr
    assert (os.readlink(there) if there.is_symlink() else None) == before
    assert [path.name for path in (tmp_path / "snakemake").iterdir()] == ["local"]


@pytest.mark.parametrize("name", NAMES)
def test_profile_keeps_the_failure_model(name):
    profile = read(name)
    assert profile["keep-going"] and profile["rerun-incomplete"]
    assert profile["retries"] == 2
    assert profile["scheduler"] == "greedy"
    assert profile["rerun-triggers"] == ["mtime", "params", "input", "software-env"]
    assert not {"keep-incomplete", "nolock", "default-storage-provider", "slurm-array-jobs"} & set(profile)


def test_no_profile_is_applied_unasked():
    assert sorted(path.name for path in PROFILES.iterdir()) == ["README.md", *NAMES]


def test_slurm_profile_names_rules_that_exist():
    profile = read("slurm-gpu")
    assert {*profile["set-resources"], *profile["groups"]} <= set(rules())
    assert set(profile["group-components"]) == set(profile["groups"].values())


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_explained(name):
    text = (PROFILES / "README.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`([a-z-]+)", text))
    assert set(read(name)) <= explained
