"""The report: numbers that follow from the records, pictures of the products, a page that survives odd records."""

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import rasterio
import yaml
from PIL import Image
from rasterio.transform import from_origin

from cogmill.report import write_report
from cogmill.report.quicklooks import choose_style, make_quicklook

NDVI = {
    "formula": "(nir - red) / (nir + red)",
    "dtype": "float32",
    "scale": 1.0,
    "offset": 0.0,
    "nodata": "nan",
    "unit": "1",
    "description": "Vegetation <index>",
    "kind": "continuous",
}
SPEC = {"products": {"ndvi": NDVI}, "masks": {"scl": {"classes": [3, 8, 9], "bits": []}}}
ATTEMPT = {
    "products": ["ndvi"],
    "seconds": {"read": 0.5, "compute": 1.0, "total": 2.0},
    "bytes": {"read": 3_000_000, "pixels_in": 8_000_000, "written": 1_000_000, "pixels_out": 4_000_000},
    "tiles": 10,
    "reader": "tiles",
    "codec": "libzstd",
    "window": [[4, 4], [2, 4]],
    "device": "cpu",
    "device_name": "A CPU",
    "machine": {"cpu": "A CPU", "cores": 8, "memory_mb": 32_000, "gpu": None},
    "threads": 2,
    "peak_memory_mb": 300.0,
    "versions": {"cogmill": "0.1.0", "numba": "0.61.2"},
}
STATS = {"valid": 300, "invalid": 100, "clamped": 1, "infinite": 2, "min": -0.5, "max": 0.75, "mean": 0.25}
BAND = {
    "kind": "continuous",
    "written": True,
    "dtype": "uint16",
    "crs": rasterio.crs.CRS.from_epsg(32632).to_wkt(),
    "transform": [10.0, 0, 600_000, 0, -10.0, 5_000_000],
    "radiometry": {"scale": 0.0001, "offset": -0.1, "decided_by": "sensor", "evidence": "sensor file"},
    "tile_checksums": "AAAA",
}
SOURCE = {"path": "a.tif", "size": 2_000_000, "driver": "GTiff", "dtype": "uint16", "compression": "deflate"}


def done_line(scene, attempt=ATTEMPT, **stats):
    entry = {"file": "ndvi.tif", "size": 500_000, "checksum": "c", "pixel_digest": [scene], "stats": STATS | stats}
    common = {"scene": scene, "state": "done", "reason": None, "message": None, "retryable": False}
    return common | {"sensor": "sentinel2_l2a", "products": {"ndvi": entry}, "attempts": [attempt]}


def failed_line(scene, reason="unreadable", message="the file is cut off"):
    common = {"scene": scene, "state": "failed", "reason": reason, "message": message, "retryable": False}
    return common | {"sensor": "landsat8_l2", "products": {}, "attempts": []}


UTM32, LAEA = (rasterio.crs.CRS.from_epsg(code).to_wkt() for code in (32632, 3035))
PROJECTION = {
    "name": "Inverse of UTM zone 32N + Europe LAEA",
    "definition": "proj=pipeline step inv proj=utm zone=32 step proj=laea",
    "accuracy_m": 1.0,
    "ballpark": False,
    "missing_grids": [],
    "proj": "9.5.1",
}
NODES = {"engine": "grid", "max_error_px": 0.01, "error_px": 0.00042, "step": 64, "file": "grid.tif", "checksum": "ab"}
NODES |= {"exact_cells": 0, "projection": PROJECTION}
WARPED = SPEC | {
    "products": {"ndvi": NDVI | {"resampling": "bilinear"}},
    "warp": {"order": "bands_then_index", "allow_aliasing": False},
}
CHECK = {
    "tile": [1, 0],
    "pixels": 262_144,
    "passed": True,
    "products": {
        "ndvi": {
            "compared": 200_000,
            "differing_validity": 3,
            "excused": 3,
            "largest_difference": 2.5e-4,
            "median_difference": 1e-8,
        }
    },
}


def grid_record(operation="grid", warp=NODES, ratio=1.004, left=4_450_000.0, source=UTM32, target=LAEA):
    """What warp_grid records of a scene of 10 m pixels in UTM that comes onto 10 m pixels of EPSG:3035."""
    grid = {"crs": target, "transform": [10.0, 0, left, 0, -10.0, 2_140_000.0], "shape": [700, 900]}
    of = {"grid": {"crs": source}, "bands": ["red", "nir"], "ratio": ratio, "affine": [1, 0, 0, 0, 1, 0], "masks": {}}
    return {
        "state": "done",
        "grid": grid,
        "operation": operation,
        "bands": ["red", "nir"],
        "sources": [of],
        "warp": warp,
    }


