"""The grid of a scene's products: where bands and masks lie on it, or on a target of its own."""

import math

import numpy as np
import pytest
import rasterio
from made import write_raster
from pyproj import CRS

from cogmill.controlgrid import ControlGrid
from cogmill.grids import GridSpec
from cogmill.ledger import end_record, new_record, read_json, write_json
from cogmill.projections import Operation, Placement, horizontal
from cogmill.warpgrid import make_control_grid, same_crs

UTM32 = CRS.from_epsg(32632).to_wkt()
NORTH_UP = [10.0, 0.0, 399960.0, 0.0, -10.0, 5000040.0]


# what a stored band has besides its place
STORED = {
    "path": "b.tif",
    "band": 1,
    "source": {"path": "raw.tif", "band": 1},
    "dtype": "uint16",
    "predictor": 2,
    "mask": False,
    "radiometry": {},
    "tile_checksums": "",
    "mask_checksums": None,
    "pixel_digest": "",
}


def band(kind="continuous", shape=(48, 64), transform=NORTH_UP, crs=UTM32, gcps=None):
    place = {"shape": list(shape), "transform": transform, "crs": crs, "gcps": gcps, "rpcs": None}
    return STORED | {"kind": kind} | place


@pytest.fixture
def place(tmp_path):
    """Run the rule's function on bands {role: band} and return its record."""

    def run(params=None, **bands):
        record = end_record(new_record("cogs", "S1") | {"bands": bands}, "done")
        write_json(tmp_path / "cogs.json", record)
        made = make_control_grid(tmp_path / "cogs.json", params or {"crs": "source"}, tmp_path / "grid.json")
        assert read_json(tmp_path / "grid.json") == made
        return made

    return run


def fails(record, *words):
    assert (record["state"], record["reason"]) == ("failed", "grid_mismatch"), record
    assert "S1" in record["message"] and "mismatch" in record["message"]
    for word in words:
        assert word in record["message"]


def test_bands_on_one_grid_give_that_grid(place):
    made = place(red=band(), nir=band())
    assert made["state"] == "done" and made["operation"] == "identity"
    assert made["grid"] == {"crs": UTM32, "transform": NORTH_UP, "shape": [48, 64]}
    assert made["sources"][0]["masks"] == {}


def test_half_a_pixel_is_a_mismatch_and_both_values_are_named(place):
    shifted = [10.0, 0.0, 399965.0, 0.0, -10.0, 5000040.0]
    fails(place(red=band(), nir=band(transform=shifted)), "'red'", "'nir'", "399960.0", "399965.0", "0.5 pixels")


def test_another_size_or_crs_is_a_mismatch(place):
    fails(place(red=band(), nir=band(shape=(24, 32))), "24 x 32", "48 x 64")
    fails(place(red=band(), nir=band(crs=CRS.from_epsg(32631).to_wkt())), "EPSG:32631", "EPSG:32632")
    fails(place(red=band(), nir=band(crs=None)), "none")
    fails(place(red=band(), nir=band(crs="garbage")), "cannot be understood", "garbage")
    fails(place(red=band(), nir=band(transform=None)))


def test_digits_that_float64_cannot_hold_are_no_mismatch(place):
    drone = [0.02, 0.0, 399960.0, 0.0, -0.02, 5000040.0]
    other = [0.02, 0.0, 399960.0, 0.0, -0.02, math.nextafter(5000040.0, math.inf)]
    assert place(red=band(transform=drone), nir=band(transform=other))["state"] == "done"


def test_other_wording_of_one_crs_is_no_mismatch(place):
    assert same_crs(UTM32, CRS.from_epsg(32632).to_wkt("WKT1_GDAL"))
    assert not same_crs(UTM32, CRS.from_epsg(32633).to_wkt())
    assert place(red=band(), nir=band(crs=CRS.from_epsg(32632).to_wkt("WKT1_GDAL")))["state"] == "done"


