"""Which operation PROJ takes between two CRSs, and where it puts target pixels in a source."""

import concurrent.futures
import json
import math
import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import CRS, Transformer
from pyproj.enums import TransformDirection
from pyproj.exceptions import CRSError
from pyproj.transformer import AreaOfInterest, TransformerGroup

from cogmill.errors import SceneError
from cogmill.grids import GridSpec
from cogmill.projections import (
    Operation,
    Placement,
    area_of,
    choose_operation,
    horizontal,
    period,
    same_crs,
    source_to_map,
    transformer,
)

COLORADO, ALPS, EUROPE = (-105.0, 39.0, -104.0, 40.0), (8.0, 46.0, 9.0, 47.0), (5.0, 45.0, 15.0, 55.0)
DATUM_SHIFT_M = 50  # of NAD27 in Colorado
SINUSOIDAL = "+proj=sinu +R=6371007.181 +type=crs"
BOUND = "+proj=utm +zone=33 +ellps=bessel +towgs84=598.1,73.7,418.2,0.202,0.045,-2.455,6.7 +type=crs"
ENGINEERING = 'ENGCRS["plan",EDATUM["site"],CS[Cartesian,2],AXIS["(E)",east],AXIS["(N)",north],LENGTHUNIT["metre",1]]'


def raster(crs, transform, shape) -> GridSpec:
    return GridSpec(horizontal(crs).to_wkt(), tuple(map(float, transform)), shape)


def choose(source, target, area=ALPS, allow_ballpark=False):
    return choose_operation(horizontal(source), horizontal(target), area, allow_ballpark)


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("EPSG:32632", "WGS 84 / UTM zone 32N", "Projected CRS"),
        ("EPSG:4979", "WGS 84", "Geographic 2D CRS"),
        ("EPSG:5972", "ETRS89 / UTM zone 32N", "Projected CRS"),
        ("EPSG:32632+5773", "WGS 84 / UTM zone 32N", "Projected CRS"),
        (BOUND, "unknown", "Bound CRS"),
        (BOUND.replace("+type", "+geoidgrids=no.gtx +vunits=m +type"), "unknown", "Bound CRS"),
        (SINUSOIDAL, "unknown", "Projected CRS"),
    ],
)
def test_heights_are_left_out_of_a_crs(text, name, kind):
    crs = horizontal(text)
    assert (crs.name, crs.type_name, len(crs.axis_info)) == (name, kind, 2)


@pytest.mark.parametrize("text", [ENGINEERING, 'LOCAL_CS["plan",UNIT["m",1]]', "EPSG:4978", "EPSG:5703", "garbage", ""])
def test_what_has_no_place_on_earth_is_refused(text):
    with pytest.raises(CRSError):
        horizontal(text)


def test_one_crs_in_two_writings_needs_no_operation():
    utm = CRS.from_epsg(32632)
    assert choose_operation(utm, CRS.from_wkt(utm.to_wkt("WKT1_GDAL")), ALPS) is None
    assert choose(SINUSOIDAL, CRS.from_user_input(SINUSOIDAL).to_wkt("WKT1_ESRI")) is None
    assert choose("EPSG:32632+5773", "EPSG:32632") is None
    assert not same_crs(utm, CRS.from_epsg(32633))


PAIRS = [
    ("EPSG:32632", "EPSG:3035", ALPS),
    ("EPSG:32632", "EPSG:4326", ALPS),
    ("EPSG:4326", "EPSG:32632", ALPS),
    ("EPSG:26713", "EPSG:32613", COLORADO),
    ("EPSG:4267", "EPSG:4326", COLORADO),
    ("EPSG:31467", "EPSG:3035", EUROPE),
    ("EPSG:27700", "EPSG:32630", (-3, 52, -1, 54)),
    ("EPSG:4807", "EPSG:27572", (2, 46, 3, 47)),
    ("EPSG:2056", "EPSG:32632", ALPS),
    (SINUSOIDAL, "EPSG:32632", ALPS),
    (BOUND, "EPSG:4326", (14, 46, 15, 47)),
    ("+proj=longlat +a=6378388 +b=6356912 +type=crs", "EPSG:4326", ALPS),
    ("EPSG:4326", "EPSG:4979", ALPS),
]