class Campaign:
    """A results folder with ledger lines and records as a test wants them."""

    def __init__(self, folder: Path):
        self.results = folder / "results"
        self.lines: list = []

    def product(self, scene: str, shape=(700, 900)) -> Path:
        """An NDVI COG of a ramp from -1 to 1 with an invalid corner."""
        path = self.results / "products" / scene / "ndvi.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.linspace(-1, 1, shape[0] * shape[1], dtype=np.float32).reshape(shape)
        values[: shape[0] // 4, : shape[1] // 4] = np.nan
        profile = {"driver": "COG", "height": shape[0], "width": shape[1], "count": 1, "dtype": "float32"}
        profile |= {"nodata": np.nan, "crs": "EPSG:32632", "transform": from_origin(600_000, 5_000_000, 10, 10)}
        with rasterio.open(path, "w", **profile, compress="ZSTD", overview_resampling="average") as target:
            target.write(values, 1)
        return path

    def stored(self, scene: str, record=None) -> str:
        """The scene's cogs record."""
        path = self.results / "cogs" / scene / "record.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        bands = {"red": copy.deepcopy(BAND), "nir": copy.deepcopy(BAND)}
        record = record or {
            "scene": scene,
            "state": "done",
            "sensor": "sentinel2_l2a",
            "sources": [SOURCE, SOURCE],
            "bands": bands,
            "seconds": {"total": 1.5},
        }
        path.write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")
        return str(path)

    def placed(self, scene: str, record) -> str:
        """The scene's grids record."""
        path = self.results / "grids" / scene / "record.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")
        return str(path)

    def report(self, cogs=(), **settings) -> tuple[str, dict]:
        """Write the report; the page's text and the methods document."""
        ledger = self.results / "ledger" / "first.jsonl"
        ledger.parent.mkdir(parents=True, exist_ok=True)
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in self.lines)
        ledger.write_text(text, encoding="utf-8")
        folder = self.results / "report"
        options = {"spec": SPEC, "max_failed_fraction": 0.5} | settings
        html, methods = folder / "report.html", folder / "methods.yaml"
        write_report([ledger], cogs, self.results / "products", html, methods, **options)
        assert not list(folder.rglob(".*")), "temporary files stay behind"
        return html.read_text(encoding="utf-8"), yaml.safe_load(methods.read_text(encoding="utf-8"))


@pytest.fixture
def campaign(tmp_path) -> Campaign:
    return Campaign(tmp_path)


class Page(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data):
        self.words.append(data)


def test_numbers_follow_from_the_records(campaign):
    campaign.lines = [done_line("A"), done_line("B", valid=100, mean=0.65, min=-0.75), failed_line("C")]
    cogs = [campaign.stored("A"), campaign.stored("B")]
    _, doc = campaign.report(cogs)
    out = doc["outputs"]
    assert out["scenes"] == {"total": 3, "done": 2, "skipped": 0, "failed": 1, "in_no_ledger": 0}
    assert out["not_done"] == [
        {"scene": "C", "state": "failed", "reason": "unreadable", "message": "the file is cut off"}
    ]
    assert out["wall_seconds"] == 4.0 and out["to_cog_seconds"] == 3.0
    assert out["wall_seconds_by_stage"] == {"read": 1.0, "compute": 2.0}
    assert out["tiles"] == 20 and out["tiles_per_second"] == 5.0
    assert out["mb_per_second"] == {"pixels": 6.0, "files": 2.0}
    assert out["peak_memory_mb"] == 300.0
    assert doc["products"]["ndvi"]["result"] == {
        "files": 2,
        "mb": 1.0,
        "valid_pixels": 400,
        "invalid_pixels": 200,
        "clamped_pixels": 2,
        "infinite_pixels": 4,
        "min": -0.75,
        "mean": 0.35,
        "max": 0.75,
    }


