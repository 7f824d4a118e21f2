"""The workflow imported by other workflows, as a user and as snakedeploy would."""

import shutil
from dataclasses import dataclass

import pytest
import yaml
from runs import NOTHING, ROOT, SNAKEFILE, Done, Folder, snakemake

TWICE = f"""\
configfile: "both.yaml"


module north:
    snakefile:
        "{SNAKEFILE}"
    config:
        config["north"]
    prefix:
        "north"


use rule * from north as north_*


module south:
    snakefile:
        "{SNAKEFILE}"
    config:
        config["south"]
    pathvars:
        results="far/south",


use rule * from south as south_*


rule both_all:
    input:
        rules.north_all.input,
        rules.south_all.input,
    default_target: True
"""

ONCE = f"""\
configfile: "config/config.yaml"


module cogmill:
    snakefile:
        "{SNAKEFILE}"
    config:
        config


use rule * from cogmill
"""


@dataclass
class Importer(Folder):
    """A working directory whose own workflow/Snakefile imports ours."""

    def command(self, *arguments) -> list[str]:
        profile = ROOT / "profiles" / "local"
        return snakemake("--directory", self.path, "--profile", profile, "--cores", 2, "--retries", 0, *arguments)

    def run(self, *arguments, **options) -> Done:
        return super().run(*arguments, cwd=self.path, **options)


def import_into(folder, finished, snakefile) -> Importer:
    """Raw files and sensors of the finished campaign, and a workflow of the user's own."""
    for name in ("raw", "sensors"):
        shutil.copytree(finished.path / name, folder / name)
    (folder / "workflow").mkdir()
    (folder / "workflow" / "Snakefile").write_text(snakefile, encoding="utf-8")
    return Importer(folder)


def write_sheet(path, finished, scenes) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = [f"{row['scene']},{row['sensor']},{row['path']}\n" for row in finished.rows if row["scene"] in scenes]
    path.write_text("scene,sensor,path\n" + "".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def twice(finished, tmp_path_factory) -> Importer:
    """Two campaigns in one workflow: T2 and the damaged T3 under a prefix, T4 and T5 with results elsewhere."""
    made = import_into(tmp_path_factory.mktemp("twice"), finished, TWICE)
    config = {}
    for name, scenes in (("north", ("T2", "T3")), ("south", ("T4", "T5"))):
        write_sheet(made.path / "sheets" / f"{name}.csv", finished, scenes)
        config[name] = finished.config | {"sheet": f"sheets/{name}.csv"}
    (made.path / "both.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    done = made.run()
    assert done.code == 0, done.text
    return made


def test_two_campaigns_as_two_modules(twice, finished):
    places = {"T2": "north/results", "T4": "far/south", "T5": "far/south"}
    for scene, place in places.items():
        for name in ("ndvi", "sum"):
            path = twice.path / place / "products" / scene / f"{name}.tif"
            assert path.read_bytes() == finished.product(scene, name).read_bytes()
    assert not (twice.path / "results").exists()
    verdicts = [twice.path / place / "report" / "verdict.txt" for place in ("north/results", "far/south")]
    assert [path.read_text().splitlines()[0].split(" (")[0] for path in verdicts] == [
        "2 scenes: 1 done, 0 skipped, 1 failed",
        "2 scenes: 2 done, 0 skipped, 0 failed",
    ]
    assert twice.plan() == set()


def test_deleted_products_of_modules_are_remade_alone(twice):
    lost = [twice.path / "north/results/products/T2/sum.tif", twice.path / "far/south/products/T5/ndvi.tif"]
    kept = lost[0].with_name("ndvi.tif")
    pixels, inode = [path.read_bytes() for path in lost], kept.stat().st_ino
    for path in lost:
        path.unlink()
    assert twice.plan() == {"repair T2", "repair T4"}
    done = twice.run()
    assert (done.code, done.jobs) == (0, {"repair T2", "repair T4"}), done.text
    assert [path.read_bytes() for path in lost] == pixels
    assert kept.stat().st_ino == inode
    assert twice.plan() == set()


def test_a_product_of_a_module_by_name(twice):
    name = "north/results/products/T2/ndvi.tif"
    pixels = (twice.path / name).read_bytes()
    (twice.path / name).unlink()
    done = twice.run(name)
    assert (done.code, done.jobs) == (0, {"product ndvi T2"}), done.text
    assert (twice.path / name).read_bytes() == pixels
    assert twice.run().code == 0


def test_modules_find_their_stores_when_raw_files_are_gone(twice):
    (twice.path / "raw").rename(twice.path / "archive")
    try:
        assert twice.plan() == set()
    finally:
        (twice.path / "archive").rename(twice.path / "raw")


def test_the_workflow_deployed_as_the_only_module(finished, tmp_path):
    made = import_into(tmp_path, finished, ONCE)
    write_sheet(tmp_path / "config" / "scenes.csv", finished, ("T2", "T3"))
    config = {key: finished.config[key] for key in ("products", "sensors", "max_failed_fraction")}
    (tmp_path / "config" / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    done = made.run()
    assert done.code == 0, done.text
    assert made.product("T2").read_bytes() == finished.product("T2").read_bytes()
    assert made.states() == {"T2": "done", "T3": "failed"}
    assert NOTHING in made.run().text
    (tmp_path / "config" / "config.yaml").write_text(yaml.safe_dump(config | {"masks": {"red": {"bits": [1]}}}))
    done = made.run()
    assert done.code == 1 and "key 'masks.red': band 'red' holds measurements" in done.text