@pytest.mark.parametrize(("source", "target", "area"), PAIRS, ids=lambda value: str(value)[:20])
def test_the_recorded_pipeline_gives_the_bits_of_what_was_chosen(source, target, area):
    operation = choose(source, target, area, allow_ballpark=True)
    if operation is None:
        assert same_crs(horizontal(source), horizontal(target))
        return
    back = Operation.from_json(json.loads(json.dumps(operation.to_json())))
    assert back == operation
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = TransformerGroup(
            horizontal(source), horizontal(target), always_xy=True, area_of_interest=AreaOfInterest(*area)
        )
    chosen, written = group.transformers[0], Transformer.from_pipeline(back.definition)
    lon, lat = np.linspace(area[0], area[2], 50), np.linspace(area[1], area[3], 50)
    x, y = Transformer.from_crs(4326, horizontal(source), always_xy=True).transform(lon, lat)
    there = chosen.transform(x, y)
    assert np.isfinite(there).all()
    assert np.array_equal(there, written.transform(x, y))
    inverse = TransformDirection.INVERSE
    assert np.array_equal(chosen.transform(*there, direction=inverse), written.transform(*there, direction=inverse))


def test_a_known_datum_shift_is_made():
    operation = choose("EPSG:26713", "EPSG:32613", COLORADO)
    assert "NAD27 to WGS 84" in operation.name and not operation.ballpark
    assert operation.accuracy_m > 1 and operation.proj
    x, y = 500048.86, 4316569.82
    shifted = transformer(operation.definition).transform(x, y)
    unshifted = Transformer.from_pipeline(
        "+proj=pipeline +step +inv +proj=utm +zone=13 +ellps=clrk66 +step +proj=utm +zone=13 +ellps=WGS84"
    ).transform(x, y)
    assert math.dist(shifted, unshifted) == pytest.approx(DATUM_SHIFT_M, abs=15)


def test_grids_that_a_better_operation_needs_are_named():
    operation = choose("EPSG:27700", "EPSG:32630", (-3, 52, -1, 54))
    assert operation.missing_grids in (("uk_os_OSTN15_NTv2_OSGBtoETRS.tif",), ())
    if operation.missing_grids:
        assert operation.accuracy_m == 2.0
    assert choose("EPSG:32632", "EPSG:32633").missing_grids == ()


@pytest.mark.parametrize(
    ("source", "target", "area", "words"),
    [
        ("EPSG:31467", "EPSG:25832", (100, 46, 103, 47), ["EPSG:31467", "EPSG:25832"]),
        (SINUSOIDAL, "EPSG:4267", (-106, 38, -104, 40), ["unknown", "EPSG:4267"]),
        ("+proj=laea +lat_0=40 +lon_0=-105 +ellps=GRS80 +type=crs", "EPSG:4267", None, ["unknown", "EPSG:4267"]),
        ("+proj=longlat +a=6378388 +b=6356912 +type=crs", "EPSG:4326", ALPS, ["unknown", "EPSG:4326"]),
    ],
)
def test_an_unknown_datum_shift_is_refused_unless_allowed(source, target, area, words):
    with pytest.raises(SceneError) as raised:
        choose(source, target, area)
    assert raised.value.reason == "datum_shift"
    for word in [*words, "warp.allow_ballpark"]:
        assert word in str(raised.value)
    allowed = choose(source, target, area, allow_ballpark=True)
    assert allowed.ballpark and allowed.accuracy_m is None


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (SINUSOIDAL, "EPSG:32632"),
        ("EPSG:4326", "ESRI:53008"),
        ("EPSG:25832", "+proj=laea +lat_0=52 +lon_0=10 +x_0=4321000 +y_0=3210000 +ellps=GRS80 +units=m +type=crs"),
        ("+proj=utm +zone=32 +ellps=WGS84 +type=crs", "EPSG:4326"),
    ],
)
def test_a_crs_without_a_datum_needs_no_shift(source, target):
    """Spheres and the ellipsoid of GPS: latitudes and longitudes are passed on, and the record says so."""
    operation = choose(source, target)
    assert operation.ballpark and operation.accuracy_m is None


def test_no_way_between_two_crss_says_so():
    with pytest.raises(SceneError) as raised:
        choose("EPSG:32632", "IAU_2015:49910", allow_ballpark=True)
    assert raised.value.reason == "no_operation" and "EPSG:32632" in str(raised.value)


def test_a_crs_that_one_cannot_come_back_from_is_refused():
    with pytest.raises(SceneError) as raised:
        choose("EPSG:32632", "+proj=urm5 +n=0.9 +alpha=2 +q=4 +type=crs", allow_ballpark=True)
    assert raised.value.reason == "no_operation"