def test_methods_say_what_was_done(campaign):
    campaign.lines = [done_line("A"), done_line("B")]
    _, doc = campaign.report([campaign.stored("A"), campaign.stored("B")], run={"window": "auto"})
    assert doc["hardware"] == [{"cpu": "A CPU", "cores": 8, "memory_mb": 32_000, "gpu": None, "scenes": 2}]
    assert doc["software"]["numba"] == "0.61.2", "the version that made the pixels, not the one that reports"
    wanted = {"cogmill", "python", "gdal", "rasterio", "numpy", "numba", "zstandard", "proj", "snakemake"}
    assert wanted <= set(doc["software"])
    assert doc["inputs"]["files"] == 4 and doc["inputs"]["mb"] == 8.0
    assert doc["inputs"]["drivers"] == {"GTiff": 4} and doc["inputs"]["compression"] == {"deflate": 4}
    assert doc["inputs"]["bands_stored"] == 4 and doc["inputs"]["sensors"] == {"sentinel2_l2a": 2}
    grid = {"crs": "EPSG:32632", "unit": "m", "pixel_size": [10.0, 10.0], "operation": "identity", "scenes": 2}
    assert doc["grid"] == [grid] and doc["resampling"] == {"scenes": 0} and doc["self_check"]["tiles"] == 0
    rule = {"scale": 0.0001, "offset": -0.1, "decided_by": "sensor", "scenes": 2}
    assert doc["radiometry"] == {"sentinel2_l2a": {"nir": [rule], "red": [rule]}}
    assert doc["masks"] == SPEC["masks"] and doc["products"]["ndvi"]["formula"] == NDVI["formula"]
    assert doc["run"]["readers"] == {"tiles": 2} and doc["run"]["windows"] == {"2 x 4 tiles": 2}
    assert doc["run"]["settings"] == {"window": "auto"} and doc["run"]["batches"] == 1


def warped(campaign, records: dict, checks=CHECK, **settings):
    """Report of done scenes {scene: grids record}."""
    campaign.lines = [done_line(scene) | {"self_check": checks} for scene in records]
    cogs = [campaign.stored(scene) for scene in records]
    grids = [campaign.placed(scene, record) for scene, record in records.items()]
    return campaign.report(cogs, **({"grids": grids, "spec": WARPED} | settings))


def test_methods_say_how_scenes_came_onto_another_grid(campaign):
    coarse = grid_record(warp=NODES | {"step": 32, "error_px": 0.0071, "exact_cells": 5}, ratio=1.008, left=4_460_000.0)
    html, doc = warped(campaign, {"A": grid_record(), "B": coarse})
    assert doc["grid"] == [
        {
            "crs": "EPSG:3035",
            "unit": "m",
            "pixel_size": [10.0, 10.0],
            "operation": "grid",
            "source_crs": "EPSG:32632",
            "engine": "grid",
            "projection": PROJECTION,
            "extent": "of each scene",
            "aligned": True,
            "source_pixels_a_target_pixel": [1.004, 1.008],
            "control_grid": {
                "steps": {"32": 1, "64": 1},
                "allowed_error_px": 0.01,
                "largest_error_px": 0.0071,
                "exact_cells": 5,
            },
            "scenes": 2,
        }
    ]
    assert doc["resampling"] == {
        "scenes": 2,
        "order": "bands_then_index",
        "methods": {"ndvi": "bilinear"},
        "allow_aliasing": False,
        "aliased_scenes": 0,
    }
    words = " ".join(Page(html).words)
    assert "error up to 0.0071 px of 0.01 px allowed, 5 cells exact" in words
    assert f"PROJ 9.5.1: {PROJECTION['name']}, accuracy 1 m" in words and "ndvi: bilinear" in words


def test_text_for_a_paper_says_what_the_numbers_say(campaign):
    html, doc = warped(campaign, {"A": grid_record(), "B": grid_record(left=4_460_000.0)})
    assert doc["text"] == (
        f"ndvi = (nir - red) / (nir + red) was computed from 2 scenes with cogmill {ATTEMPT['versions']['cogmill']}. "
        "Pixels were masked by the original values of the quality bands scl, and stored numbers converted to physical "
        "values, before anything else. The grid of 2 scenes is that of EPSG:3035 with pixels of 10 x 10 m at whole "
        "multiples of the pixel size. Pixel coordinates in the scenes were computed with PROJ 9.5.1 (EPSG:32632: "
        "operation 'Inverse of UTM zone 32N + Europe LAEA', accuracy 1 m) at the nodes of a control grid (64 pixels "
        "apart) and interpolated bilinearly between them, with an error of at most 0.00042 source pixels. Resampling: "
        "bilinear interpolation (ndvi); bands were resampled, then the formula was computed from them. Kernels have "
        "their width in source pixels. A second computation by separate code, in float64 from exact coordinates, "
        "covered 2 tiles (524,288 pixels): all within the error allowed (largest difference 0.00025)."
    )
    assert doc["text"] in " ".join(Page(html).words)