def test_ground_control_points_must_be_the_same(place):
    points = [[0.0, 0.0, 1.0, 2.0, 0.0], [0.0, 64.0, 3.0, 2.0, 0.0]]
    made = place(red=band(transform=None, gcps=points), nir=band(transform=None, gcps=points))
    assert made["state"] == "done" and made["sources"][0]["gcps"] == points
    fails(place(red=band(transform=None, gcps=points), nir=band(transform=None, gcps=points[:1])), "control points")


def test_bands_without_georeferencing_fit_by_their_size(place):
    assert place(red=band(crs=None, transform=None), nir=band(crs=None, transform=None))["state"] == "done"


def test_only_bands_that_products_use_must_fit(place):
    coarse = band(shape=(24, 32), transform=[20.0, 0.0, 399960.0, 0.0, -20.0, 5000040.0])
    bands = {"red": band(), "nir": band(), "swir16": coarse}
    fails(place(**bands))
    assert place(params={"crs": "source", "bands": ["red", "nir"]}, **bands)["bands"] == ["red", "nir"]


@pytest.mark.parametrize(
    ("step", "affine"),
    [
        (20.0, [0.5, 0.0, 0.0, 0.0, 0.5, 0.0]),
        (10.0, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
        (5.0, [2.0, 0.0, 0.0, 0.0, 2.0, 0.0]),
    ],
)
def test_mask_of_another_resolution_is_placed_exactly(place, step, affine):
    rows, cols = int(480 / step), int(640 / step)
    scl = band("classes", (rows, cols), [step, 0.0, 399960.0, 0.0, -step, 5000040.0])
    assert place(red=band(), scl=scl)["sources"][0]["masks"] == {"scl": {"affine": affine}}


def test_mask_with_another_origin_is_shifted(place):
    scl = band("bits", (30, 40), [20.0, 0.0, 399920.0, 0.0, -20.0, 5000100.0])
    assert place(red=band(), qa=scl)["sources"][0]["masks"] == {"qa": {"affine": [0.5, 0.0, 2.0, 0.0, 0.5, 3.0]}}


def test_mask_on_the_same_rotated_grid(place):
    turned = [8.0, -5.0, 399960.0, -5.0, -8.0, 5000040.0]
    place_of = place(red=band(transform=turned), mask=band("mask", transform=turned))["sources"][0]["masks"]["mask"][
        "affine"
    ]
    assert place_of == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]


def test_mask_that_cannot_be_laid_on_the_scene(place):
    turned = [8.0, -5.0, 399960.0, -5.0, -8.0, 5000040.0]
    fails(place(red=band(), scl=band("classes", transform=turned)), "'scl'", "rotated")
    fails(place(red=band(), scl=band("classes", crs=CRS.from_epsg(32633).to_wkt())), "EPSG:32633")
    away = [10.0, 0.0, 499960.0, 0.0, -10.0, 5000040.0]
    fails(place(red=band(), scl=band("classes", transform=away)), "no ground in common")
    fails(place(red=band(), scl=band("classes", (24, 32), transform=None, crs=UTM32)))


def test_a_needed_band_that_the_store_left_out(place, tmp_path):
    params = {"crs": "source", "bands": ["red"], "masks": ["scl"]}
    record = place(params, red=band())
    assert (record["state"], record["reason"]) == ("failed", "band_missing")
    assert "scene 'S1': band 'scl', which 'masks' of the config needs, is missing" in record["message"]
    cogs = read_json(tmp_path / "cogs.json") | {"left_out": {"scl": "scene 'S1': in.tif has no band 3"}}
    write_json(tmp_path / "cogs.json", cogs)
    message = make_control_grid(tmp_path / "cogs.json", params, tmp_path / "grid.json")["message"]
    assert message.endswith("is missing: in.tif has no band 3")
    assert place({"crs": "source", "bands": ["red", "nir"]}, red=band())["reason"] == "band_missing"
    # a sensor without the band is not asked for it
    assert place(params | {"masks": []}, red=band())["state"] == "done"