@pytest.mark.parametrize(
    ("crs", "turn"),
    [
        ("EPSG:4326", 360),
        ("EPSG:4807", 400),
        ("EPSG:3857", 2 * math.pi * 6378137),
        ("EPSG:3832", 2 * math.pi * 6378137),
        ("EPSG:32632", None),
        ("EPSG:3413", None),
        (SINUSOIDAL, None),
        ("ESRI:54030", None),
    ],
)
def test_how_far_it_is_around_the_earth(crs, turn):
    assert period(horizontal(crs)) == (turn and pytest.approx(turn, rel=1e-9))


@pytest.mark.parametrize(
    ("grid", "area"),
    [
        (raster("EPSG:4326", (0.1, 0, 170, 0, -0.1, 10), (100, 200)), (170, 0, -170, 10)),
        (raster("EPSG:4326", (0.1, 0, 350, 0, -0.1, 10), (100, 50)), (-10, 0, -5, 10)),
        (raster("EPSG:4326", (0.1, 0, 0, 0, -0.1, 90), (1800, 3600)), (-180, -90, 180, 90)),
        (raster("EPSG:3413", (1e3, 0, -2e6, 0, -1e3, 2e6), (4000, 4000)), (-180, 64.3, 180, 90)),
        (raster("EPSG:4807", (0.1, 0, 0, 0, -0.1, 50), (100, 100)), (2.34, 36, 11.34, 45)),
    ],
)
def test_the_area_of_a_raster(grid, area):
    assert area_of(grid) == pytest.approx(area, abs=0.05)


def test_a_raster_off_the_globe_has_no_area():
    assert (
        area_of(raster("+proj=ortho +lat_0=0 +lon_0=0 +ellps=WGS84", (1e3, 0, 7e6, 0, -1e3, 9e6), (100, 100))) is None
    )


UTM = raster("EPSG:32632", (10, 0, 399960, 0, -10, 5200020), (10980, 10980))
LAEA = raster("EPSG:3035", (10, 0, 4200000, 0, -10, 2700000), (6000, 6000))


def test_a_target_pixel_lies_where_proj_says():
    place = Placement(UTM, LAEA, choose("EPSG:32632", "EPSG:3035"))
    cols, rows = np.array([[0.0, 0.5], [5999.5, 3000.25]]), np.array([[0.0, 0.5], [17.5, 6000.0]])
    x, y = place.to_source(cols, rows)
    wanted = Transformer.from_crs(3035, 32632, always_xy=True).transform(4200000 + 10 * cols, 2700000 - 10 * rows)
    assert x.shape == (2, 2)
    assert x == pytest.approx((wanted[0] - 399960) / 10, abs=1e-6)
    assert y == pytest.approx((5200020 - wanted[1]) / 10, abs=1e-6)


def test_the_same_crs_needs_no_proj_and_no_digits_of_the_northing():
    target = GridSpec(UTM.crs, (20.0, 0.0, 399960.0, 0.0, -20.0, 5200020.0), (100, 100))
    x, y = Placement(UTM, target, None).to_source([0.25, 3.0], [1.5, 99.0])
    assert list(x) == [0.5, 6.0] and list(y) == [3.0, 198.0]


@pytest.mark.parametrize("left", [-180.0, 0.0, 100.0, -300.0])
def test_longitudes_come_from_the_turn_around_the_rasters_middle(left):
    source = raster("EPSG:4326", (0.1, 0, left, 0, -0.1, 10), (100, 3600))
    target = raster("EPSG:4326", (1, 0, -200, 0, -1, 10), (10, 700))
    cols = np.arange(0, 700) + 0.5
    x, y = Placement(source, target, None).to_source(cols, np.full(700, 0.5))
    assert ((x >= 0) & (x < 3600)).all() and y == pytest.approx(5)
    assert x / 10 == pytest.approx((cols - 200 - left) % 360, abs=1e-6)


def test_longitudes_of_a_rotated_raster():
    source = GridSpec(horizontal("EPSG:4326").to_wkt(), (0.08, 0.06, 178.0, 0.06, -0.08, 0.0), (100, 100))
    target = raster("EPSG:32601", (1000, 0, 2e5, 0, -1000, 3e5), (300, 300))
    place = Placement(source, target, choose("EPSG:4326", "EPSG:32601", area_of(source)))
    cols, rows = np.meshgrid(np.arange(300) + 0.5, np.arange(300) + 0.5)
    x, y = place.to_source(cols, rows)
    lon, lat = Transformer.from_crs(32601, 4326, always_xy=True).transform(2e5 + 1000 * cols, 3e5 - 1000 * rows)
    back = 178.0 + 0.08 * x + 0.06 * y, 0.06 * x - 0.08 * y
    assert back[0] == pytest.approx(lon % 360) and back[1] == pytest.approx(lat)
    assert ((x > 0) & (x < 100) & (y > 0) & (y < 100)).any()


