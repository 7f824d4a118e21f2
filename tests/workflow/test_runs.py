"""What a user sees of whole runs: exit codes, what `snakemake -n` shows, which files are touched."""

import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import yaml
from made import red_nir, write_raster
from runs import NOTHING, ROOT, SNAKEFILE, Folder, call, cut_short, environment, new_campaign, snakemake, write_scene

from cogmill.cog.validate import validate_cog

END = {"report", "verdict"}
PRODUCTS = {f"{scene}/{name}" for scene in ("T1", "T2", "T4", "T5") for name in ("ndvi", "sum")}


def test_the_damaged_scene_leaves_one_failed_record_and_the_others_are_complete(finished):
    assert finished.states() == {"T1": "done", "T2": "done", "T3": "failed", "T4": "done", "T5": "done"}
    for kind in ("cogs", "grids", "products"):
        record = finished.record(kind, "T3")
        assert record["reason"] == "unreadable" and "raw/T3.tif" in record["message"]
    assert finished.stamps().keys() == PRODUCTS
    assert not [problem for name in PRODUCTS for problem in validate_cog(finished.product(*name.split("/")))]
    ledgers = {path.stem: path.read_text().splitlines() for path in finished.result("ledger").glob("*.jsonl")}
    lines = {batch: [json.loads(line) for line in text] for batch, text in ledgers.items()}
    assert {batch: [line["scene"] for line in text] for batch, text in lines.items()} == {
        "T1": ["T1", "T2", "T3"],
        "T4": ["T4", "T5"],
    }
    assert [line["reason"] for line in lines["T1"]] == [None, None, "unreadable"]
    verdict = finished.result("report", "verdict.txt").read_text()
    assert "4 done" in verdict and "T3: unreadable" in verdict


def test_second_run_does_nothing(campaign):
    before = campaign.stamps()
    done = campaign.run()
    assert done.code == 0 and NOTHING in done.text
    assert campaign.stamps() == before


def test_inputs_sheet_and_results_may_be_anywhere_and_pixels_are_the_same(finished, tmp_path):
    places = {name: tmp_path / name for name in ("in puts", "sheet", "conf", "out", "work")}
    for name in ("in puts", "sheet", "conf"):
        places[name].mkdir()
    for path in (finished.path / "raw").iterdir():
        shutil.copy2(path, places["in puts"])
    rows = [row["scene"] + f",{row['sensor']},{places['in puts']}/{row['path'][4:]}\n" for row in finished.rows]
    sheet = places["sheet"] / "my scenes.csv"
    sheet.write_text("scene,sensor,path\n" + "".join(rows[n] for n in (0, 2, 3)))
    config = finished.config | {
        "sheet": os.path.relpath(sheet, places["work"]),
        "sensors": str(finished.path / "sensors"),
        "pathvars": {"results": str(places["out"])},
        "scenes_per_job": 1,
        "max_failed_fraction": 0.3,
    }
    file = places["conf"] / "c.yaml"
    file.write_text(yaml.safe_dump(config))

    def run(*arguments):
        options = ["-s", SNAKEFILE, "--directory", places["work"], "--configfile", os.path.relpath(file, "/usr")]
        return call(snakemake(*options, "--cores", 2, *arguments), cwd="/usr")

    # one of three failed, which is more than allowed: the report is there, the verdict is not
    done = run()
    assert done.code == 1 and "1 of 3 scenes failed, 33.3 %; max_failed_fraction allows 30 %" in done.text
    assert (places["out"] / "report" / "report.html").exists() and (places["out"] / "report" / "methods.yaml").exists()
    assert not (places["out"] / "report" / "verdict.txt").exists()
    file.write_text(yaml.safe_dump(config | {"max_failed_fraction": 0.34}))
    done = run()
    assert (done.code, done.jobs) == (0, END), done.text
    assert NOTHING in run("-n").text
    there = Folder(places["out"]).path / "products"
    assert len(list((places["out"] / "ledger").glob("*.jsonl"))) == 3
    for name in ("T1/ndvi", "T1/sum", "T4/ndvi", "T4/sum"):
        assert (there / f"{name}.tif").read_bytes() == finished.product(*name.split("/")).read_bytes()
    assert not (places["work"] / "results").exists()


