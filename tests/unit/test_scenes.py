"""The sample sheet: what is read from it, and that each mistake has its line and column."""

import time
from pathlib import Path

import jsonschema
import pytest
import yaml

from cogmill.errors import ConfigError
from cogmill.scenes import COLUMNS, LONGEST_SCENE, is_local, read_sheet
from cogmill.sensors import Sensors
from cogmill.yamlfiles import Problems

ROOT = Path(__file__).resolve().parents[2]
BANDS = ["red", "nir"]
LINE = "S1,rgbn,a.tif\n"
HEAD = "scene,sensor,path\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str | bytes, check_files: bool = False):
    """(scenes, lines of mistakes) of a sheet s.csv."""
    Path("s.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    problems = Problems()
    needed = (lambda sensor: [role for role in BANDS if role in sensor.bands]) if check_files else None
    scenes = read_sheet("s.csv", Sensors("sensors", problems), problems, needed)
    return scenes, problems.lines


def scenes_of(text: str | bytes, check_files: bool = False):
    scenes, lines = read(text, check_files)
    assert lines == []
    return scenes


def mistakes(text: str | bytes, check_files: bool = False) -> list[str]:
    return read(text, check_files)[1]


def test_every_column_is_read():
    (scene,) = scenes_of(
        f"{','.join(COLUMNS)}\n007,rgbn,/vsizip/a.zip/b.tif,2020-07-05T10:20:31Z,32TQM,1e-4,-0.1,65535,clouds.tif\n"
    )
    assert scene.to_json() == {
        "scene": "007",
        "sensor": "rgbn",
        "path": "/vsizip/a.zip/b.tif",
        "datetime": "2020-07-05T10:20:31Z",
        "group": "32TQM",
        "scale": 1e-4,
        "offset": -0.1,
        "nodata": 65535,
        "mask": "clouds.tif",
    }
    assert scene.line == 2
    assert isinstance(scene.nodata, int)


def test_empty_cells_and_missing_columns_are_none():
    full = scenes_of(f"{','.join(COLUMNS)}\nS1,rgbn,a.tif,,,,,,\n")
    assert scenes_of(HEAD + LINE) == full == scenes_of(f"{','.join(COLUMNS)}\n{LINE}")
    assert full[0].to_json()["scale"] is None


def test_columns_come_in_any_order():
    (scene,) = scenes_of("path,scene,sensor\na.tif,S1,rgbn\n")
    assert (scene.scene, scene.path) == ("S1", "a.tif")


@pytest.mark.parametrize("word", ["nan", "NaN"])
def test_nodata_may_be_nan(word):
    (scene,) = scenes_of(f"scene,sensor,path,nodata\nS1,rgbn,a.tif,{word}\n")
    assert scene.nodata != scene.nodata
    assert scene.to_json()["nodata"] == "nan"


@pytest.mark.parametrize("mark", [",", "\t", ";"])
def test_the_header_says_what_separates(mark):
    text = (HEAD + LINE).replace(",", mark)
    assert [scene.path for scene in scenes_of(text)] == ["a.tif"]


def test_byte_order_mark_line_ends_spaces_and_blank_lines_do_not_matter():
    plain = scenes_of(HEAD + LINE)
    (messy,) = scenes_of("\ufeff scene , sensor,path\r\n\r\n  S1 ,\trgbn,a.tif \r\n,,\r\n \r\n")
    assert messy.to_json() == plain[0].to_json()
    assert messy.line == 3
    assert scenes_of((HEAD + LINE).replace("\n", "\r")) == plain
    assert scenes_of((HEAD + LINE).rstrip()) == plain
    assert scenes_of((HEAD + LINE).replace("\n", ",,\n")) == plain
    assert scenes_of((HEAD + LINE).replace(",", ",\t ")) == plain


def test_separators_and_quotes_inside_quotes():
    (scene,) = scenes_of(HEAD + 'S1,rgbn,"a, ""b"".tif"\n')
    assert scene.path == 'a, "b".tif'


def test_line_breaks_in_quotes_leave_the_line_numbers_right():
    lines = mistakes(HEAD + 'S1,rgbn,"a\nb\nc.tif"\nS2,rgbn,a.tif\nS3,nobody,a.tif\n')
    assert lines[0] == "s.csv:2:3: column 'path': 'a\\nb\\nc.tif' holds a line break or another invisible sign"
    assert lines[1].startswith("s.csv:6:2: column 'sensor': no sensor 'nobody'")


@pytest.mark.parametrize("id", ["S1", "007", "07", "a.b-c_d", "-", "_", "1e5", "True", "x" * LONGEST_SCENE])
def test_ids_are_text(id):
    assert [scene.scene for scene in scenes_of(f"{HEAD}{id},rgbn,a.tif\n")] == [id]


@pytest.mark.parametrize("id", ["../evil", "a/b", ".", "..", ".hidden", "a b", "ä", "a*", "a:b", "~", "$X", "a\\b"])
def test_ids_that_make_no_folder(id):
    (line,) = mistakes(f"{HEAD}{id},rgbn,a.tif\n")
    assert line.startswith(f"s.csv:2:1: column 'scene': {id!r} found, an id without invalid characters")


def test_more_ids_that_are_refused():
    assert "ends in .stale" in mistakes(f"{HEAD}S1.stale,rgbn,a.tif\n")[0]
    assert f"at most {LONGEST_SCENE}" in mistakes(f"{HEAD}{'x' * (LONGEST_SCENE + 1)},rgbn,a.tif\n")[0]


def test_duplicates_name_both_lines():
    lines = mistakes(HEAD + LINE + "s1,rgbn,a.tif\n" + LINE + LINE)
    assert lines == [
        "s.csv:4:1: column 'scene': duplicate id 'S1': line 2 has it already; ids must be unique",
        "s.csv:5:1: column 'scene': duplicate id 'S1': line 2 has it already; ids must be unique",
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("name,file\nS1,a.tif\n", ["s.csv:1:1: unknown column 'name'", "s.csv:1:2: unknown column 'file'"]),
        ("scene,sensors,path\n", ["s.csv:1:2: unknown column 'sensors' - did you mean 'sensor'?"]),
        ("scene,path\nS1,a.tif\n", ["s.csv:1:1: column 'sensor' is missing"]),
        (
            "Scene;Sensor;Path\n",
            [
                "s.csv:1:1: unknown column 'Scene' - did you mean 'scene'?; column names are small letters",
                "s.csv:1:2: unknown column 'Sensor' - did you mean 'sensor'?; column names are small letters",
                "s.csv:1:3: unknown column 'Path' - did you mean 'path'?; column names are small letters",
            ],
        ),
        ("scene,sensor,path,path\n", ["s.csv:1:4: column 'path' stands twice"]),
        ("Scene,sensor,path\n", ["s.csv:1:1: unknown column 'Scene' - did you mean 'scene'?"]),
        ("\n\nscene,sensor\n", ["s.csv:3:1: column 'path' is missing"]),
        ("scene,,sensor,path\nS1,,rgbn,a.tif\n", ["s.csv:1:2: unknown column ''"]),
        ("", ["s.csv:1:1: the sheet is empty"]),
        ("\n \n", ["s.csv:1:1: the sheet is empty"]),
        (HEAD, ["s.csv:1:1: the sheet has no scene"]),
    ],
)
def test_headers_that_are_wrong(text, lines):
    found = mistakes(text)
    for start in lines:
        assert any(line.startswith(start) for line in found), found


