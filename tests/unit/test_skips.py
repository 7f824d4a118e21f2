"""CI must notice when a test that ran before is skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS, unexpected_skips

ALLOWED = [{"tests": "tests/gpu/*", "reason": "no GPU", "why": "none in CI"}]


@pytest.mark.parametrize(
    ("test", "reason", "there", "unexpected"),
    [
        ("tests/gpu/test_a.py::test_b", "gpu: no GPU here", True, False),
        ("tests/gpu/test_a.py::test_b", "some other reason", True, True),
        ("tests/unit/test_a.py::test_b", "gpu: no GPU here", True, True),
        ("tests/unit/test_a.py::test_b", "shared data absent: /x", False, False),
        ("tests/unit/test_a.py::test_b", "shared data absent: /x", True, True),
    ],
)
def test_only_listed_skips_are_expected(test, reason, there, unexpected):
    assert bool(unexpected_skips([(test, reason)], ALLOWED, there)) is unexpected


@pytest.mark.parametrize(
    "body", ["pytest.skip('new reason')", "pytest.xfail('new reason')", "pytest.importorskip('no_x')"]
)
def test_unlisted_skip_fails_ci_alone(tmp_path, body):
    for name in ("conftest.py", "allowed_skips.yaml"):
        (tmp_path / name).write_bytes((TESTS / name).read_bytes())
    (tmp_path / "test_it.py").write_text(f"import pytest\ndef test_it():\n    {body}\ndef test_other():\n    pass\n")
    assert _exit_code(tmp_path, CI="true") == 1
    assert _exit_code(tmp_path, CI="") == 0


def _exit_code(folder: Path, **environment) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, check=False).returncode