CHAINS = {
    "products/T1/ndvi.tif": {"repair T1"},
    "products/T5/record.json": {"repair T4"},
    "cogs/T1/record.json": {"to_cog T1", "warp_grid T1", "compute T1", *END},
    "grids/T2/record.json": {"warp_grid T2", "compute T1", *END},
    "ledger/T4.jsonl": {"compute T4", *END},
    "report/report.html": END,
    "report/methods.yaml": END,
    "report/verdict.txt": {"verdict"},
}


@pytest.mark.parametrize("lost", CHAINS)
def test_what_is_lost_brings_its_own_chain_and_no_other(finished, lost):
    path = finished.result(lost)
    hidden = path.with_name(f"hidden-{path.name}")
    path.rename(hidden)
    try:
        assert finished.plan() == CHAINS[lost]
    finally:
        hidden.rename(path)


def test_a_deleted_product_is_remade_alone_though_the_batch_has_a_damaged_scene(campaign):
    pixels, stamps, attempts = campaign.pixels(), campaign.stamps(), campaign.attempts()
    records = {kind: campaign.record(kind, "T3") for kind in ("cogs", "grids", "products")}
    campaign.product("T1").unlink()
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"repair T1"}), done.text
    assert campaign.changed(stamps) == {"T1/ndvi"}
    assert campaign.pixels() == pixels
    assert campaign.attempts() == attempts | {"T1": 2}
    assert records == {kind: campaign.record(kind, "T3") for kind in records}
    assert campaign.plan() == set()


def test_a_product_and_a_products_record_of_two_batches(campaign):
    pixels, stamps = campaign.pixels(), campaign.stamps()
    campaign.product("T2", "sum").unlink()
    campaign.result("products", "T5", "record.json").unlink()
    assert campaign.plan() == campaign.run().jobs == {"repair T1", "repair T4"}
    assert campaign.changed(stamps) == {"T2/sum", "T5/ndvi", "T5/sum"}
    assert campaign.pixels() == pixels
    assert campaign.plan() == set()


def test_deleted_records_are_rewritten_and_done_products_stay(campaign):
    stamps, attempts = campaign.stamps(), campaign.attempts()
    bands = {path: path.stat().st_ino for path in campaign.result("cogs").glob("*/*.tif")}
    campaign.result("cogs", "T1", "record.json").unlink()
    campaign.result("grids", "T2", "record.json").unlink()
    campaign.result("ledger", "T4.jsonl").unlink()
    wanted = {"to_cog T1", "warp_grid T1", "warp_grid T2", "compute T1", "compute T4", *END}
    done = campaign.run()
    assert (done.code, done.jobs) == (0, wanted), done.text
    assert campaign.changed(stamps) == set()
    assert campaign.attempts() == attempts
    assert bands == {path: path.stat().st_ino for path in campaign.result("cogs").glob("*/*.tif")}
    assert campaign.plan() == set()


def test_a_deleted_product_whose_scene_now_fails_is_in_the_ledger_as_failed(campaign):
    """`compute` writes the ledger anew before `repair` looks at what must be done."""
    stamps = campaign.stamps()
    campaign.product("T2").unlink()
    cut_short(campaign.path / "raw" / "T2.tif")
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"to_cog T2", "warp_grid T2", "compute T1", "repair T1", *END}), done.text
    assert campaign.states()["T2"] == "failed"
    assert campaign.changed(stamps) == {"T2/ndvi", "T2/sum"}  # what is there under its name is right
    assert campaign.plan() == set()


def test_a_wrong_file_in_place_of_a_product_is_found(campaign):
    """The old pixels have the size of the new ones, and one of the two files has its old time."""
    pixels = campaign.pixels()
    campaign.save(products=campaign.config["products"] | {"ndvi": "(red - nir) / (nir + red)"})
    assert campaign.run().code == 0
    for scene in ("T2", "T5"):
        old = campaign.product(scene, "ndvi.stale").read_bytes()
        assert old == pixels[f"{scene}/ndvi"]
    right, stamps = campaign.pixels(), campaign.stamps()
    campaign.product("T2").write_bytes(pixels["T2/ndvi"])
    campaign.product("T5", "ndvi.stale").replace(campaign.product("T5"))
    assert campaign.plan() == campaign.run().jobs == {"repair T1", "repair T4"}
    assert campaign.pixels() == right
    assert campaign.changed(stamps) == {"T2/ndvi", "T5/ndvi"}
    assert campaign.plan() == set()