@pytest.mark.parametrize(
    ("column", "cell", "text"),
    [
        ("scale", "0", "0 cannot be used"),
        ("scale", "0.0", "0.0 cannot be used"),
        ("scale", "nan", "'nan' found, a number wanted"),
        ("scale", "inf", "'inf' found, a number wanted"),
        ("scale", "1e999", "1e999 cannot be used"),
        ("offset", "-0,1", "'-0,1' found, a number wanted: write a decimal point"),
        ("nodata", "1,5", "'1,5' found, a number or nan wanted: write a decimal point"),
        ("offset", "1_000", "'1_000' found, a number wanted"),
        ("offset", "\u0661", "'\u0661' found, a number wanted"),
        ("nodata", "none", "'none' found, a number or nan wanted"),
        ("nodata", "0x10", "'0x10' found, a number or nan wanted"),
        ("datetime", "05.07.2020", "'05.07.2020' found, ISO 8601 wanted"),
        ("datetime", "2020-13-01", "'2020-13-01' found, ISO 8601 wanted"),
        ("datetime", "2020-02-30T00:00:00Z", "found, ISO 8601 wanted"),
        ("group", "a\x07", "'a\\x07' holds a line break or another invisible sign"),
    ],
)
def test_cells_that_are_wrong(column, cell, text):
    (line,) = mistakes(f'scene,sensor,path,{column}\nS1,rgbn,a.tif,"{cell}"\n')
    assert line.startswith(f"s.csv:2:4: column '{column}': ")
    assert text in line


