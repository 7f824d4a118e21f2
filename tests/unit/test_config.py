"""The config: what is accepted, and that each mistake is found in its place."""

import itertools
import json
import math
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import shipped
import yaml

from cogmill import describe
from cogmill.config import DTYPES, INTEGER_RANGES, LONGEST_NAME, Config, load_config
from cogmill.errors import ConfigError
from cogmill.scenes import LONGEST_SCENE
from cogmill.yamlfiles import MOST_LINES, Problems, nearest

ROOT = Path(__file__).resolve().parents[2]
NDVI = "products: {ndvi: (nir - red) / (nir + red)}\n"


def load(text: str, **changes) -> Config:
    """Load a config from one file's text, with values as `--config` would give them."""
    return load_config((yaml.safe_load(text) or {}) | changes, [("c.yaml", text)])


def mistakes(text: str, **changes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **changes)
    return str(caught.value).splitlines()[1:]


def one_mistake(text: str, **changes) -> str:
    (line,) = mistakes(text, **changes)
    return line


def test_defaults_fill_in_what_is_left_out():
    config = load(NDVI)
    assert (config.sheet, config.sensors, config.scenes_per_job) == ("config/scenes.csv", "config/sensors", "auto")
    assert (config.cog.bands, config.cog.overviews, config.cog.zstd_level) == ("needed", False, 9)
    assert (config.compute.device, config.compute.window, config.memory.spool_mb) == ("auto", "auto", 256)
    assert (config.max_attempts, config.max_failed_fraction, config.masks, config.batch_size) == (3, 0.0, {}, 25)
    assert config.products["ndvi"].formula.names == ("nir", "red")


def test_empty_keys_and_sections_take_their_defaults():
    config = load(NDVI + "cog:\nmasks: ~\nmax_attempts: ~\ncompute: {window: }\n")
    assert config == load(NDVI)


def test_a_product_set_to_nothing_is_left_out():
    assert list(load("products: {ndvi: nir - red, evi: ~}\n").products) == ["ndvi"]


@pytest.mark.parametrize("kind", ["classes", "bits"])
def test_codes_need_no_scale(kind):
    product = load(f"products: {{a: {{formula: nir, dtype: uint8, kind: {kind}}}}}\n").products["a"]
    assert product.to_json("a")["scale"] == 1.0


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("NIR", " - did you mean 'nir'?"),
        ("swir", " - did you mean 'swir16' or 'swir22'?"),
        ("SWIR1", " - did you mean 'swir16'?"),
        ("b", " - did you mean 'b1', 'b2' or 'b3'?"),
        ("thermal", "; known are b1, b2, b3, nir, swir16, swir22"),
        (5, "; known are b1, b2, b3, nir, swir16, swir22"),
    ],
)
def test_what_was_meant(word, text):
    assert nearest(word, ["swir22", "swir16", "nir", "b3", "b2", "b1"]) == text


def test_nothing_known_is_not_named():
    assert nearest("a", []) == ""


def test_formula_alone_and_mapping_mean_the_same():
    assert load(NDVI).products == load("products:\n  ndvi:\n    formula: (nir - red) / (nir + red)\n").products


@pytest.mark.parametrize(
    ("dtype", "nodata"),
    [("int8", -128), ("uint8", 255), ("int16", -32768), ("uint16", 65535), ("int32", -(2**31)), ("uint32", 2**32 - 1)],
)
def test_nodata_of_packed_products_lies_at_the_end_of_the_range(dtype, nodata):
    product = load(f"products: {{a: {{formula: nir, dtype: {dtype}, scale: 0.5}}}}\n").products["a"]
    assert product.to_json("a")["nodata"] == nodata
    assert nodata in INTEGER_RANGES[dtype]


def test_a_product_resolves_to_built_in_types_only():
    product = load("products: {a: {formula: ' nir -  red', nodata: .nan}}\n").products["a"].to_json("a")
    assert product == {
        "formula": load("products: {a: nir-red}").products["a"].formula.canonical,
        "dtype": "float32",
        "scale": 1.0,
        "offset": 0.0,
        "nodata": "nan",
        "unit": "1",
        "description": "a",
        "kind": "continuous",
        "resampling": "bilinear",
    }
    assert json.loads(json.dumps(product, allow_nan=False)) == product


