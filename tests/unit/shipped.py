"""The files that users change as README.md says: what tests say of them holds as long as they are as committed."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def skip_if_changed(*paths: str) -> None:
    """Skip the test when git calls one of the files (seen from the repository) changed, or cannot say."""
    for path in paths:
        command = ["git", "diff", "--quiet", "HEAD", "--", path]
        try:
            same = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0
        except OSError:  # no git
            same = False
        if not same:
            pytest.skip(f"{path} was changed: it is the user's")