def test_a_touched_or_moved_product_is_looked_at_and_kept(campaign):
    pixels, attempts = campaign.pixels(), campaign.attempts()
    campaign.product("T2").touch()
    inode = campaign.product("T2").stat().st_ino
    assert campaign.plan() == campaign.run().jobs == {"repair T1"}
    assert campaign.product("T2").stat().st_ino == inode
    assert (campaign.pixels(), campaign.attempts()) == (pixels, attempts)
    assert campaign.plan() == set()


def test_a_new_line_computes_that_scene_and_a_removed_line_computes_nothing(campaign):
    stamps, attempts = campaign.stamps(), campaign.attempts()
    campaign.rows.append(write_scene(campaign.path, "T6", 6))
    campaign.save()
    wanted = {"to_cog T6", "warp_grid T6", "compute T4", *END}
    done = campaign.run()
    assert (done.code, done.jobs) == (0, wanted), done.text
    assert campaign.changed(stamps) == {"T6/ndvi", "T6/sum"}
    assert campaign.attempts() == attempts | {"T6": 1}
    assert campaign.plan() == set()
    # its line and its files go; those of other scenes stay as they are
    campaign.rows.pop()
    campaign.save()
    shutil.rmtree(campaign.result("products", "T6"))
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"compute T4", *END}), done.text
    assert campaign.changed(stamps) == set()
    assert "6 scenes" not in campaign.result("report", "verdict.txt").read_text()
    assert campaign.plan() == set()


def test_a_changed_line_and_a_changed_mask_redo_their_scenes(campaign):
    stamps, attempts, pixels = campaign.stamps(), campaign.attempts(), campaign.pixels()
    campaign.rows[1] |= {"scale": "0.5", "offset": "1"}
    campaign.save(masks={"scl": {"classes": [8, 9]}})
    wanted = {"to_cog T2", "warp_grid T2", "compute T1", "compute T4", *END}
    done = campaign.run()
    assert (done.code, done.jobs) == (0, wanted), done.text
    redone = {"T2/ndvi", "T2/sum", "T4/ndvi", "T4/sum"}
    assert campaign.changed(stamps) == redone
    assert campaign.attempts() == attempts | {"T2": 2, "T4": 2}
    assert all(campaign.pixels()[name] != pixels[name] for name in redone)
    # the bands are stored as they are in the file; what changed is how they are read
    assert campaign.plan() == set()


def test_a_changed_formula_redoes_that_product_and_keeps_the_old_one_aside(campaign):
    stamps, pixels = campaign.stamps(), campaign.pixels()
    campaign.save(products=campaign.config["products"] | {"sum": "red + 2 * nir"})
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"compute T1", "compute T4", *END}), done.text
    assert campaign.changed(stamps) == {name for name in PRODUCTS if name.endswith("sum")}
    assert campaign.product("T1", "sum.stale").read_bytes() == pixels["T1/sum"]
    assert campaign.plan() == set()


def test_a_touched_source_is_read_again_and_a_mended_one_makes_its_scene(campaign):
    stamps, attempts = campaign.stamps(), campaign.attempts()
    (campaign.path / "raw" / "T1.tif").touch()
    write_scene(campaign.path, "T3", 3)
    os.utime(campaign.path / "raw" / "T3.tif", (0, 1e9))  # as a copy that keeps its times leaves it
    done = campaign.run()
    wanted = {"to_cog T1", "warp_grid T1", "to_cog T3", "warp_grid T3", "compute T1", *END}
    assert (done.code, done.jobs) == (0, wanted), done.text
    assert campaign.changed(stamps) == {"T3/ndvi", "T3/sum"}
    assert set(campaign.states().values()) == {"done"}
    assert {**campaign.attempts(), "T3": 0} == {**attempts, "T3": 0}
    assert campaign.plan() == set()