@pytest.mark.parametrize("left", [-3e5, 16e4])
def test_both_sides_of_the_antimeridian_are_found(left):
    source = raster("EPSG:32601", (100, 0, left, 0, -100, 1e5), (1000, 3000))
    for start in (-185, 175, 535):
        target = raster("EPSG:4326", (0.01, 0, start, 0, -0.01, 0.9), (80, 1000))
        place = Placement(source, target, choose("EPSG:32601", "EPSG:4326", area_of(source)))
        x, _ = place.to_source(np.array([400.0, 600.0]), np.array([40.0, 40.0]))
        assert np.diff(x) == pytest.approx(2 * 1113, rel=0.05)


def test_no_coordinates_off_the_globe():
    source = raster("EPSG:4326", (0.5, 0, -180, 0, -0.5, 90), (360, 720))
    for crs in ("+proj=ortho +lat_0=0 +lon_0=0 +datum=WGS84", "+proj=geos +h=35785831 +datum=WGS84"):
        target = raster(crs, (1e5, 0, -7e6, 0, -1e5, 7e6), (140, 140))
        place = Placement(source, target, choose("EPSG:4326", crs, None))
        x, y = place.to_source(np.array([0.5, 70.0]), np.array([0.5, 70.0]))
        assert np.isnan(x[0]) and np.isnan(y[0]) and (x[1], y[1]) == pytest.approx((360, 180))
        x, y = Placement(target, source, choose(crs, "EPSG:4326", None)).to_source([1.0, 360.0], [180.0, 180.0])
        assert np.isnan(x[0]) and (x[1], y[1]) == pytest.approx((70, 70))


ENDLESS = ("EPSG:3413", "+proj=gnom +lat_0=50 +ellps=WGS84")


@pytest.mark.parametrize("crs", ["EPSG:32632", "EPSG:3035", "EPSG:2154", SINUSOIDAL, *ENDLESS])
def test_places_that_do_not_lead_back_are_none(crs):
    """Targets many times the size of the earth: beyond a projection's domain PROJ may make up places."""
    source = raster("EPSG:4326", (0.5, 0, -180, 0, -0.5, 90), (360, 720))
    target = raster(crs, (1e6, 0, -1e8, 0, -1e6, 1e8), (200, 200))
    operation = choose("EPSG:4326", crs, None, allow_ballpark=True)
    cols, rows = np.meshgrid(np.arange(200) + 0.5, np.arange(200) + 0.5)
    x, y = Placement(source, target, operation).to_source(cols, rows)
    known = np.isfinite(x)
    there = source_to_map(source, operation, x[known], y[known])
    assert there[0] == pytest.approx(-1e8 + 1e6 * cols[known], abs=1e4)
    assert there[1] == pytest.approx(1e8 - 1e6 * rows[known], abs=1e4)
    assert np.array_equal(known, np.isfinite(y))
    # the plane of a polar or gnomonic map has no end
    assert known.all() == (crs in ENDLESS)


def test_not_a_number_stays_so():
    place = Placement(UTM, LAEA, choose("EPSG:32632", "EPSG:3035"))
    x, y = place.to_source(np.array([np.nan, np.inf, 5.0]), np.array([5.0, 5.0, -np.inf]))
    assert np.isnan(x).all() and np.isnan(y).all()


def test_threads_and_forked_processes_get_the_same_bits():
    place = Placement(UTM, LAEA, choose("EPSG:32632", "EPSG:3035"))
    cols = np.arange(2000.0)
    wanted = place.to_source(cols, cols)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: place.to_source(cols, cols), range(16)):
            assert np.array_equal(found, wanted)
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(place.to_source(cols, cols), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


@settings(max_examples=40, deadline=None)
@given(
    col=st.floats(0, 10980),
    row=st.floats(0, 10980),
    target=st.sampled_from(["EPSG:3035", "EPSG:4326", "EPSG:3857", "EPSG:32633", "EPSG:2056"]),
)
def test_there_and_back_again(col, row, target):
    operation = choose("EPSG:32632", target)
    x, y = source_to_map(UTM, operation, col, row)
    place = Placement(UTM, GridSpec(horizontal(target).to_wkt(), (1.0, 0.0, 0.0, 0.0, 1.0, 0.0), (1, 1)), operation)
    assert np.allclose(place.to_source(x, y), (col, row), atol=1e-3)