def test_spaces_in_a_formula_change_nothing_that_a_key_is_made_of():
    spaced, dense = (
        load(f"products: {{a: '{text}'}}").products["a"].to_json("a") for text in ("nir  - red", "nir-red")
    )
    assert spaced == dense


def test_a_target_like_a_file_is_told_by_that_file_alone():
    lines = mistakes(NDVI + "grid: {like: a.tif, crs: EPSG:3035, resolution: 10}\n")
    assert [line.split(": ")[1] for line in lines] == ["key 'grid.crs'", "key 'grid.resolution'"]
    config = load(NDVI + "grid: {like: a.tif, crs: source, resolution: ~, aligned: true, extent: scene}\n")
    assert config.grid.like == "a.tif"


@pytest.mark.parametrize(
    "crs",
    [
        "EPSG:3035",
        "epsg:32632+5773",
        "urn:ogc:def:crs:EPSG::3035",
        "+proj=laea +lat_0=52 +lon_0=10 +ellps=GRS80",
        "ETRS89-extended / LAEA Europe",
        'PROJCRS["a, b", BASEGEOGCRS["c"]]',
    ],
)
def test_whatever_proj_may_understand_is_taken_for_a_crs(crs):
    assert load(NDVI + f"grid: {{crs: '{crs}', resolution: 10}}\n").grid.crs == crs


def test_a_wkt_may_go_over_several_lines():
    text = NDVI + 'grid:\n  resolution: 10\n  crs: |\n    PROJCRS["a",\n      BASEGEOGCRS["b"]]\n'
    assert load(text).grid.crs == 'PROJCRS["a", BASEGEOGCRS["b"]]'


def test_one_resolution_stands_for_both_axes():
    assert load(NDVI + "grid: {resolution: 1e1}\n").grid.resolution == (10, 10)
    assert load(NDVI + "grid: {resolution: [10, 2e1]}\n").grid.resolution == (10, 20)


def test_a_product_is_resampled_its_own_way_or_as_all_are():
    products = load("products: {a: {formula: nir, resampling: mode}, b: nir}\n").products
    assert products["a"].to_json("a", "cubic")["resampling"] == "mode"
    assert products["b"].to_json("b", "cubic")["resampling"] == "cubic"