def test_what_changes_no_pixel_redoes_nothing(campaign):
    campaign.config["products"]["ndvi"] = "(nir-red)/(nir+red)"
    campaign.save(
        compute={"device": "cpu", "window": 1, "zstd_level": 3, "stall_s": 20},
        memory={"window_mb": 16, "spool_mb": 0},
        max_attempts=7,
    )
    assert campaign.plan() == set()
    campaign.save(max_failed_fraction=0.25)
    assert campaign.plan() == END
    # no scene has this band
    campaign.save(masks=campaign.config["masks"] | {"qa_pixel": {"bits": [3]}})
    assert campaign.plan() == END
    campaign.save(scenes_per_job=10)
    stamps, attempts = campaign.stamps(), campaign.attempts()
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"compute T1", *END}), done.text
    assert (campaign.changed(stamps), campaign.attempts()) == (set(), attempts)
    assert campaign.plan() == set()


def test_a_finished_campaign_does_not_need_its_raw_files(campaign):
    (campaign.path / "raw").rename(campaign.path / "archive")
    assert campaign.plan() == set()
    campaign.save(products=campaign.config["products"] | {"sum": "red + 2 * nir"})  # the store has the bands
    assert campaign.plan() == {"compute T1", "compute T4", *END}
    campaign.product("T2").unlink()
    done = campaign.run()
    # T2's ndvi is made by `compute`; `repair` finds it there
    assert (done.code, done.jobs) == (0, {"compute T1", "compute T4", "repair T1", *END}), done.text
    assert campaign.plan() == set()
    # what cannot be made without them is said before anything starts
    campaign.result("cogs", "T5", "record.json").unlink()
    campaign.rows[1]["scale"], campaign.rows[1]["offset"] = "0.5", "1"
    campaign.save()
    done = campaign.run("-n")
    assert done.code == 1 and not done.jobs
    assert "scenes.csv:3:3: column 'path': raw/T2.tif not found" in done.text
    assert "scenes.csv:6:3: column 'path': raw/T5.tif not found" in done.text
    assert "T1.tif" not in done.text and "T4" not in done.text
    assert campaign.cogmill("check").code == 2
    (campaign.path / "archive").rename(campaign.path / "raw")
    chains = {f"{rule} {scene}" for rule in ("to_cog", "warp_grid") for scene in ("T2", "T5")}
    assert campaign.plan() == chains | {"compute T1", "compute T4", *END}


def test_a_product_by_name(campaign):
    pixels = campaign.product("T1").read_bytes()
    target = "results/products/T1/ndvi.tif"
    assert NOTHING in campaign.run(target).text
    campaign.product("T1").unlink()
    done = campaign.run(target)
    assert (done.code, done.jobs) == (0, {"product ndvi T1"}), done.text
    assert campaign.product("T1").read_bytes() == pixels
    # Snakemake touches what a job declares, so the next run compares the file with its checksum, once
    inode = campaign.product("T1").stat().st_ino
    assert campaign.run().jobs == {"repair T1"}
    assert campaign.product("T1").stat().st_ino == inode
    assert campaign.plan() == set()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("results/products/T3/ndvi.tif", "raw/T3.tif cannot be read"),
        ("results/products/T9/ndvi.tif", "scene 'T9' is not in the sheet scenes.csv"),
    ],
)
def test_a_product_that_cannot_be_made_ends_with_the_reason(campaign, target, said):
    done = campaign.run(target)
    assert done.code == 1 and said in done.text, done.text
    assert campaign.plan() == set()


def test_a_product_by_name_in_an_empty_folder(finished, tmp_path):
    """What the scene needs is made, and nothing of other scenes."""
    fresh = finished.copy(tmp_path / "fresh")
    shutil.rmtree(fresh.path / "results")
    shutil.rmtree(fresh.path / ".snakemake")
    done = fresh.run("results/products/T4/sum.tif")
    assert (done.code, done.jobs) == (0, {"to_cog T4", "warp_grid T4", "product sum T4"}), done.text
    assert fresh.pixels() == {"T4/sum": finished.pixels()["T4/sum"]}
    assert {path.name for path in fresh.result("cogs").iterdir()} == {"T4"}


