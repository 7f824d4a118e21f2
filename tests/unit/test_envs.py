"""Each environment holds what its kind of rule imports: the rule's script function runs in a bare venv made from it.

conda-forge's packages are installed under their pip names; what PyPI has no such package for, and what needs CUDA, is
left out (`CONDA_NAMES` says why).
"""

import os
import subprocess
import sys

import pytest
import yaml
from made import config_text, red_nir, write_raster, write_sheet
from sources import CONDA_NAMES, ROOT, SCRIPTS, env_packages

COMMANDS = {
    "cog": [["to-cog", "--scene", "S1"]],
    "grid": [["warp-grid", "--scene", "S1"]],
    "gpu": [["compute", "--batch", "S1"]],
    "report": [["report"], ["verdict"]],
}


def pip_requirements(env: str) -> list[str]:
    """Requirements of an environment file as pip writes them."""
    packages = env_packages(ROOT / "envs" / f"{env}.yaml")
    return [f"{CONDA_NAMES[name][1]}{spec}" for name, spec in packages.items() if CONDA_NAMES[name]]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Folder of a campaign of one scene; the tests below take it from rule to rule."""
    folder = tmp_path_factory.mktemp("campaign")
    write_raster(folder / "S1.tif", red_nir((600, 520)), nodata=0)
    write_sheet(folder, [{"scene": "S1", "sensor": "rednir", "path": folder / "S1.tif"}])
    (folder / "config.yaml").write_text(yaml.safe_dump(config_text(folder)))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("env", COMMANDS)
def test_rule_runs_with_its_environments_packages_alone(env, campaign, tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    run([sys.executable, "-m", "venv", tmp_path / "venv"])
    run([python, "-m", "pip", "install", "-q", "--no-compile", *pip_requirements(env)])
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    bare |= {"PYTHONPATH": str(SCRIPTS), "COGMILL_CACHE": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    for command in COMMANDS[env]:
        run([python, "-m", "cogmill.cli", *command, "--config", "config.yaml"], cwd=campaign, env=bare)


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