OPERATIONS = {
    "affine": (grid_record("affine", {**NODES, "projection": None}, target=UTM32), "placed by an affine transform"),
    "exact": (grid_record("exact"), "for every pixel"),
    "gdal": (grid_record("gdal", NODES | {"engine": "gdal", "projection": None}), "warped by GDAL (engine gdal)"),
    "ballpark": (
        grid_record(warp=NODES | {"projection": PROJECTION | {"ballpark": True, "accuracy_m": None}}),
        "of unknown accuracy, ballpark: no datum shift is known",
    ),
    "missing grids": (
        grid_record(warp=NODES | {"projection": PROJECTION | {"missing_grids": ["a.tif", "b.tif"]}}),
        "without the grids a.tif and b.tif",
    ),
    "exact cells": (grid_record(warp=NODES | {"exact_cells": 3}), "at every pixel in 3 cells of it"),
    "off the lattice": (grid_record(left=4_450_003.0), "10 x 10 m. Pixel"),
    "identity": (grid_record("identity", None), "Not resampled, as each stayed on its own grid: 1 scene."),
}


@pytest.mark.parametrize("case", OPERATIONS)
def test_text_tells_every_way_of_placing_pixels(campaign, case):
    record, words = OPERATIONS[case]
    _, doc = warped(campaign, {"A": record})
    assert words in doc["text"]
    assert ("Resampling" in doc["text"]) == (case != "identity")


def test_scenes_of_one_extent_are_told_by_it(campaign):
    utm33 = rasterio.crs.CRS.from_epsg(32633).to_wkt()
    _, doc = warped(campaign, {"A": grid_record(), "B": grid_record(source=utm33)})
    assert [entry["extent"] for entry in doc["grid"]] == [[4_450_000.0, 2_133_000.0, 4_459_000.0, 2_140_000.0]] * 2
    _, doc = warped(campaign, {"A": grid_record(), "B": grid_record(left=4_460_000.0)})
    assert doc["grid"][0]["extent"] == "of each scene"


def test_scenes_of_two_zones_are_told_apart(campaign):
    utm33 = rasterio.crs.CRS.from_epsg(32633).to_wkt()
    _, doc = warped(campaign, {"A": grid_record(), "B": grid_record(source=utm33), "C": grid_record()})
    assert [(entry["source_crs"], entry["scenes"]) for entry in doc["grid"]] == [("EPSG:32632", 2), ("EPSG:32633", 1)]
    assert doc["text"].count("EPSG:3035") == 1 and "The grid of 3 scenes" in doc["text"]
    assert doc["text"].count("Pixel coordinates") == 1
    assert "(EPSG:32632: operation" in doc["text"] and "; EPSG:32633: operation" in doc["text"]
    assert doc["software"]["proj"] == "9.5.1", "the PROJ that placed the pixels"
    assert doc["software"]["proj_of_gdal"] == rasterio.__proj_version__


def test_aliasing_that_was_allowed_is_told(campaign):
    spec = WARPED | {"warp": {"order": "bands_then_index", "allow_aliasing": True}}
    html, doc = warped(campaign, {"A": grid_record(ratio=3.2), "B": grid_record()}, spec=spec)
    assert doc["resampling"]["aliased_scenes"] == 1 and doc["resampling"]["allow_aliasing"] is True
    assert "wider than 1.5 source pixels" in doc["text"] and "aliasing allowed" in html
    spec["products"] = {"ndvi": NDVI | {"resampling": "average"}}
    _, doc = warped(campaign, {"A": grid_record(ratio=3.2)}, spec=spec)
    assert doc["resampling"]["aliased_scenes"] == 0


def test_classes_are_told_by_the_method_that_they_are_taken_by(campaign):
    record = {"sensor": "s", "bands": {"nir": BAND, "scl": BAND | {"kind": "classes"}}}
    spec = WARPED | {"products": {"mixed": NDVI | {"formula": "nir + scl", "resampling": "bilinear"}}}
    campaign.lines = [done_line("A")]
    cogs, grids = [campaign.stored("A", record)], [campaign.placed("A", grid_record())]
    _, doc = campaign.report(cogs, grids=grids, spec=spec)
    assert doc["resampling"]["methods"]["mixed"] == {"nir": "bilinear", "scl": "nearest"}
    assert "bilinear interpolation (nir of mixed); nearest neighbour (scl of mixed)" in doc["text"]