@pytest.mark.parametrize(
    "cell", ["2020-07-05", "2020-07-05T10:20:31", "2020-07-05T10:20:31.123+02:00", "2020-07-05 10:20"]
)
def test_dates(cell):
    assert scenes_of(f"scene,sensor,path,datetime\nS1,rgbn,a.tif,{cell}\n")[0].datetime == cell


def test_required_cells_must_be_filled():
    assert mistakes(HEAD + ",rgbn,a.tif\nS2,,a.tif\nS3\n") == [
        "s.csv:2:1: column 'scene': is empty",
        "s.csv:3:2: column 'sensor': is empty",
        "s.csv:4:2: column 'sensor': is empty",
        "s.csv:4:3: column 'path': is empty",
    ]


def test_too_many_cells():
    (line,) = mistakes(HEAD + "S1,rgbn,a,b.tif\n")
    assert line == "s.csv:2:4: 4 cells, but the header has 3 columns; put text with separators in quotes"


def test_quotes_that_never_end():
    scenes, lines = read(HEAD + LINE + 'S2,rgbn,"a.tif\nS3,rgbn,b.tif\n')
    assert [scene.scene for scene in scenes] == ["S1"]
    assert len(lines) == 1
    assert lines[0].startswith("s.csv:3:1: quotes or separators are wrong from here on")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            (HEAD + "S1,rgbn,caf\xe9.tif\n").encode("latin-1"),
            "s.csv:2:12: byte 0xe9 is not UTF-8; save the file as UTF-8",
        ),
        ((HEAD + LINE).encode("utf-16"), "s.csv:1:1: is UTF-16 text; save it as UTF-8"),
    ],
)
def test_other_encodings(data, line):
    assert mistakes(data)[0].startswith(line)


def test_a_sheet_that_is_not_there():
    problems = Problems()
    assert read_sheet("none.csv", Sensors("sensors", problems), problems) == ()
    assert problems.lines == ["none.csv: not found"]


def test_missing_files_are_told_before_anything_starts():
    lines = mistakes("scene,sensor,path,mask\nS1,rgbn,a.tif,m.tif\nS2,rgbn,/b.tif,\n", check_files=True)
    assert lines == [
        f"s.csv:2:3: column 'path': a.tif not found (seen from {Path.cwd()})",
        f"s.csv:2:4: column 'mask': m.tif not found (seen from {Path.cwd()})",
        "s.csv:3:3: column 'path': /b.tif not found",
    ]
    assert mistakes(HEAD + LINE) == []


def test_files_of_needed_bands_must_be_there():
    for name in ("x_B04.tif", "x_B8.tif", "y_B04.tif"):
        Path(name).touch()
    lines = mistakes(HEAD + "S1,sentinel2_l2a,x_{band}.tif\nS2,sentinel2_l2a,y_{band}.tif\n", check_files=True)
    assert len(lines) == 1
    assert lines[0].startswith(
        "s.csv:3:3: column 'path': band 'nir' of sensor 'sentinel2_l2a' not found: y_B08.tif, y_B8.tif"
    )


def test_two_files_for_one_band_are_ambiguous():
    for name in ("x_B04.tif", "x_B4.tif", "x_B08.tif"):
        Path(name).touch()
    (line,) = mistakes(HEAD + "S1,sentinel2_l2a,x_{band}.tif\n", check_files=True)
    assert "band 'red': x_B04.tif and x_B4.tif both fit; make the pattern narrower" in line


@pytest.mark.parametrize(
    "name",
    ["with space.tif", "a_[2021]{07}.tif", "scène_日本.tif", "a\u3000b\u200d.tif", "a*?.tif", "C:o.tif", "%d.tif"],
)
def test_signs_in_file_names_are_literal(name):
    Path(name).touch()
    assert scenes_of(f'{HEAD}S1,rgbn,"{name}"\n', check_files=True)[0].files_of("red") == [name]


def test_band_is_the_only_placeholder():
    (line,) = mistakes(HEAD + "S1,rgbn,{bands}.tif\n", check_files=True)
    assert "{bands}.tif not found" in line
    assert line.endswith("only {band} stands for something else")


def test_the_placeholder_is_in_small_letters():
    (line,) = mistakes(HEAD + "S1,rgbn,{Band}.tif\n", check_files=True)
    assert line.endswith("; write {band} instead of {Band}")