def test_exponents_without_a_point_are_numbers():
    assert yaml.safe_load("1e-4") == "1e-4"  # what makes this test worth having
    product = load("products: {a: {formula: nir, dtype: int16, scale: 1e-4}}\n").products["a"]
    assert product.scale == 1e-4


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cog:\n  zstd_level: 40\n", "c.yaml:3:15: key 'cog.zstd_level': 40 is above 19"),
        ("cog: {zstd_level: true}\n", "c.yaml:2:19: key 'cog.zstd_level': true (yes/no) found, a whole number wanted"),
        ("cog: {zstd_level: '9'}\n", "c.yaml:2:19: key 'cog.zstd_level': text '9' found, a whole number wanted"),
        ("cog: {zstd_level: 9.5}\n", "c.yaml:2:19: key 'cog.zstd_level': 9.5 found, a whole number wanted"),
        ("cog: {zstd_level: 1e1}\n", "c.yaml:2:19: key 'cog.zstd_level': text '1e1' found, a whole number wanted"),
        ("cog: {zstd_level: [9]}\n", "c.yaml:2:19: key 'cog.zstd_level': a list found, a whole number wanted"),
        ("cog: {overviews: 1}\n", "c.yaml:2:18: key 'cog.overviews': 1 found, true or false wanted"),
        ("cog: 5\n", "key 'cog': 5 found, keys and values wanted (bands, overviews, zstd_level)"),
        ("cog: [bands]\n", "key 'cog': a list found, keys and values wanted"),
        ("cog: {band: all}\n", "c.yaml:2:7: key 'cog.band': unknown key - did you mean 'bands'?"),
        ("produce: 5\n", "c.yaml:2:1: key 'produce': unknown key - did you mean 'products'?"),
        (
            "grid: {crs: EPSG:3035}\n",
            "c.yaml:2:13: key 'grid.crs': needs grid.resolution, the size of a pixel in units of this CRS",
        ),
        ("grid: {crs: 3035}\n", "c.yaml:2:13: key 'grid.crs': 3035 found; of a code, write EPSG:3035"),
        ("grid: {crs: '3035'}\n", "key 'grid.crs': text '3035' found; of a code, write EPSG:3035"),
        ("grid: {crs: 'EPSG:abc'}\n", "'EPSG:abc' found, a number after EPSG: wanted, such as EPSG:3035"),
        ("grid: {crs: 'epsg: 3035'}\n", "'epsg: 3035' found, a number after EPSG: wanted, such as EPSG:3035"),
        ("grid: {crs: ''}\n", "text '' found, source, a code such as EPSG:3035, a WKT or a PROJ text wanted"),
        ("grid: {crs: {init: 1}}\n", "a mapping found, source, a code such as EPSG:3035, a WKT or a PROJ text wanted"),
        ("grid: {crs: Source}\n", "'Source' found; source is written in small letters"),
        ("grid: {resolution: 0}\n", "c.yaml:2:20: key 'grid.resolution': 0 found, a number above 0 wanted"),
        ("grid: {resolution: [10, -1]}\n", "c.yaml:2:25: key 'grid.resolution.1': -1 found, a number above 0 wanted"),
        ("grid: {resolution: [10]}\n", "key 'grid.resolution': a list of 1 found, a list [x, y] wanted"),
        ("grid: {resolution: ten}\n", "key 'grid.resolution': text 'ten' found, a number wanted"),
        ("grid: {resolution: '0,1'}\n", "text '0,1' found, a number wanted: write a decimal point"),
        ("grid: {resolution: .inf}\n", "key 'grid.resolution': inf found, a finite number wanted"),
        (
            "grid: {extent: [1, 2, 3]}\n",
            "c.yaml:2:16: key 'grid.extent': a list of 3 found, a list [left, bottom, right, top] wanted",
        ),
        ("grid: {extent: 1 2 3 4}\n", "text '1 2 3 4' found, 'scene' or a list [left, bottom, right, top] wanted"),
        ("grid: {extent: 5}\n", "5 found, a list [left, bottom, right, top] wanted"),
        ("grid: {extent: [1, 2, 3, x]}\n", "c.yaml:2:26: key 'grid.extent.3': text 'x' found, a number wanted"),
        (
            "grid: {extent: [3, 2, 1, 4]}\n",
            "key 'grid.extent': right 1 is not above left 3; the order is [left, bottom, right, top]",
        ),
        ("grid: {extent: [1, 4, 3, 4]}\n", "key 'grid.extent': top 4 is not above bottom 4; the order is [left"),
        (
            "grid: {extent: [0, 0, 2000000, 10], resolution: 1}\n",
            "c.yaml:2:49: key 'grid.resolution': 2000000 x 10 pixels (columns x rows) would cover grid.extent, at most",
        ),
        ("grid: {like: ''}\n", "key 'grid.like': '' found, text wanted"),
        ("grid: {like: a.tif, aligned: false}\n", "c.yaml:2:30: key 'grid.aligned': cannot be used together with"),
        ("grid: {like: a.tif, extent: [0, 0, 1, 1]}\n", "key 'grid.extent': cannot be used together with grid.like"),
        ("grid: {max_error_px: 0.6}\n", "c.yaml:2:22: key 'grid.max_error_px': 0.6 is above 0.5"),
        ("grid: {max_error_px: -1}\n", "key 'grid.max_error_px': -1 is below 0"),
        ("warp: {resampling: cubicspline}\n", "key 'warp.resampling': text 'cubicspline' found, one of nearest, bil"),
        ("warp: {order: warp_then_index}\n", "key 'warp.order': text 'warp_then_index' found, one of bands_then_index"),
        ("warp: {engine: gpu}\n", "key 'warp.engine': text 'gpu' found, one of grid, gdal wanted"),
        ("warp: {allow_aliasing: 1}\n", "key 'warp.allow_aliasing': 1 found, true or false wanted"),
        ("self_check: 2\n", "key 'self_check': 2 found, true or false wanted"),
        ("max_failed_fraction: .nan\n", "key 'max_failed_fraction': nan found, a finite number wanted"),
        ("max_failed_fraction: -.inf\n", "key 'max_failed_fraction': -inf found, a finite number wanted"),
        ("max_failed_fraction: 1.01\n", "key 'max_failed_fraction': 1.01 is above 1"),
        ("max_failed_fraction: 1e-4x\n", "key 'max_failed_fraction': text '1e-4x' found, a number wanted"),
        ("max_failed_fraction: false\n", "key 'max_failed_fraction': false (yes/no) found, a number wanted"),
        ("scenes_per_job: 0\n", "key 'scenes_per_job': 0 is below 1"),
        ("scenes_per_job: many\n", "key 'scenes_per_job': text 'many' found, 'auto' or a number wanted"),
        ("compute: {device: cuda}\n", "key 'compute.device': text 'cuda' found, one of auto, gpu, cpu wanted"),
        (
            "compute: {device: gpu}\n",
            "c.yaml:2:19: key 'compute.device': this version of cogmill has no GPU kernels yet: set auto or cpu",
        ),
        ("max_failed_fraction: 0,05\n", "text '0,05' found, a number wanted: write a decimal point"),
        ("masks: {scl: {classes: '3'}}\n", "text '3' found, a list wanted: [\"3\"]"),
        ("masks: {scl: {classes: {a: 3}}}\n", "a mapping found, a list wanted"),
        ("pathvars: {result: x}\n", "c.yaml:2:12: key 'pathvars.result': results, logs or benchmarks wanted as a name"),
        ("pathvars: {stats: x}\n", "key 'pathvars.stats': results, logs or benchmarks wanted as a name"),
        ("sheet: 5\n", "key 'sheet': 5 found, text in quotes wanted"),
        ("sheet: ''\n", "key 'sheet': '' found, text wanted"),
        ('sheet: "a\\nb"\n', "key 'sheet': 'a\\nb' found, text wanted, in one line"),
        ("masks: {scl: {}}\n", "c.yaml:2:14: key 'masks.scl': masks nothing: give classes or bits"),
        ("masks: {scl: {classes: 3}}\n", "key 'masks.scl.classes': 3 found, a list wanted: [3]"),
        ("masks: {scl: {bits: [0, 64]}}\n", "c.yaml:2:25: key 'masks.scl.bits.1': 64 is above 63"),
        ("masks: {scl: {bits: [true]}}\n", "key 'masks.scl.bits.0': true (yes/no) found, a whole number wanted"),
        ("masks: {SCL: {bits: [1]}}\n", "key 'masks.SCL': the name of a band (small letters, digits, _) wanted"),
    ],
)
def test_each_mistake_is_placed_and_says_what_is_wanted(text, line):
    assert line in one_mistake(NDVI + text)