def test_no_measured_band(place):
    record = place(scl=band("classes"))
    assert (record["state"], record["reason"]) == ("failed", "band_missing")


def test_a_scene_that_was_not_stored_keeps_its_reason(tmp_path):
    record = end_record(new_record("cogs", "S1"), "failed", "unreadable", "scene 'S1': broken", True)
    write_json(tmp_path / "cogs.json", record)
    made = make_control_grid(tmp_path / "cogs.json", {"crs": "source"}, tmp_path / "sub" / "grid.json")
    assert [made[k] for k in ("state", "reason", "message", "retryable")] == [
        "failed",
        "unreadable",
        "scene 'S1': broken",
        True,
    ]


TARGET = {"crs": "EPSG:3035", "resolution": [10.0, 10.0]}
HALF = [20.0, 0.0, 399960.0, 0.0, -20.0, 5000040.0]


def refused(record, reason, *words, state="failed"):
    assert (record["state"], record["reason"]) == (state, reason), record
    for word in ["'S1'", *words]:
        assert word in record["message"], record["message"]


def control_grid(record, folder):
    return ControlGrid.load(folder / record["warp"]["file"], record["warp"]["checksum"])


def test_identity_says_so_in_the_record(place):
    made = place(red=band(), nir=band())
    source = {"grid": made["grid"], "gcps": None, "rpcs": None, "bands": ["red", "nir"], "affine": [1, 0, 0, 0, 1, 0]}
    assert made["sources"] == [source | {"ratio": 1.0, "masks": {}}] and made["warp"] is None


def test_another_crs_gives_a_control_grid(place, tmp_path):
    made = place(TARGET, red=band(shape=(1000, 1200)))
    assert (made["state"], made["operation"]) == ("done", "grid")
    assert horizontal(made["grid"]["crs"]) == horizontal("EPSG:3035")
    warp, source = made["warp"], made["sources"][0]
    assert warp | {"projection": 0, "error_px": 0, "checksum": 0} == {
        "engine": "grid",
        "max_error_px": 0.01,
        "error_px": 0,
        "step": 64,
        "file": "grid.tif",
        "checksum": 0,
        "exact_cells": 0,
        "projection": 0,
    }
    assert 0 < warp["error_px"] < 0.01 and source["affine"] == [1, 0, 0, 0, 1, 0]
    assert source["ratio"] == pytest.approx(1, rel=0.01)
    grid = control_grid(made, tmp_path)
    target, operation = GridSpec.from_json(made["grid"]), Operation.from_json(warp["projection"])
    place_of = Placement(GridSpec.from_json(source["grid"]), target, operation)
    cols, rows = np.random.default_rng(0).uniform(0, 1, (2, 1000)) * np.array(target.shape[::-1])[:, np.newaxis]
    (x, y), wanted = grid.at(cols, rows), place_of.to_source(cols, rows)
    inside = (wanted[0] >= 0) & (wanted[0] <= 1200) & (wanted[1] >= 0) & (wanted[1] <= 1000)
    assert inside.any() and np.hypot(x - wanted[0], y - wanted[1])[inside].max() <= warp["error_px"]


def test_an_error_of_zero_means_that_proj_places_every_pixel(place, tmp_path):
    made = place(TARGET | {"max_error_px": 0.0}, red=band())
    assert made["operation"] == "exact" and not (tmp_path / "grid.tif").exists()
    assert made["warp"]["projection"] and (made["warp"]["error_px"], made["warp"]["file"]) == (0, None)


