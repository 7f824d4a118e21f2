"""Sensor files: the built-in ones, and what is refused in a user's own."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from cogmill.errors import ConfigError
from cogmill.sensors import BUILT_IN, Sensors
from cogmill.yamlfiles import Problems

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(file.stem for file in BUILT_IN.glob("*.yaml"))
OWN = "title: mine\nbands:\n  red: {position: 1}\n"


def built_in(name: str):
    problems = Problems()
    sensor = Sensors("nowhere", problems).get(name, pytest.fail)
    problems.stop()
    return sensor


def own_mistakes(folder: Path, text: str) -> list[str]:
    (folder / "own.yaml").write_text(text, encoding="utf-8")
    problems = Problems()
    assert Sensors(folder, problems).get("own", pytest.fail) is None
    with pytest.raises(ConfigError):
        problems.stop()
    return [line.removeprefix(f"{folder}/") for line in problems.lines]


def test_the_sensors_that_people_have_are_built_in():
    landsat = {f"landsat{number}_{level}" for number in (5, 7, 8, 9) for level in ("l1", "l2")}
    assert set(NAMES) == landsat | {"sentinel2_l2a", "sentinel2_l2a_before_0400", "rgbn"}


@pytest.mark.parametrize("name", NAMES)
def test_built_in_files_fit_the_schema_and_know_ndvi(name):
    schema = yaml.safe_load((ROOT / "workflow/schemas/sensor.schema.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(yaml.safe_load((BUILT_IN / f"{name}.yaml").read_text(encoding="utf-8")), schema)
    sensor = built_in(name)
    assert {"red", "nir", "green", "blue"} <= set(sensor.bands)
    assert all(band.kind == "continuous" for band in (sensor.bands["red"], sensor.bands["nir"]))


@pytest.mark.parametrize(
    ("name", "role", "number", "value"),
    [
        ("sentinel2_l2a", "red", 1000, 0.0),
        ("sentinel2_l2a", "nir", 11000, 1.0),
        ("sentinel2_l2a_before_0400", "red", 10000, 1.0),
        ("landsat8_l2", "red", 7273, 2.75e-05 * 7273 - 0.2),
        ("landsat5_l2", "nir", 43636, 0.99999),
        ("landsat9_l2", "lwir11", 44000, 299.39288),
    ],
)
def test_numbers_mean_what_their_makers_say(name, role, number, value):
    band = built_in(name).bands[role]
    assert number * band.scale + band.offset == pytest.approx(value)


@pytest.mark.parametrize("name", [name for name in NAMES if "l1" in name or name == "rgbn"])
def test_raw_numbers_stay_as_they_are(name):
    sensor = built_in(name)
    assert sensor.nodata is None
    assert all(band.scale is None and band.offset is None for band in sensor.bands.values())


def test_quality_bands_are_codes_without_scale():
    assert built_in("sentinel2_l2a").bands["scl"].kind == "classes"
    band = built_in("landsat9_l2").bands["qa_pixel"]
    assert (band.kind, band.scale, band.offset) == ("bits", None, None)


def test_stacks_of_unclear_order_have_no_positions():
    assert all(band.position is None for band in built_in("sentinel2_l2a").bands.values())
    # sixth of six bands, or seventh after the thermal band
    assert built_in("landsat7_l1").bands["swir22"].position is None
    assert [band.position for band in built_in("rgbn").bands.values()] == [1, 2, 3, 4]


def test_file_names_of_a_band_are_tried_in_order_and_its_own_name_last():
    assert built_in("landsat8_l2").bands["red"].tokens == ("SR_B4", "B4", "red")
    assert built_in("sentinel2_l2a").bands["nir"].tokens[0] == "B08"


def test_params_hold_built_in_types_only():
    doc = built_in("rgbn").params
    assert doc["name"] == "rgbn"
    assert doc["bands"][0] == {
        "name": "red",
        "names": ["R"],
        "file": ["R", "red"],
        "position": 1,
        "kind": "continuous",
        "scale": None,
        "offset": None,
    }


def test_own_sensors_go_before_built_in_ones(tmp_path):
    (tmp_path / "rgbn.yaml").write_text(OWN, encoding="utf-8")
    sensors = Sensors(tmp_path, Problems())
    assert list(sensors.get("rgbn", pytest.fail).bands) == ["red"]
    assert sensors.names() == NAMES


def test_the_shipped_example_is_right():
    problems = Problems()
    sensor = Sensors(ROOT / "config/sensors", problems).get("drone_example", pytest.fail)
    problems.stop()
    assert sensor.bands["nir"].names == ("NIR", "842")
    assert sensor.bands["nir"].scale == pytest.approx(1 / 32767, rel=1e-3)
    assert sensor.bands["clouds"].scale is None


@pytest.mark.parametrize("name", ["../rgbn", "rgbn/../rgbn", "rgb", "", "rgbn.yaml", "*"])
def test_unknown_sensors(name):
    told = []
    assert Sensors("nowhere", Problems()).get(name, told.append) is None
    assert told[0].startswith(f"no sensor '{name}'")


def test_a_near_miss_gets_a_suggestion():
    told = []
    Sensors("nowhere", Problems()).get("sentinel2_l2", told.append)
    Sensors("nowhere", Problems()).get("landsat5", told.append)
    assert "did you mean 'sentinel2_l2a'?" in told[0]
    assert "did you mean 'landsat5_l1' or 'landsat5_l2'?" in told[1]


def test_the_bands_of_one_sensor_go_over_its_defaults(tmp_path):
    text = "title: t\nscale: 0.5\noffset: 2\nbands:\n  red: {}\n  nir: {offset: 0}\n  qa: {kind: bits}\n"
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    bands = Sensors(tmp_path, Problems()).get("own", pytest.fail).bands
    assert [(band.scale, band.offset) for band in bands.values()] == [(0.5, 2), (0.5, 0), (None, None)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OWN + "scales: 1\n", "own.yaml:4:1: key 'scales': unknown key - did you mean 'scale'?"),
        (OWN + "scale: 0\n", "own.yaml:4:8: key 'scale': 0 cannot be used here"),
        (OWN + "scale: true\n", "own.yaml:4:8: key 'scale': true (yes/no) found, a number wanted"),
        (OWN + "nodata: .nan\n", "own.yaml:4:9: key 'nodata': nan found, a finite number wanted"),
        (OWN + "  nir: {position: 1}\n", "own.yaml:4:8: key 'bands.nir': 'position 1' is used by band 'red' already"),
        (OWN + "  nir: {names: [RED]}\n", "own.yaml:4:8: key 'bands.nir': 'RED' is used by band 'red' already"),
        (OWN + "  nir: {position: 0}\n", "own.yaml:4:19: key 'bands.nir.position': 0 is below 1"),
        (
            OWN + "  nir: {names: B4}\n",
            "own.yaml:4:16: key 'bands.nir.names': text 'B4' found, a list wanted: [\"B4\"]",
        ),
        (OWN + "  nir: {names: [4]}\n", "own.yaml:4:17: key 'bands.nir.names.0': 4 found, text in quotes wanted"),
        (OWN + "  nir: {kind: flags}\n", "own.yaml:4:15: key 'bands.nir.kind': text 'flags' found, one of continuous"),
        (OWN + "  qa: {kind: bits, scale: 2}\n", "own.yaml:4:7: key 'bands.qa': scale and offset cannot be used"),
        (OWN + "  NIR: {}\n", "own.yaml:4:3: key 'bands.NIR': small letters, digits and _"),
        (OWN + "  mask: {}\n", "own.yaml:4:3: key 'bands.mask': this name is taken by cogmill"),
        (OWN + "  red: {}\n", "own.yaml:4:3: key 'red' stands in line 3 already"),
        ("bands: {red: {}}\n", "own.yaml:1:1: key 'title' is missing"),
        ("title: t\n", "key 'bands' is missing"),
        ("title: t\nbands: {}\n", "own.yaml:2:8: key 'bands': a sensor needs at least one band"),
        ("- red\n", "own.yaml:1:1: the file is a list"),
        ("", "own.yaml: key 'title' is missing"),
        ("title: [\n", "own.yaml:2:1: not YAML"),
    ],
)
def test_mistakes_in_a_sensor_file_are_placed(tmp_path, text, line):
    assert line in own_mistakes(tmp_path, text)[0]


def test_a_sensor_file_in_another_encoding(tmp_path):
    (tmp_path / "own.yaml").write_bytes("title: K\xe4mera\n".encode("latin-1"))
    problems = Problems()
    assert Sensors(tmp_path, problems).get("own", pytest.fail) is None
    assert problems.lines == [f"{tmp_path}/own.yaml:1:9: byte 0xe4 is not UTF-8; save the file as UTF-8"]


def test_mistakes_of_a_file_are_noted_once(tmp_path):
    (tmp_path / "own.yaml").write_text("title: 5\nbands: {red: {}}\n", encoding="utf-8")
    problems = Problems()
    sensors = Sensors(tmp_path, problems)
    assert sensors.get("own", pytest.fail) is sensors.get("own", pytest.fail) is None
    assert len(problems) == 1