def small_files() -> None:
    """Let this process write no file larger than 64 KB, which fails as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))


def unmake(campaign: Folder, scene: str) -> None:
    """Take a scene's products away, and the ledger of the first batch."""
    shutil.rmtree(campaign.result("products", scene))
    campaign.result("ledger", "T1.jsonl").unlink()


def test_a_fault_that_passes_fails_the_run_and_the_next_one_succeeds(campaign):
    pixels, stamps = campaign.pixels(), campaign.stamps()
    unmake(campaign, "T1")
    done = campaign.run(preexec_fn=small_files)
    assert done.code == 1 and "File too large" in done.text, done.text
    assert not campaign.result("ledger", "T1.jsonl").exists()
    record = campaign.record("products", "T1")
    assert record["retryable"] and record["attempts"][-1]["outcome"] == "retry"
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"compute T1", *END}), done.text
    assert campaign.pixels() == pixels
    assert campaign.changed(stamps) == {"T1/ndvi", "T1/sum"}


def test_a_fault_that_stays_is_recorded_and_cogmill_retry_takes_it_up(campaign):
    pixels = campaign.pixels()
    campaign.save(max_attempts=1)
    unmake(campaign, "T1")
    done = campaign.run(preexec_fn=small_files)
    assert done.code == 0, done.text  # two of five failed, half may
    assert campaign.states()["T1"] == "failed"
    assert campaign.plan() == set()
    status = campaign.cogmill("status").text
    assert "3  done" in status and "2  failed" in status
    assert "T1: io_error (products, can be retried): " in status and "T3: unreadable (cogs): " in status
    said = campaign.cogmill("retry").text
    assert "T1: io_error: will be tried again" in said and "T3" not in said
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"compute T1", *END}), done.text
    assert campaign.pixels() == pixels
    assert campaign.plan() == set()


def test_a_forgotten_scene_is_made_again(campaign):
    pixels, stamps = campaign.pixels(), campaign.stamps()
    assert campaign.cogmill("forget", "T5").code == 0
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"to_cog T5", "warp_grid T5", "compute T4", *END}), done.text
    assert campaign.changed(stamps) == {"T5/ndvi", "T5/sum"}
    assert campaign.pixels() == pixels


def test_all_mistakes_come_in_one_message_and_nothing_is_started(finished, tmp_path):
    (tmp_path / "scenes.csv").write_text("scene,sensor,path\nA,rednir,a.tif\nA,nosensor,a.tif\nB/2,rednir,x.tif\n")
    text = (
        f"sheet: scenes.csv\nsensors: {finished.path}/sensors\n"
        "products:\n  ndvi: (nir - red / (nir + red)\n  evi: nir - blue\ncog: {zstd_level: 40}\nmaxfailed: 1\n"
    )
    (tmp_path / "config.yaml").write_text(text)
    for arguments in ((), ("-n",)):
        done = Folder(tmp_path).run(*arguments)
        assert done.code == 1 and not done.jobs
        places = [
            line.strip().split(": ")[0]
            for line in done.text.splitlines()
            if line.strip().startswith((f"{tmp_path}/config.yaml:", "scenes.csv:"))
        ]
        assert sorted(places) == sorted(
            [f"{tmp_path}/config.yaml:{place}" for place in ("4:33", "5:14", "6:19", "7:1")]
            + [f"scenes.csv:{place}" for place in ("2:3", "3:1", "3:2", "4:1")]
        ), done.text
        assert "Traceback" not in done.text
    assert not (tmp_path / "results").exists()


STORAGE_PLUGIN = """\
from snakemake_interface_storage_plugins.settings import StorageProviderSettingsBase
from snakemake_interface_storage_plugins.storage_object import StorageObjectRead, StorageObjectWrite
from snakemake_interface_storage_plugins.storage_provider import StorageProviderBase


class StorageProviderSettings(StorageProviderSettingsBase):
    pass


class StorageProvider(StorageProviderBase):
    pass


StorageProvider.__abstractmethods__ = frozenset()  # nothing is stored


class StorageObject(StorageObjectRead, StorageObjectWrite):
    pass
"""