@pytest.mark.parametrize(
    ("product", "line"),
    [
        ("{formula: nir, scale: 2}", "scale': 2 found, but float32"),
        ("{formula: nir, offset: 0.5}", "offset': 0.5 found, but float32"),
        ("{formula: nir, nodata: -9999}", "nodata': -9999 found, but float32 marks invalid pixels by NaN"),
        ("{formula: nir, kind: classes}", "kind': 'classes' needs an integer dtype"),
        ("{formula: nir, dtype: int16, scale: 0}", "scale': 0 cannot be used here"),
        ("{formula: nir, dtype: int16, scale: .inf}", "scale': inf found, a finite number wanted"),
        (
            "{formula: nir, dtype: uint8, scale: 1, nodata: 256}",
            "nodata': 256 found, a whole number from 0 to 255 wanted",
        ),
        (
            "{formula: nir, dtype: uint8, scale: 1, nodata: -1}",
            "nodata': -1 found, a whole number from 0 to 255 wanted",
        ),
        (
            "{formula: nir, dtype: uint8, scale: 1, nodata: 1.5}",
            "nodata': 1.5 found, a whole number from 0 to 255 wanted",
        ),
        (
            "{formula: nir, dtype: uint8, scale: 1, nodata: .nan}",
            "nodata': nan found, a whole number from 0 to 255 wanted",
        ),
        ("{formula: nir, dtype: float64}", "dtype': text 'float64' found, one of float32, "),
        (
            "{formula: nir, dtype: int16}",
            "c.yaml:2:28: key 'products.a.dtype': int16 rounds to whole numbers: give scale, e.g. 0.0001, or 1 for "
            "whole numbers",
        ),
        ("{formula: nir, dtype: uint8, scale: ~}", "dtype': uint8 rounds to whole numbers"),
        (
            "{formula: nir, dtype: int16, scale: '0,0001'}",
            "scale': text '0,0001' found, a number wanted: write a decim",
        ),
        ("{dtype: int16}", "key 'formula' is missing"),
        ("{formula: nir, scales: 2}", "scales': unknown key - did you mean 'scale'?"),
        ("5", "5 found, keys and values wanted"),
        ("''", "products.a'"),
    ],
)
def test_products_that_cannot_be(product, line):
    assert line in one_mistake(f"products:\n  a: {product}\n")