@pytest.mark.parametrize(
    ("params", "affine", "ratio"),
    [
        ({"crs": "EPSG:32632", "resolution": [30.0, 30.0], "aligned": False}, [3, 0, 0, 0, 3, 0], 3),
        ({"crs": "source", "resolution": [5.0, 20.0], "aligned": False}, [0.5, 0, 0, 0, 2, 0], 2),
        ({"crs": "source", "extent": [400000.0, 4999700.0, 400300.0, 5000000.0]}, [1, 0, 4, 0, 1, 4], 1),
    ],
)
def test_one_crs_needs_an_affine_and_no_grid(place, tmp_path, params, affine, ratio):
    made = place(params, red=band())
    assert made["operation"] == "affine" and not (tmp_path / "grid.tif").exists()
    assert made["sources"][0]["affine"] == affine and made["sources"][0]["ratio"] == ratio
    assert (made["warp"]["projection"], made["warp"]["error_px"]) == (None, 0)


def test_last_digits_of_a_northing_do_not_move_a_pixel(place):
    tiny = [0.1, 0.0, 399960.3, 0.0, -0.1, 5000040.7]
    made = place({"crs": "source", "resolution": [0.2, 0.2], "aligned": False}, red=band(transform=tiny))
    a, b, c, d, e, f = made["sources"][0]["affine"]
    assert (b, c, d, f) == (0, 0, 0, 0) and (a, e) == pytest.approx((2, 2), abs=1e-12)


def test_bands_of_several_resolutions_are_several_sources(place):
    swir, scl = band(shape=(24, 32), transform=HALF), band("classes", (24, 32), HALF)
    for params in (TARGET, {"crs": "source", "resolution": [20.0, 20.0]}):
        made = place(params | {"bands": ["swir16", "red", "nir"]}, swir16=swir, red=band(), nir=band(), scl=scl)
        fine, coarse = made["sources"]
        assert (fine["bands"], coarse["bands"]) == (["red", "nir"], ["swir16"])
        assert fine["masks"]["scl"]["affine"] == [0.5, 0, 0, 0, 0.5, 0]
        assert coarse["masks"]["scl"]["affine"] == [1, 0, 0, 0, 1, 0]
        assert fine["ratio"] == pytest.approx(2 * coarse["ratio"])
        if made["operation"] == "grid":
            assert (fine["affine"], coarse["affine"]) == ([1, 0, 0, 0, 1, 0], [0.5, 0, 0, 0, 0.5, 0])
        else:
            assert fine["affine"][0] == 2 * coarse["affine"][0] == 2
    # without a target they are what they were
    fails(place({"crs": "source", "bands": ["red", "swir16"]}, red=band(), swir16=swir), "24 x 32")


def test_sources_need_one_crs_and_common_ground(place):
    other = band(crs=CRS.from_epsg(32633).to_wkt())
    fails(place(TARGET, red=band(), nir=other), "EPSG:32633", "EPSG:32632")
    away = [20.0, 0.0, 499960.0, 0.0, -20.0, 5000040.0]
    fails(place(TARGET, red=band(), swir16=band(shape=(24, 32), transform=away)), "no ground in common", "'swir16'")


def test_a_target_elsewhere_is_skipped(place):
    record = place(TARGET | {"extent": [3000000.0, 2000000.0, 3010000.0, 2010000.0]}, red=band())
    refused(record, "no_overlap", "overlap", "3000000", "EPSG:3035", state="skipped")
    record = place({"crs": "source", "extent": [500000.0, 4000000.0, 500100.0, 4000100.0]}, red=band())
    refused(record, "no_overlap", "overlap", "500000", "399960", state="skipped")
    assert "grid" not in record


def test_a_tiny_scene_in_a_huge_target_is_found(place):
    target = TARGET | {"extent": [3000000.0, 1500000.0, 5000000.0, 3500000.0], "resolution": [1000.0, 1000.0]}
    made = place(target, red=band(shape=(5, 5)))
    assert made["state"] == "done" and made["sources"][0]["ratio"] == pytest.approx(100, rel=0.05)


PLAIN = [0.1, 0.0, -180.0, 0.0, -0.1, 90.0]
EARTH = {"crs": CRS.from_epsg(4326).to_wkt(), "shape": (1800, 3600)}