def test_self_checks_are_added_up(campaign):
    worse = copy.deepcopy(CHECK)
    worse["products"]["ndvi"] |= {"largest_difference": 0.5, "median_difference": 3e-8, "excused": 1}
    campaign.lines = [
        done_line("A") | {"self_check": CHECK},
        failed_line("B", "self_check") | {"self_check": worse | {"passed": False}},
        done_line("C") | {"self_check": None},
        done_line("D"),
    ]
    html, doc = campaign.report()
    part = {"compared": 400_000, "differing_validity": 6, "excused": 4}
    part |= {"largest_difference": 0.5, "median_of_median_differences": 2e-8}
    assert doc["self_check"] == {
        "tiles": 2,
        "passed": 1,
        "failed": ["B"],
        "pixels": 524_288,
        "products": {"ndvi": part},
    }
    assert "1 of 2 tiles passed" in html and "1 of them within the error allowed" in doc["text"]


def test_skipped_scenes_are_listed_with_their_reason(campaign):
    line = failed_line("B", "no_overlap", "no pixel of the target lies on it: no overlap") | {"state": "skipped"}
    campaign.lines = [done_line("A"), line, line | {"scene": "C"}]
    html, doc = campaign.report()
    assert doc["outputs"]["scenes"]["skipped"] == 2
    entry = {"scene": "B", "state": "skipped", "reason": "no_overlap", "message": line["message"]}
    assert entry in doc["outputs"]["not_done"]
    words = " ".join(Page(html).words)
    assert "Skipped scenes" in words and "2 × no_overlap" in re.sub(r"\s+", " ", words) and "B, C" in words
    assert "Failed scenes" not in words


ODD_GRIDS = [
    grid_record() | {"sources": [3, {"grid": 5, "ratio": "x", "bands": 7}], "warp": 4},
    grid_record() | {"sources": "none", "warp": {"projection": [1], "step": "x", "error_px": None}},
    grid_record() | {"grid": {"crs": "no wkt", "transform": [1, 2], "shape": "big"}, "operation": ["grid"]},
    grid_record() | {"grid": [], "warp": {"projection": {"name": 7, "missing_grids": 3, "accuracy_m": "nan"}}},
    grid_record() | {"grid": {"crs": 7, "transform": [0.0] * 6, "shape": [1, None]}},
    {"operation": "affine"},
]
ODD_CHECKS = ["yes", 3, {"passed": "x", "pixels": "many", "products": {"ndvi": 4, "ndwi": {"compared": "inf"}}}, {}]


@pytest.mark.parametrize("spec", [WARPED, {}, {"warp": 3, "products": {"ndvi": {"resampling": [1], "formula": 3}}}])
@pytest.mark.parametrize("odd", ODD_GRIDS)
def test_odd_grids_and_checks_do_not_break_the_report(campaign, odd, spec):
    for checks in ODD_CHECKS:
        _, doc = warped(campaign, {"A": odd, "B": grid_record()}, checks, spec=spec)
        assert sum(entry["scenes"] for entry in doc["grid"]) == 2


def test_twice_the_seconds_halve_the_rates(campaign):
    campaign.lines = [done_line("A"), done_line("B")]
    _, doc = campaign.report()
    slow = copy.deepcopy(ATTEMPT)
    slow["seconds"] = {stage: 2 * seconds for stage, seconds in ATTEMPT["seconds"].items()}
    campaign.lines = [done_line("A", slow), done_line("B", slow)]
    _, twice = campaign.report()
    assert twice["outputs"]["wall_seconds"] == 2 * doc["outputs"]["wall_seconds"]
    assert twice["outputs"]["tiles_per_second"] == doc["outputs"]["tiles_per_second"] / 2
    for key, rate in doc["outputs"]["mb_per_second"].items():
        assert twice["outputs"]["mb_per_second"][key] == rate / 2


def test_page_needs_no_network_and_links_only_what_is_there(campaign):
    campaign.lines = [done_line("A")]
    campaign.product("A")
    html, _ = campaign.report([campaign.stored("A")])
    page = Page(html)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "url(" not in html and "@import" not in html
    folder = campaign.results / "report"
    assert "quicklooks/A/ndvi.png" in page.links and "../products/A/ndvi.tif" in page.links
    assert all((folder / link).exists() for link in page.links)
    assert "prefers-color-scheme: dark" in html