@pytest.mark.parametrize(
    ("path", "start"),
    [("~/a.tif", "~"), ("~me/a.tif", "~me"), ("$HOME/a.tif", "$HOME"), ("${DATA}/{band}.tif", "${DATA}")],
)
def test_starts_of_paths_that_a_shell_would_expand(path, start):
    (line,) = mistakes(f"{HEAD}S1,rgbn,{path}\n", check_files=True)
    assert line.endswith(f"; {start} is not expanded, write it out")
    assert "not expanded" not in mistakes(HEAD + "S1,rgbn,a$X.tif\n", check_files=True)[0]


def test_the_pattern_may_name_the_band_more_than_once():
    (scene,) = scenes_of(HEAD + "S1,landsat8_l2,{band}/x_{band}.TIF\n")
    assert scene.files_of("red") == ["SR_B4/x_SR_B4.TIF", "B4/x_B4.TIF", "red/x_red.TIF"]


@pytest.mark.parametrize(
    "path",
    [
        "/vsicurl/https://x/a.tif",
        "https://x/{band}.tif",
        "s3://b/a.tif",
        "NETCDF:a.nc:v",
        "GTIFF_DIR:1:a.tif",
        "/vsizip/a.zip/b",
    ],
)
def test_paths_that_only_gdal_can_look_for_are_left_to_it(path):
    assert not is_local(path)
    assert scenes_of(f"{HEAD}S1,rgbn,{path}\n", check_files=True)


def test_all_mistakes_of_a_sheet_are_told():
    lines = mistakes(
        HEAD[:-1] + ",scale,offset\nS1,rgbn,a.tif,x,y\nS/2,nobody,,0,1\nS3,rgbn,a.tif,1,2\nS3,rgbn,b.tif,,\n"
    )
    assert [line.split(": ")[0] for line in lines] == [
        "s.csv:2:4",
        "s.csv:2:5",
        "s.csv:3:1",
        "s.csv:3:3",
        "s.csv:3:4",
        "s.csv:3:2",
        "s.csv:5:1",
    ]


def test_ten_thousand_lines_are_read_in_a_moment():
    Path("a.tif").touch()
    text = HEAD[:-1] + ",datetime,scale,offset\n"
    text += "".join(f"S{n},rgbn,a.tif,2020-07-05T10:20:31Z,0.0001,-0.1\n" for n in range(10_000))
    clock = time.perf_counter()
    scenes = scenes_of(text, check_files=True)
    assert time.perf_counter() - clock < 2
    assert len(scenes) == 10_000


def test_lines_of_the_sheet_fit_the_schema():
    schema = yaml.safe_load((ROOT / "workflow/schemas/scenes.schema.yaml").read_text(encoding="utf-8"))
    check = jsonschema.Draft202012Validator(schema)
    line = {"scene": "S1", "sensor": "rgbn", "path": "a.tif"}
    assert check.is_valid(line | {"scale": "1e-4", "offset": "", "nodata": "NaN"})
    for wrong in ({"scene": "../x"}, {"path": ""}, {"scale": "x"}, {"colour": "red"}):
        assert not check.is_valid(line | wrong)


@pytest.mark.parametrize(
    "name", ["duplicate_id", "leading_zeros", "path_traversal", "missing_file", "missing_column", "bom_crlf_spaces"]
)
def test_handed_sheets(cases, monkeypatch, name):
    case = next(case for case in cases.by_id.values() if case["files"].get("sheet") == f"sheets/{name}.csv")
    text = Path(cases.root, case["files"]["sheet"]).read_bytes().decode()
    end = "\r\n" if "\r\n" in text else "\n"
    head, *rows = text.rstrip().split(end)
    lines = [head.replace("sample", "scene") + ",sensor", *(f"{row},rgbn" for row in rows)]
    sheet = Path("s.csv").resolve()
    sheet.write_bytes((end.join(lines) + end).encode())
    monkeypatch.chdir(cases.root)  # where the paths of these sheets start
    problems = Problems()
    scenes = read_sheet(str(sheet), Sensors("sensors", problems), problems, lambda sensor: BANDS)
    if case["verdict"] == "ok":
        problems.stop()
        assert [scene.scene for scene in scenes] == case["expected_ids"]
        return
    with pytest.raises(ConfigError) as caught:
        problems.stop()
    assert any(hint in str(caught.value).lower() for hint in case["hint_any"])