@pytest.mark.parametrize("name", ["'../evil'", "a b", "ndvi.tif", "record", "ä", "''", "n" * 81])
def test_product_names_that_make_no_file_name(name):
    assert re.match(r"c.yaml:1:12: key 'products.", one_mistake(f"products: {{{name}: nir}}\n"))


def test_the_longest_product_name_makes_file_names_within_255_bytes():
    name = "n" * LONGEST_NAME
    assert list(load(f"products: {{{name}: nir}}\n").products) == [name]
    assert f"at most {LONGEST_NAME} letters" in one_mistake(f"products: {{{name}n: nir}}\n")
    assert len(f"{'s' * LONGEST_SCENE}.{name}.jsonl") <= 255
    assert len(f".{name}.stale.tif.{'0' * 32}.tmp") <= 255


def test_names_that_yaml_takes_for_something_else():
    assert "is read as false (yes/no); put it in quotes" in one_mistake("products: {no: nir}\n")
    assert "is read as 2020; put it in quotes" in one_mistake("products: {2020: nir}\n")


@pytest.mark.parametrize("text", ["", "products: {}\n", "products: {ndvi: ~}\n"])
def test_a_campaign_without_products_is_refused(text):
    assert "product" in one_mistake(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("products:\n  ndvi: (nir - red) / (nir & red)\n", "c.yaml:2:28: key 'products.ndvi'"),
        ('products:\n  ndvi: "(nir - red) / (nir & red)"\n', "c.yaml:2:29: key 'products.ndvi'"),
        ("products:\n  ndvi:\n    formula: 'nir & red'\n", "c.yaml:3:19: key 'products.ndvi.formula'"),
        # a text that goes over several lines has no one column: the key's line, and the character
        ("products:\n  ndvi: |\n    nir\n    & red\n", "c.yaml:2:9: key 'products.ndvi'"),
    ],
)
def test_a_formula_that_cannot_be_parsed_is_placed_at_its_character(text, place):
    assert one_mistake(text).startswith(place)


def test_all_mistakes_come_in_one_message():
    lines = mistakes(
        "cog: {zstd_level: 40}\nproducts:\n  a: nir +\n  b: {formula: red, scale: 0}\nmax_attempts: 0\nx: 1\n"
    )
    places = [line.split(": ")[0] for line in lines]
    assert len(lines) == 5
    assert {place.rsplit(":", 1)[0] for place in places} == {f"c.yaml:{n}" for n in (1, 3, 4, 5, 6)}