def test_a_default_storage_provider_is_refused_with_words(campaign, tmp_path):
    """It would upload declared outputs, and products are none."""
    plugin = tmp_path / "lib" / "snakemake_storage_plugin_stub" / "__init__.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(STORAGE_PLUGIN)
    options = ["--default-storage-provider", "stub", "--default-storage-prefix", "stub://x"]
    done = campaign.run(*options, env=environment(PYTHONPATH=str(tmp_path / "lib")))
    assert done.code == 1 and "cogmill cannot run with a default storage provider" in done.text, done.text


def test_profile_local_works_from_the_root_of_the_repository(campaign):
    options = ["--directory", campaign.path, "--configfile", campaign.path / "config.yaml"]
    done = call(snakemake("--profile", "profiles/local", *options), cwd=ROOT)
    assert done.code == 0 and NOTHING in done.text, done.text


def test_profiles_work_by_bare_name_once_installed(campaign, tmp_path):
    env = environment(XDG_CONFIG_HOME=str(tmp_path / "xdg"))
    made = call(["make", "-C", ROOT, "profiles"], env=env)
    assert made.code == 0, made.text
    campaign.result("ledger", "T4.jsonl").unlink()
    for name in ("local", "slurm-gpu"):
        options = ["-s", SNAKEFILE, "--configfile", "config.yaml", "-n", "--profile", name]
        done = call(snakemake(*options), cwd=campaign.path, env=env)
        assert (done.code, done.jobs) == (0, {"compute T4", *END}), done.text


def repository(to: Path) -> Path:
    """A copy of what a run needs of the repository, to be harmed."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("workflow", "scripts", "envs", "profiles"):
        shutil.copytree(ROOT / name, to / name, ignore=ignored)
    return to


@pytest.mark.parametrize("place", ["in a function", "when it is imported"])
def test_an_error_in_a_kernel_is_no_scenes_fault(campaign, tmp_path, place):
    pixels = campaign.pixels()
    campaign.root = repository(tmp_path / "repository")
    kernel = campaign.root / "scripts" / "cogmill" / "kernels" / "cpu.py"
    right = kernel.read_text(encoding="utf-8")
    assert campaign.plan() == set()
    shutil.rmtree(campaign.result("products"))
    shutil.rmtree(campaign.result("ledger"))
    if place == "in a function":
        head, found, tail = right.partition("    def __call__(")
        signature, colon, body = tail.partition(":\n")
        assert found and colon
        wrong = f"{head}{found}{signature}{colon}        pixles\n{body}"
    else:
        wrong = right + "\npixles\n"
    kernel.write_text(wrong, encoding="utf-8")
    done = campaign.run("--until", "compute")
    assert done.code == 1 and "NameError: name 'pixles' is not defined" in done.text, done.text
    assert not list(campaign.result("ledger").glob("*.jsonl"))
    scenes = [path.parent.name for path in campaign.result("products").glob("*/record.json")]
    records = [campaign.record("products", scene) for scene in scenes]
    assert all(record["reason"] == "unfinished" and record["journal"]["died"] == 0 for record in records)
    kernel.write_text(right, encoding="utf-8")
    done = campaign.run()
    assert (done.code, done.jobs) == (0, {"compute T1", "compute T4", *END}), done.text
    assert campaign.pixels() == pixels


def test_file_names_that_snakemake_would_fill_in(tmp_path):
    names = {"T1": "{x}.tif", "T2": "{scene}.tif", "T3": "<results>.tif", "T4": "{{a}} <b>.tif"}
    rows = [write_scene(tmp_path, scene, 1) | {"path": f"raw/{name}"} for scene, name in names.items()]
    for scene, name in names.items():
        (tmp_path / "raw" / f"{scene}.tif").rename(tmp_path / "raw" / name)
    campaign = new_campaign(tmp_path, rows)
    done = campaign.run()
    assert done.code == 0, done.text
    assert campaign.states() == dict.fromkeys(names, "done")
    assert not campaign.plan()
    for name in names.values():
        write_raster(tmp_path / "raw" / name, red_nir((60, 70), seed=9))
    assert {f"to_cog {scene}" for scene in names} <= campaign.plan()
