"""Fixtures for all tests, and the rule that CI knows each test that is skipped, and why."""

import importlib.util
import os
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared"
SHARED_ABSENT = "shared data absent"
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")

# marker: (what it is for, whether its tests can run here, why not)
MARKERS = {
    "slow": ("takes a minute or more; runs in CI or with --slow", None, "slow: runs in CI or with --slow"),
    "gpu": ("needs an NVIDIA GPU", lambda: Path("/dev/nvidiactl").exists(), "gpu: no NVIDIA GPU here"),
    "slurm": ("needs a Slurm cluster", lambda: shutil.which("sbatch") is not None, "slurm: no sbatch here"),
}


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow")


def pytest_configure(config):
    for name, (meaning, _, _) in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.stash[SKIPS] = []


def pytest_collection_modifyitems(config, items):
    for name, (_, can_run, reason) in MARKERS.items():
        if can_run() if can_run else IN_CI or config.getoption("--slow"):
            continue
        for item in items:
            if item.get_closest_marker(name):  # keywords would also hold ids of parameters
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of the shared test data, which lies beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED_ABSENT}: {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def cases(shared):
    """Comparer of outputs with the shared cases."""
    path = shared / "cases" / "compare_outputs.py"
    spec = importlib.util.spec_from_file_location("compare_outputs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Cases(str(path.parent))


SKIPS = pytest.StashKey[list[tuple[str, str]]]()


class SkipWatch:
    """Collects (test, reason) of each skip and each expected failure."""

    def __init__(self, config):
        self.skips = config.stash[SKIPS]

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self.skips.append((report.nodeid, _reason(report)))

    def pytest_collectreport(self, report):
        if report.skipped:
            self.skips.append((report.nodeid, _reason(report)))


def _reason(report) -> str:
    if hasattr(report, "wasxfail"):
        return f"xfail: {report.wasxfail}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def unexpected_skips(skips, allowed, shared_is_there: bool) -> list[str]:
    """Skips that `allowed` (a list of {tests, reason, why}) does not name, as `test: reason`.

    `tests` is a pattern of test ids, `reason` must be in what the skip says. Where the shared data are absent, skips
    that say so are allowed.
    """
    return [
        f"{test}: {reason}"
        for test, reason in skips
        if not any(fnmatch(test, entry["tests"]) and entry["reason"] in reason for entry in allowed)
        and not (SHARED_ABSENT in reason and not shared_is_there)
    ]


def pytest_sessionstart(session):
    session.config.pluginmanager.register(SkipWatch(session.config))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if IN_CI and _found(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if IN_CI and _found(config):
        terminalreporter.section("skipped, and not in tests/allowed_skips.yaml: this fails CI", red=True)
        for line in _found(config):
            terminalreporter.line(line)


def _found(config) -> list[str]:
    allowed = yaml.safe_load((TESTS / "allowed_skips.yaml").read_text(encoding="utf-8")) or []
    return unexpected_skips(config.stash[SKIPS], allowed, SHARED.is_dir())
