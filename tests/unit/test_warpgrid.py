"""The grid of a scene's products: bands must share it, masks must fall on it."""

import math

import pytest
from pyproj import CRS

from cogmill.ledger import end_record, new_record, read_json, write_json
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
    assert made["masks"] == {}


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
    assert made["state"] == "done" and made["gcps"] == points
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
    assert place(red=band(), scl=scl)["masks"] == {"scl": {"affine": affine}}


def test_mask_with_another_origin_is_shifted(place):
    scl = band("bits", (30, 40), [20.0, 0.0, 399920.0, 0.0, -20.0, 5000100.0])
    assert place(red=band(), qa=scl)["masks"] == {"qa": {"affine": [0.5, 0.0, 2.0, 0.0, 0.5, 3.0]}}


def test_mask_on_the_same_rotated_grid(place):
    turned = [8.0, -5.0, 399960.0, -5.0, -8.0, 5000040.0]
    place_of = place(red=band(transform=turned), mask=band("mask", transform=turned))["masks"]["mask"]["affine"]
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