def test_longitudes_of_0_to_360_are_those_of_the_target(place):
    pacific = [0.1, 0.0, 0.0, 0.0, -0.1, 90.0]
    west = {"crs": "EPSG:4326", "resolution": [0.2, 0.2], "extent": [-100.0, 0.0, -60.0, 30.0]}
    made = place(west, red=band(transform=pacific, **EARTH))
    assert made["operation"] == "affine"
    assert made["sources"][0]["affine"] == pytest.approx([2, 0, 2600, 0, 2, 600])


def test_a_target_on_both_ends_of_a_raster_is_no_affine(place, tmp_path):
    target = {"crs": "EPSG:4326", "resolution": [0.1, 0.1], "extent": [170.0, -10.0, 190.0, 10.0]}
    made = place(target, red=band(transform=PLAIN, **EARTH))
    assert (made["operation"], made["warp"]["projection"]) == ("grid", None)
    assert made["warp"]["exact_cells"] > 0
    grid = control_grid(made, tmp_path)
    assert grid.at(10.5, 10.5) == pytest.approx((3510.5, 810.5)) and not grid.is_exact(10.5, 10.5)
    assert grid.is_exact(100.5, 10.5)
    # a raster of one side lies on a target over the antimeridian with one turn
    fiji = {"transform": [0.1, 0.0, -180.0, 0.0, -0.1, 10.0], "crs": EARTH["crs"], "shape": (100, 50)}
    made = place(target, red=band(**fiji))
    assert made["operation"] == "affine" and made["sources"][0]["affine"] == pytest.approx([1, 0, -100, 0, 1, 0])


def test_heights_in_a_compound_crs_do_not_matter(place):
    compound = CRS("EPSG:25832+5783").to_wkt()
    made = place({"crs": "EPSG:25832", "resolution": [10.0, 10.0]}, red=band(crs=compound))
    assert made["operation"] == "affine"
    assert place(TARGET, red=band(crs=compound))["operation"] == "grid"


def test_a_crs_without_a_code_and_without_a_datum(place):
    modis = {"crs": CRS("+proj=sinu +R=6371007.181 +type=crs").to_wkt(), "transform": [500.0, 0, 0, 0, -500.0, 5e6]}
    target = {"crs": "EPSG:32631", "resolution": [500.0, 500.0]}
    old = target | {"crs": "EPSG:26713"}  # of the North American Datum 1927
    refused(place(old, red=band(**modis)), "datum_shift", "EPSG:26713", "warp.allow_ballpark")
    assert place(old | {"allow_ballpark": True}, red=band(**modis))["reason"] in (None, "no_overlap")
    made = place(target, red=band(**modis))
    assert made["state"] == "done" and made["warp"]["projection"]["ballpark"]


def test_what_has_no_place_cannot_be_brought_to_another_grid(place):
    refused(place(TARGET, red=band(crs=None)), "georeferencing", "no CRS", "grid.crs: source")
    refused(place(TARGET, red=band(crs=None, transform=None)), "georeferencing", "transform")
    plan = CRS('LOCAL_CS["plan",UNIT["m",1]]').to_wkt()
    refused(place(TARGET, red=band(crs=plan)), "georeferencing", "plan", "projected")
    assert place(red=band(crs=plan))["operation"] == "identity"
    points = [[0.0, 0.0, 9.0, 47.0, 0.0], [0.0, 64.0, 9.1, 47.0, 0.0], [48.0, 0.0, 9.0, 46.9, 0.0]]
    refused(place(TARGET, red=band(transform=None, gcps=points)), "georeferencing", "warp.engine: gdal")


def test_pixels_without_an_area(place):
    flat = [10.0, 0.0, 399960.0, 0.0, 0.0, 5000040.0]
    refused(place(TARGET, red=band(transform=flat)), "georeferencing", "'red'", "without an area")