def test_verdict_comes_first_and_is_that_of_the_verdict_rule(campaign):
    campaign.lines = [done_line("A"), failed_line("B")]
    html, doc = campaign.report()
    assert doc["campaign"]["verdict"] == "fine"
    assert html.index("The campaign is fine") < html.index("Products")
    html, doc = campaign.report(max_failed_fraction=0.1)
    assert "The campaign failed" in html and doc["campaign"]["verdict"].startswith("1 of 2 scenes failed, 50 %")


@pytest.mark.parametrize("reason", ["damaged_tile", "a_word_nobody_knows"])
def test_failure_is_shown_with_reason_message_and_what_to_do(campaign, reason):
    campaign.lines = [done_line("A"), failed_line("B", reason, "tile 3 of B.tif")]
    html, _ = campaign.report()
    words = " ".join(Page(html).words)
    assert reason in words and "tile 3 of B.tif" in words and "What to do:" in words


def test_scene_of_the_sheet_in_no_ledger_is_shown(campaign):
    campaign.lines = [done_line("A")]
    html, doc = campaign.report(scenes=["A", "B"])
    assert doc["outputs"]["scenes"]["in_no_ledger"] == 1 and "in no ledger: B" in doc["campaign"]["verdict"]
    assert "missing" in html


def test_every_text_is_escaped(campaign):
    evil = '<script>alert("1")</script><img src=x onerror=alert(1)>'
    scene = done_line("A")
    scene["sensor"] = evil
    attempt = copy.deepcopy(ATTEMPT)
    attempt |= {"device": evil, "reader": evil, "device_name": evil, "versions": {evil: evil}}
    attempt["machine"]["cpu"] = evil
    scene["attempts"] = [attempt]
    campaign.lines = [scene, failed_line("B", evil, evil)]
    record = {
        "sensor": evil,
        "sources": [SOURCE | {"driver": evil}],
        "bands": {evil: BAND | {"radiometry": {"scale": evil}}},
    }
    spec = {
        "products": {"ndvi": NDVI | dict.fromkeys(("description", "formula", "dtype", "unit"), evil)},
        "masks": {evil: {evil: [evil]}},
    }
    html, _ = campaign.report([campaign.stored("A", record)], spec=spec)
    tags = Page(html).tags
    assert "script" not in tags and tags.count("img") == 0
    assert "&lt;script&gt;" in html


ODD_LINES = [
    "not json at all",
    "[1, 2]",
    '"text"',
    {"scene": "only a name"},
    {"scene": "D", "state": ["done"]},
    {"scene": "E", "state": "skipped", "reason": None},
    {"scene": "F", "state": "done", "products": [1], "attempts": "yesterday"},
    {
        "scene": "G",
        "state": "done",
        "products": {"ndvi": None, "ndwi": {}},
        "attempts": [{"seconds": 3, "bytes": None}, 7],
    },
    {
        "scene": "H",
        "state": "done",
        "sensor": {"name": "x"},
        "products": {"ndvi": {"stats": {"valid": "nan", "min": "inf", "mean": None, "max": [1]}, "size": "big"}},
        "attempts": [{"seconds": {"total": "nan"}, "tiles": None, "device": {"a": 1}, "window": [3], "machine": 7}],
    },
]
ODD_RECORDS = [
    "",
    "[]",
    "null",
    '{"bands": 3, "sources": 4}',
    '{"bands": {"red": 1, "nir": {"radiometry": 5, "crs": 7, "transform": "x"}}, "sources": [1, {"size": "x"}]}',
    '{"bands": {"red": {"crs": "no wkt", "kind": "continuous", "transform": [1, 2], "radiometry": {"scale": [1]}}}}',
]


def test_odd_records_become_notes(campaign):
    campaign.lines = [done_line("A"), *ODD_LINES]
    names = "ADEFGH"
    cogs = [campaign.stored(name, text or " ") for name, text in zip(names, ODD_RECORDS, strict=True)]
    html, doc = campaign.report([*cogs, str(campaign.results / "gone" / "record.json")])
    assert doc["outputs"]["scenes"]["done"] == 4
    notes = "\n".join(doc["notes"])
    assert "first.jsonl line 2" in notes and "gone" in notes and "no quicklook" in notes
    assert "only a name" in html


