"""Records, keys and ledgers."""

import json
import math
import os

import pytest

from cogmill import ledger
from cogmill.ledger import (
    decode_number,
    digest,
    encode_number,
    ledger_line,
    new_record,
    product_key,
    read_json,
    read_ledger,
    write_json,
    write_ledger,
    write_text,
)

BAND = {
    "pixel_digest": "aa",
    "mask_checksums": None,
    "dtype": "uint16",
    "nodata": 0,
    "kind": "continuous",
    "radiometry": {"scale": 1.0, "offset": 0.0, "decided_by": "none"},
    "path": "red.tif",
    "source": {"path": "/raw/in.tif", "band": 3},
}
SHAPE = {"crs": None, "transform": None, "shape": [4, 4]}
SOURCE = {
    "grid": SHAPE,
    "bands": ["red"],
    "gcps": None,
    "rpcs": None,
    "affine": [1, 0, 0, 0, 1, 0],
    "ratio": 1.0,
    "masks": {"scl": {"affine": [0.5, 0, 0, 0, 0.5, 0]}},
}
GRID = {"grid": SHAPE, "operation": "identity", "sources": [SOURCE], "warp": None}
PLACE = {"engine": "grid", "checksum": "ab", "projection": {"name": "UTM"}, "error_px": 0.001, "step": 64}
METHODS = {"resampling": {"red": "bilinear"}, "order": "bands_then_index"}
PRODUCT = {"formula": "red", "dtype": "float32", "scale": 1.0, "offset": 0.0, "nodata": "nan"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -9999, 255, None])
def test_numbers_survive_json(value):
    again = decode_number(json.loads(json.dumps(encode_number(value), allow_nan=False)))
    assert again == value or (math.isnan(again) and math.isnan(value))


def test_digest_ignores_the_order_of_keys():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1, "b": [1, 2]}) != digest({"a": 1, "b": [2, 1]})


def test_a_failed_write_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    target = tmp_path / "record.json"
    write_json(target, {"n": 1})

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(target, "half")
    assert read_json(target) == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_nan_is_refused_in_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"n": math.nan})
    assert not list(tmp_path.iterdir())


def test_key_follows_what_decides_pixels():
    def key(product=PRODUCT, band=BAND, masks=(), grid=GRID, warp=None):
        masks = {role: {"rule": rule, "band": BAND} for role, rule in masks}
        return product_key(product, {"red": band}, masks, grid, warp)

    def warped(warp=METHODS, place=PLACE, source=SOURCE, more=()):
        grid = {"grid": SHAPE, "operation": "grid", "sources": [source, *more], "warp": place}
        return key(grid=grid, warp=warp, masks={"scl": {"classes": [3]}}.items())

    same = key()
    assert key(band=BAND | {"path": "/elsewhere/red.tif"}) == same
    assert key(band=BAND | {"source": {"path": "/moved/in.tif", "band": 3}}) == same
    others = [
        key(product=PRODUCT | {"formula": "red * 2"}),
        key(product=PRODUCT | {"dtype": "int16"}),
        key(band=BAND | {"pixel_digest": "bb"}),
        key(band=BAND | {"mask_checksums": "AAAA"}),
        key(band=BAND | {"nodata": None}),
        key(band=BAND | {"radiometry": BAND["radiometry"] | {"scale": 1e-4}}),
        key(band=BAND | {"radiometry": BAND["radiometry"] | {"decided_by": "sheet"}}),
        key(band=BAND | {"source": {"path": "/raw/other.tif", "band": 3}}),
        key(masks={"scl": {"classes": [3], "bits": []}}.items()),
        key(grid=GRID | {"operation": "affine"}),
        warped(),
        warped(warp=METHODS | {"resampling": {"red": "cubic"}}),
        warped(warp=METHODS | {"order": "index_then_warp"}),
        warped(place=PLACE | {"checksum": "cd"}),
        warped(place=PLACE | {"projection": None}),
        warped(source=SOURCE | {"affine": [2, 0, 0, 0, 2, 0]}),
        warped(source=SOURCE | {"masks": {"scl": {"affine": [1, 0, 0, 0, 1, 0]}}}),
    ]
    assert len({same, *others}) == 1 + len(others)
    # what only says how good or how coarse it is, and grids of other bands, redo nothing
    assert warped(place=PLACE | {"error_px": 0.002, "step": 32}, source=SOURCE | {"ratio": 1.2}) == warped()
    assert warped(more=[SOURCE | {"bands": ["swir"]}]) == warped()


@pytest.mark.parametrize("phase", sorted(ledger.PHASE_VERSION))
def test_key_follows_the_phase_versions(phase, monkeypatch):
    before = product_key(PRODUCT, {"red": BAND}, {}, GRID, None)
    monkeypatch.setitem(ledger.PHASE_VERSION, phase, 99)
    assert product_key(PRODUCT, {"red": BAND}, {}, GRID, None) != before


ENTRY = {"file": "f.tif", "size": 9, "checksum": "c", "pixel_digest": ["d"], "stats": {}, "key": "k"}


def record_of(*attempts, products=("ndvi", "old")):
    return new_record("products", "S1") | {
        "state": "done",
        "products": dict.fromkeys(products, ENTRY),
        "attempts": [{"outcome": outcome, "products": made, "n": n} for n, (outcome, made) in enumerate(attempts)],
    }


@pytest.mark.parametrize(
    ("attempts", "counting"),
    [
        ([("done", ["ndvi"])], [0]),
        ([("crashed", []), ("done", ["ndvi"])], [0, 1]),
        ([("done", ["ndvi"]), ("crashed", [])], [0]),
        ([("done", ["ndvi"]), ("done", ["ndvi"])], [1]),
        ([("done", ["ndvi"]), ("stopped", []), ("done", ["ndwi"])], [0, 1, 2]),
        ([("failed", []), ("retry", []), ("retry", []), ("done", ["ndvi", "ndwi"])], [1, 2, 3]),
        ([("failed", [])], []),
    ],
)
def test_attempts_that_made_the_pixels_count_and_killed_ones_before_them(attempts, counting):
    line = ledger_line(record_of(*attempts, products=("ndvi", "ndwi")), "rgbn", ["ndvi", "ndwi"])
    assert [attempt["n"] for attempt in line["attempts"]] == counting


def test_a_product_that_left_the_config_is_in_no_ledger():
    assert list(ledger_line(record_of(("done", ["ndvi", "old"])), "rgbn", ["ndvi"])["products"]) == ["ndvi"]


def test_ledger_keeps_the_order(tmp_path):
    line = ledger_line(record_of(("done", ["ndvi"])), "rgbn", ["ndvi"])
    assert "key" not in line["products"]["ndvi"]
    write_ledger(tmp_path / "b.jsonl", [line, line | {"scene": "A", "message": "two\u2028lines"}])
    assert [entry["scene"] for entry in read_ledger(tmp_path / "b.jsonl")] == ["S1", "A"]