def test_a_missing_product_key_names_the_product():
    assert one_mistake("products:\n  a: {unit: m}\n").startswith(
        "c.yaml:2:3: key 'products.a': key 'formula' is missing"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cog:\n\tbands: all\n", "c.yaml:2:1: a tab; YAML is indented with spaces only"),
        ("cog: {bands: all\n", "c.yaml:2:1: not YAML: "),
        (
            "a: b: c\n",
            "c.yaml:1:5: not YAML: mapping values are not allowed here: check the indentation and quotes",
        ),
        ("- products\n- sheet\n", "c.yaml:1:1: the file is a list; keys and values (key: value) are wanted"),
        ("just words\n", "c.yaml:1:1: the file is a single value; keys"),
        ("a: \x07\n", "c.yaml:1:4: "),
        ("a: !!python/name:os.system x\n", "c.yaml:1:4: "),
        ("a: 1\n---\nb: 2\n", "c.yaml:2:1: not YAML: "),
    ],
)
def test_files_that_are_not_a_yaml_mapping(text, line):
    with pytest.raises(ConfigError) as caught:
        load_config(yaml.safe_load(NDVI), [("c.yaml", text)])
    assert line in str(caught.value)


def test_keys_that_stand_twice_are_refused():
    assert one_mistake(NDVI + "cog: {bands: all}\ncog: {overviews: true}\n") == (
        "c.yaml:3:1: key 'cog' stands in line 2 already; keep one"
    )
    assert one_mistake("products: {a: nir, a: red}\n") == "c.yaml:1:20: key 'a' stands in line 1 already; keep one"


def test_anchors_and_merge_keys_are_no_duplicates():
    text = "products:\n  a: &packed {formula: nir, dtype: int16, scale: 0.5}\n  b: {<<: *packed, formula: red}\n"
    assert load(text).products["b"].dtype == "int16"
    wrong = text.replace("0.5", "0")
    assert [line.split(": ")[0] for line in mistakes(wrong)] == ["c.yaml:2:50", "c.yaml:2:50"]


def test_json_configs_may_be_indented_with_tabs():
    text = json.dumps({"products": {"a": "nir"}, "cog": {"zstd_level": 40}}, indent="\t")
    with pytest.raises(ConfigError, match=r"c.json:6:17: key 'cog.zstd_level': 40 is above 19"):
        load_config(json.loads(text), [("c.json", text)])


def test_values_of_the_command_line_have_no_file():
    assert one_mistake(NDVI, max_attempts=0) == "(--config): key 'max_attempts': 0 is below 1"
    assert one_mistake(NDVI + "max_attempts: 2\n", max_attempts=0).startswith("(--config): ")
    assert one_mistake(NDVI, cog={"zstd_level": 40}).startswith("(--config): key 'cog.zstd_level'")
    assert one_mistake(NDVI, colour=1).startswith("(--config): key 'colour': unknown key")


def test_without_files_every_mistake_is_still_told():
    doc = {"products": {"a": "nir"}, "cog": {"zstd_level": 40}}
    with pytest.raises(ConfigError, match=r"\n\(config\): key 'cog.zstd_level': 40"):
        load_config(doc)  # as a workflow gives it that imports this one
    with pytest.raises(ConfigError, match=r"\n\(config or --config\): key 'cog.zstd_level': 40"):
        load_config(doc, [("c.yaml", "# nothing yet\n")])


def test_the_last_file_that_has_the_key_gives_the_line():
    base, over = NDVI + "\ncog:\n  bands: all\n  zstd_level: 30\n", "# over\ncog: {zstd_level: 40, bands: most}\n"
    doc = yaml.safe_load(base)
    doc["cog"] |= yaml.safe_load(over)["cog"]
    doc["max_attempts"] = 1
    with pytest.raises(ConfigError) as caught:
        load_config(doc, [("base.yaml", base), ("over.yaml", over)])
    assert str(caught.value).splitlines()[1:] == [
        "over.yaml:2:30: key 'cog.bands': text 'most' found, one of needed, all wanted",
        "over.yaml:2:19: key 'cog.zstd_level': 40 is above 19",
    ]
    doc["cog"] = {"bands": "all", "zstd_level": 30}
    with pytest.raises(ConfigError, match=r"base\.yaml:5:15"):
        load_config(doc, [("base.yaml", base), ("over.yaml", "# nothing of it\n")])


@pytest.mark.parametrize("doc", [None, [], "text", 5])
def test_a_config_that_is_no_mapping(doc):
    with pytest.raises(ConfigError, match="keys and values wanted"):
        load_config(doc)


