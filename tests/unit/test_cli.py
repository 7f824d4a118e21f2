"""The `cogmill` command does what the rules do, and looks after a campaign's records."""

import json
import subprocess
import sys

import pytest
import rasterio
import yaml
from made import config_text, red_nir, write_raster, write_sheet

from cogmill.cli import main
from cogmill.ledger import write_json
from cogmill.status import broken_scenes, scene_state

SCENES = ("S1", "S2", "S3")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A campaign of three scenes in the working directory, the third one not a raster."""
    monkeypatch.chdir(tmp_path)
    for number, scene in enumerate(SCENES):
        write_raster(tmp_path / "raw" / f"{scene}.tif", red_nir((600, 520), seed=number), nodata=0)
    (tmp_path / "raw" / "S3.tif").write_text("not a raster")
    write_sheet(tmp_path, [{"scene": s, "sensor": "rednir", "path": tmp_path / "raw" / f"{s}.tif"} for s in SCENES])
    (tmp_path / "config").mkdir()
    text = config_text(tmp_path, max_failed_fraction=0.5, scenes_per_job=10)
    (tmp_path / "config" / "config.yaml").write_text(yaml.safe_dump(text))
    return tmp_path


def run_all():
    """Take the campaign as far as its ledger."""
    for scene in SCENES:
        assert main(["to-cog", "--scene", scene]) == 0
        assert main(["warp-grid", "--scene", scene]) == 0
    assert main(["compute", "--batch", "S1", "--threads", "2"]) == 0


def test_commands_take_a_campaign_from_check_to_verdict(folder, capsys):
    assert main(["check"]) == 0
    assert "3 scenes, 1 product (ndvi), 1 batch:" in capsys.readouterr().out
    run_all()
    assert main(["report"]) == 0
    assert main(["verdict"]) == 0
    with rasterio.open("results/products/S1/ndvi.tif") as file:
        assert file.dtypes == ("float32",)
    assert not (folder / "results/products/S3/ndvi.tif").exists()
    assert (folder / "results/report/report.html").exists() and (folder / "results/report/methods.yaml").exists()
    assert "2 done" in (folder / "results/report/verdict.txt").read_text()
    capsys.readouterr()
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "2  done" in out and "1  failed" in out and "S3: " in out


def test_verdict_fails_with_exit_code_1(folder, capsys):
    run_all()
    (folder / "strict.yaml").write_text("max_failed_fraction: 0.1\n")
    assert main(["verdict", "--config", "strict.yaml"]) == 1
    assert "S3" in capsys.readouterr().err


def test_results_go_where_they_are_wanted(folder):
    (folder / "other.yaml").write_text("pathvars: {results: by_config}\n")
    assert main(["to-cog", "--scene", "S1", "--config", "other.yaml"]) == 0
    assert main(["to-cog", "--scene", "S1", "--results", "by_option"]) == 0
    assert (folder / "by_config/cogs/S1/record.json").exists()
    assert (folder / "by_option/cogs/S1/record.json").exists()
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["to-cog", "--scene", "S9"], "'S9'"),
        (["compute", "--batch", "S2"], "named after its first scene"),
        (["check", "--config", "gone.yaml"], "gone.yaml"),
        (["forget", "S1", "S9"], "'S9'"),
    ],
)
def test_mistakes_of_the_caller_are_exit_code_2(folder, capsys, arguments, said):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_no_config_says_where_it_was_looked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_check_tells_all_mistakes_at_once(folder, capsys):
    (folder / "raw" / "S1.tif").unlink()
    (folder / "bad.yaml").write_text("cog: {zstd_level: 40}\n")
    assert main(["check", "--config", "bad.yaml"]) == 2
    err = capsys.readouterr().err
    assert "bad.yaml:1:" in err and "scenes.csv:2" in err
    assert main(["status"]) == 0  # only `check` looks at the files


def test_status_waits_until_records_come(folder, capsys):
    main(["status"])
    assert "3  waiting" in capsys.readouterr().out
    assert main(["to-cog", "--scene", "S1"]) == 0
    assert scene_state("results", "S1").kind == "grids"


def test_retry_takes_only_what_a_retry_can_mend(folder, capsys):
    run_all()
    path = folder / "results/products/S1/record.json"
    record = json.loads(path.read_text())
    write_json(path, record | {"state": "failed", "reason": "io_error", "message": "disk full", "retryable": True})
    assert main(["retry"]) == 0
    assert "1 scene will be tried again" in capsys.readouterr().out
    assert not path.exists() and not (folder / "results/ledger/S1.jsonl").exists()
    assert (folder / "results/cogs/S1/record.json").exists()  # its bands were fine
    assert (folder / "results/products/S3/record.json").exists()  # no retry makes a text file a raster


def test_forgotten_scene_is_made_again(folder, capsys):
    run_all()
    before = (folder / "results/products/S1/ndvi.tif").read_bytes()
    assert main(["forget", "S1"]) == 0
    for kind in ("cogs", "grids", "products"):
        assert not (folder / "results" / kind / "S1" / "record.json").exists()
        assert (folder / "results" / kind / "S2" / "record.json").exists()
    assert not (folder / "results/ledger/S1.jsonl").exists()
    run_all()
    assert (folder / "results/products/S1/ndvi.tif").read_bytes() == before
    assert scene_state("results", "S1").state == "done"


@pytest.mark.parametrize("harm", ["product gone", "record gone", "product cut"])
def test_a_done_scene_is_broken_without_every_product(folder, harm):
    ledger, home = folder / "results/ledger/S1.jsonl", folder / "results/products"
    assert broken_scenes(ledger, home, SCENES) == []  # no ledger: nothing is called done
    run_all()
    assert broken_scenes(ledger, home, SCENES) == []  # S3 is called failed
    if harm == "product gone":
        (home / "S2/ndvi.tif").unlink()
    elif harm == "record gone":
        (home / "S2/record.json").unlink()
    else:
        with open(home / "S2/ndvi.tif", "r+b") as file:
            file.truncate(1000)
    assert broken_scenes(ledger, home, SCENES) == ["S2"]


@pytest.mark.parametrize("name", ["results/products/S1/record.json", "results/ledger/S1.jsonl"])
def test_damaged_record_is_named(folder, capsys, name):
    run_all()
    (folder / name).write_text("{")
    if "ledger" in name:
        with pytest.raises(Exception, match=r"S1\.jsonl"):
            broken_scenes(folder / name, folder / "results/products", SCENES)
    else:
        assert main(["status"]) == 1
        assert name in capsys.readouterr().err


def test_command_is_a_module_too():
    done = subprocess.run(
        [sys.executable, "-m", "cogmill.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("cogmill ")