def test_a_target_crs_that_cannot_be_read(place, tmp_path):
    refused(place(TARGET | {"crs": "EPSG:999999"}, red=band()), "crs", "grid.crs", "EPSG:999999")
    like = {"crs": "source", "like": str(tmp_path / "missing.tif")}
    refused(place(like, red=band()), "like", "grid.like", "missing.tif")


def test_like_another_raster(place, tmp_path):
    write_raster(
        tmp_path / "like.tif",
        [np.zeros((30, 40), np.uint8)],
        crs="EPSG:32632",
        transform=rasterio.Affine(20, 0, 400000, 0, -20, 5000000),
    )
    made = place({"crs": "source", "like": str(tmp_path / "like.tif")}, red=band())
    assert made["grid"]["shape"] == [30, 40] and made["operation"] == "affine"
    assert made["sources"][0]["affine"] == [2, 0, 4, 0, 2, 4]


def test_gdals_engine_gets_the_target_alone(place, tmp_path):
    made = place(TARGET | {"engine": "gdal"}, red=band(), swir16=band(shape=(24, 32), transform=HALF))
    assert made["operation"] == "gdal" and not (tmp_path / "grid.tif").exists()
    assert made["warp"]["engine"] == "gdal" and made["warp"]["projection"]["definition"]
    assert [source["affine"][0] for source in made["sources"]] == [1, 0.5]
    assert made["sources"][0]["ratio"] == pytest.approx(1, rel=0.01)
    made = place({"crs": "source", "resolution": [20.0, 20.0], "engine": "gdal"}, red=band())
    assert made["operation"] == "gdal" and made["warp"]["projection"] is None and made["sources"][0]["ratio"] == 2
    record = place(TARGET | {"engine": "gdal", "extent": [3e6, 2e6, 3.01e6, 2.01e6]}, red=band())
    refused(record, "no_overlap", "overlap", state="skipped")


def test_ground_control_points_go_through_gdal(place):
    corners = ((0, 0, 399960, 5000040), (0, 64, 400600, 5000040), (48, 0, 399960, 4999560), (48, 64, 400600, 4999560))
    points = [[float(row), float(col), float(x), float(y), 0.0] for row, col, x, y in corners]
    by_points = band(transform=None, gcps=points)
    made = place(TARGET | {"engine": "gdal"}, red=by_points)
    assert made["operation"] == "gdal", made
    with_transform = place(TARGET | {"engine": "gdal"}, red=band())
    assert made["grid"] == with_transform["grid"]
    assert made["sources"][0]["ratio"] == pytest.approx(1, rel=0.01) and made["sources"][0]["gcps"] == points
    record = place(TARGET | {"engine": "gdal", "extent": [3e6, 2e6, 3.01e6, 2.01e6]}, red=by_points)
    refused(record, "no_overlap", "overlap", state="skipped")


def test_no_control_grid_of_an_earlier_config_stays(place, tmp_path):
    place(TARGET, red=band())
    assert (tmp_path / "grid.tif").exists()
    place(red=band())
    assert not (tmp_path / "grid.tif").exists()


def test_the_same_scene_is_placed_the_same_again(place):
    first = place(TARGET, red=band())
    again = place(TARGET, red=band())
    assert {key: value for key, value in first.items() if key != "seconds"} == {
        key: value for key, value in again.items() if key != "seconds"
    }


def test_rational_polynomials_go_through_gdal(place):
    from test_gdalwarp import RPCS, SHAPE

    raw = band(shape=SHAPE, transform=None, crs=None) | {"rpcs": RPCS}
    refused(place(TARGET, red=raw), "georeferencing", "RPCs", "warp.engine: gdal")
    made = place({"crs": "EPSG:32633", "resolution": [10.0, 10.0], "engine": "gdal"}, red=raw)
    assert made["operation"] == "gdal", made
    assert made["sources"][0]["rpcs"] == RPCS and 0.3 < made["sources"][0]["ratio"] < 3
    assert "UTM zone 33N" in made["warp"]["projection"]["name"]