def test_thousands_of_mistakes_do_not_flood_the_terminal():
    problems = Problems()
    for number in range(10_000):
        problems.add("s.csv", str(number))
    with pytest.raises(ConfigError) as caught:
        problems.stop()
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("10000 mistakes")
    assert len(lines) == MOST_LINES + 2
    assert lines[-1] == f"... and {10_000 - MOST_LINES} more"


@pytest.mark.parametrize("path", describe.made_files(ROOT), ids=lambda path: str(path.relative_to(ROOT)))
def test_made_files_are_up_to_date(path):
    if path == ROOT / describe.CONFIG:
        shipped.skip_if_changed(describe.CONFIG)
    assert path.read_text(encoding="utf-8") == describe.made_files(ROOT)[path], f"run: {describe.COMMAND}"


def test_making_the_files_says_which_are_out_of_date(tmp_path, capsys):
    assert describe.main(["--root", str(tmp_path)]) == 1
    assert f"run `{describe.COMMAND}`" in capsys.readouterr().out
    assert describe.main(["--root", str(tmp_path), "--write"]) == 0
    assert describe.main(["--root", str(tmp_path)]) == 0


def made_config(folder, capsys, text: str) -> tuple[str, str]:
    """(`config/config.yaml`, what was said) after making all files where `text` stood."""
    path = folder / describe.CONFIG
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert describe.main(["--root", str(folder), "--write"]) == 0
    assert describe.main(["--root", str(folder)]) == 0
    return path.read_text(encoding="utf-8"), capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "products: {ndvi: nir - red}\n",
        describe.config_text().replace("zstd_level: 9", "zstd_level: 10", 1),
        describe.config_text().replace("masks: {}", "masks: {scl: {classes: [3]}}"),
        describe.config_text().replace("  # ndwi:", "  ndwi:"),
        "sheet: [\n",
        "sheet: 2020-13-45\n",
        "- my list\n",
    ],
)
def test_a_config_with_values_of_the_user_is_never_overwritten(tmp_path, capsys, text):
    kept, said = made_config(tmp_path, capsys, text)
    assert kept == text
    assert "config.yaml: left alone, it holds values of yours; delete it to have it made anew" in said


@pytest.mark.parametrize("text", ["", "cog:\n  zstd_level: 9\n  gone: 1\nold_key: 5\n"])
def test_a_config_that_only_lacks_keys_or_has_old_ones_is_made_anew(tmp_path, capsys, text):
    assert made_config(tmp_path, capsys, text)[0] == describe.config_text()


@pytest.mark.parametrize("same", [True, False, None])
def test_a_changed_config_skips_the_tests_of_the_shipped_one(monkeypatch, same):
    def run(*args, **options):
        if same is None:
            raise FileNotFoundError("git")
        return subprocess.CompletedProcess(args, 0 if same else 1)

    monkeypatch.setattr(subprocess, "run", run)
    if same:
        shipped.skip_if_changed(describe.CONFIG)
        return
    with pytest.raises(pytest.skip.Exception, match=r"config/config\.yaml was changed: it is the user's"):
        shipped.skip_if_changed(describe.CONFIG)


def test_the_shipped_config_explains_every_key_and_changes_no_default():
    shipped.skip_if_changed(describe.CONFIG)
    text = (ROOT / "config/config.yaml").read_text(encoding="utf-8")
    config = load(text)
    assert list(config.products) == ["ndvi"]
    only = load(
        "products:\n  ndvi: {formula: (nir - red) / (nir + red), description: Normalised difference vegetation index}"
    )
    assert config == only
    rows = describe.TABLES["config"]().splitlines()[2:]
    for key in [re.match(r"\| `(?:\w+\.)*(\w+)`", row)[1] for row in rows]:
        assert re.search(rf"^ *(#   )?{key}\b", text, re.MULTILINE), key


