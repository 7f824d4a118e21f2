"""The benchmark runs, at a size that says nothing about speed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "results" / "warp.json"
    command = [sys.executable, str(FOLDER / "bench_warp.py"), "--size", "600", "--repeat", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cogmill" in done.stdout
    return json.loads(out.read_text(encoding="utf-8"))


def test_every_contender_that_is_installed_is_measured(document):
    peers = {"gdalwarp", "gdalwarp_default"} if shutil.which("gdal_calc.py") else set()
    assert set(document["results"]) == {"warped_vrt", "cogmill", "cogmill_batch", "cogmill_exact"} | peers
    for result in document["results"].values():
        assert result["seconds"] > 0 and result["peak_memory_mb"] > 10 and result["output_bytes"] > 100_000
        stages = {name: stage["seconds"] for name, stage in result["stages"].items()}
        assert result["seconds"] == pytest.approx(sum(stages.values()) - stages.get("to_cog", 0), abs=0.01)


def test_the_work_is_equal(document):
    if document["reference"] != "gdalwarp":
        pytest.skip("gdalwarp: not installed")
    found = document["results"]["cogmill_exact"]["against_reference"]
    assert found["valid"] > 0.5 * found["pixels"]
    # packed numbers +-1 where they are at a tie
    assert (found["validity"], found["by_more"]) == (0, 0) and found["by_1"] <= 5e-4 * found["pixels"]