@pytest.mark.parametrize("lines", [[], [failed_line("A")]])
def test_campaign_without_products_has_a_report(campaign, lines):
    campaign.lines = lines
    html, doc = campaign.report()
    assert doc["outputs"]["tiles_per_second"] is None and doc["outputs"]["peak_memory_mb"] is None
    assert "The campaign failed" in html


def test_ledger_that_is_not_there_becomes_a_note(campaign, tmp_path):
    folder = tmp_path / "report"
    write_report([tmp_path / "gone.jsonl"], [], tmp_path, folder / "r.html", folder / "m.yaml", scenes=["A"])
    assert "gone.jsonl" in (folder / "r.html").read_text()


def test_quicklook_is_small_transparent_and_made_once(campaign):
    campaign.lines = [done_line("A")]
    campaign.product("A", (1300, 2100))
    campaign.report()
    path = campaign.results / "report" / "quicklooks" / "A" / "ndvi.png"
    with Image.open(path) as image:
        assert max(image.size) <= 512 and max(image.size) > 200
        pixels = np.asarray(image.convert("RGBA"))
    assert pixels[0, 0, 3] == 0 and pixels[-1, -1, 3] == 255
    before = path.stat().st_mtime_ns
    campaign.report()
    assert path.stat().st_mtime_ns == before
    line = done_line("A")
    line["products"]["ndvi"]["pixel_digest"] = ["another"]
    campaign.lines = [line]
    campaign.report()
    assert path.stat().st_mtime_ns != before


def test_ends_and_middle_of_a_diverging_map(tmp_path):
    style = choose_style(NDVI, [])
    assert (style.low, style.high) == (-1.0, 1.0)
    path = tmp_path / "ndvi.tif"
    profile = {"driver": "GTiff", "height": 1, "width": 4, "count": 1, "dtype": "float32", "nodata": np.nan}
    with rasterio.open(path, "w", **profile) as target:
        target.write(np.array([[-1, 0, 1, np.nan]], np.float32), 1)
    make_quicklook(path, tmp_path / "q.png", style, "digest")
    with Image.open(tmp_path / "q.png") as image:
        low, middle, high, none = np.asarray(image.convert("RGBA"))[0].astype(int)
    assert low[0] > low[2] and high[2] > high[0], "brown for low, blue-green for high"
    assert middle[:3].min() > 235 and none[3] == 0


def test_packed_values_are_shown_in_their_unit(tmp_path):
    path = tmp_path / "evi.tif"
    profile = {"driver": "GTiff", "height": 10, "width": 10, "count": 1, "dtype": "int16", "nodata": -32768}
    with rasterio.open(path, "w", **profile) as target:
        target.write(np.arange(100, dtype=np.int16).reshape(10, 10) * 100, 1)
        target.scales, target.offsets = (0.0001,), (1.0,)
    style = choose_style({"formula": "2.5 * nir"}, [path])
    assert 1.0 < style.low < 1.05 and 1.94 < style.high < 2.0


def test_formulas_that_are_normalised_differences():
    diverging = ["(nir-red)/(nir+red)", "(green - nir) / (nir + green)"]
    assert all(choose_style({"formula": text}, []).colours == "BrBG" for text in diverging)
    others = ["nir / red", "(nir - red) / (nir + green)", "(nir - red) / (nir + red) + 1", None]
    assert all(choose_style({"formula": text}, []).colours == "viridis" for text in others)


@pytest.mark.parametrize("kind", ["classes", "bits"])
def test_codes_get_colours_that_do_not_blend(kind):
    style = choose_style({"kind": kind, "formula": "scl"}, [])
    index = style.index(np.ma.masked_equal(np.array([[0, 1, 2, 9, 99]], float), 99))
    assert index[0, -1] == 0 and len(set(index[0])) == 5 and style.classes


def test_constant_product_has_a_range(tmp_path):
    path = tmp_path / "constant.tif"
    profile = {"driver": "GTiff", "height": 4, "width": 4, "count": 1, "dtype": "float32"}
    with rasterio.open(path, "w", **profile) as target:
        target.write(np.full((4, 4), 3.0, np.float32), 1)
    style = choose_style({"formula": "nir"}, [path, tmp_path / "gone.tif"])
    assert style.low < 3 < style.high
    assert re.fullmatch(r"linear-gradient\(to right(, #[0-9a-f]{6})+\)", style.css())