SCHEMA_CASES = [
    NDVI,
    NDVI + "cog: {bands: all, overviews: true, zstd_level: 1}\n",
    NDVI + "cog:\nmasks: {scl: {classes: [1, 2]}, qa_pixel: ~}\n",
    NDVI + "compute: {window: 3, device: cpu}\nscenes_per_job: 7\nmax_failed_fraction: 1\n",
    "products: {a: {formula: nir, dtype: int16, scale: 1e-4, nodata: -1}}\n",
    "products: {a: {formula: nir, nodata: nan}}\n",
    NDVI + "cog: {zstd_level: 20}\n",
    NDVI + "cog: {zstd_level: true}\n",
    NDVI + "cog: {zstd_level: '9'}\n",
    NDVI + "cog: {band: all}\n",
    NDVI + "unknown: 1\n",
    NDVI + "masks: {SCL: {bits: [1]}}\n",
    NDVI + "masks: {scl: {bits: [64]}}\n",
    NDVI + "compute: {window: 0}\n",
    NDVI + "max_failed_fraction: 1.5\n",
    "products: {record: nir}\n",
    "products: {a: {dtype: int16}}\n",
    "products: {a: {formula: nir, scale: 0}}\n",
    "products: {a: 5}\n",
    "products: [nir]\n",
    "sheet: a.csv\n",
    NDVI + "grid: {crs: EPSG:3035, resolution: 10}\n",
    NDVI + "grid: {crs: epsg:4326+5773, resolution: [1e-4, 0.1], extent: [1, 2, 3, 4e0], aligned: false}\n",
    NDVI + "grid: {like: a.tif, max_error_px: 0}\nwarp: {resampling: median, engine: gdal}\nself_check: false\n",
    NDVI + "grid: {crs: ' source ', resolution: ~}\n",
    NDVI + "grid: {crs: 3035, resolution: 10}\n",
    NDVI + "grid: {crs: '3035', resolution: 10}\n",
    NDVI + "grid: {crs: 'EPSG:', resolution: 10}\n",
    NDVI + "grid: {crs: 'epsg:30a', resolution: 10}\n",
    NDVI + "grid: {crs: SOURCE}\n",
    NDVI + "grid: {crs: sources, resolution: 10}\n",
    NDVI + "grid: {resolution: 0}\n",
    NDVI + "grid: {resolution: [1]}\n",
    NDVI + "grid: {resolution: [1, 2, 3]}\n",
    NDVI + "grid: {extent: [1, 2, 3]}\n",
    NDVI + "grid: {extent: all}\n",
    NDVI + "grid: {max_error_px: 0.51}\n",
    NDVI + "warp: {resampling: sum}\n",
    "products: {a: {formula: nir, resampling: gauss}}\n",
]


@pytest.mark.parametrize("text", SCHEMA_CASES)
def test_the_schema_says_what_the_reader_says(text):
    doc = yaml.safe_load(text)
    schema = yaml.safe_load((ROOT / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8"))
    try:
        load(text)
        accepted = True
    except ConfigError:
        accepted = False
    assert jsonschema.Draft202012Validator(schema).is_valid(doc) == accepted


def test_numbers_are_finite_wherever_they_are_written():
    for word in (".inf", "-.inf", ".nan"):
        assert "finite" in one_mistake(f"products: {{a: {{formula: nir, dtype: int8, offset: {word}}}}}\n")
    assert math.isnan(load("products: {a: {formula: nir, nodata: nan}}\n").products["a"].nodata)


def test_every_dtype_can_be_asked_for():
    for dtype in DTYPES:
        scale = "" if dtype == "float32" else ", scale: 1"
        load(f"products: {{a: {{formula: nir, dtype: {dtype}{scale}}}}}\n")


@pytest.mark.parametrize(
    "text",
    [
        "sheet: s.csv\nproducts: &a {n: nir - red, x: *a}\n",
        "masks: &top {scl: *top}\n",
        "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
        + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in itertools.pairwise("abcdefgh")),
    ],
)
def test_aliases_that_never_end_are_refused(text):
    assert "aliases" in "".join(mistakes(text))


@pytest.mark.parametrize("value", ["2020-13-45", "!!int abc", "!!float abc", "!!bool x", "1" * 5000])
def test_values_that_only_look_like_their_type(value):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config({}, [("c.yaml", f"products: {{n: nir - red}}\nmax_attempts: {value}\n")])


def test_no_worker_is_waited_for_longer_than_a_week():
    assert "604800" in one_mistake("products: {n: nir - red}\ncompute: {stall_s: 99999999999}\n")
