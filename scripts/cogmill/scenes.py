"""The sample sheet: one line a scene, read as text; all mistakes come with line and column."""

import csv
import io
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime as iso

from cogmill.sensors import Sensor, Sensors
from cogmill.yamlfiles import CONTROL, Problems, decimal_point, nearest, read_text

BAND = "{band}"
SCENE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
LONGEST_SCENE = 150  # file names made of it must stay within 255 bytes
NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
SIDECARS = (".aux.xml", ".msk")  # behind the file's name
WORLD_FILES = (".wld", ".hdr")  # instead of its ending; and .tfw of .tif, .tifw
# what GDAL opens without a local file of that very name: /vsi paths, URLs, DRIVER:file:part
NOT_A_FILE = re.compile(r"/vsi|[A-Za-z][A-Za-z0-9+.-]+://|[A-Z][A-Z0-9_]+:")
DELIMITERS = (",", "\t", ";")


@dataclass(frozen=True)
class Column:
    """A column of the sheet: its name, what it means, and what a filled cell must look like."""

    name: str
    text: str
    required: bool = False
    pattern: str = r".*\S.*"


COLUMNS = {
    column.name: column
    for column in (
        Column(
            "scene",
            "Id of the scene, once in the sheet: letters, digits, . _ and -, not a dot at the start, not .stale at the "
            "end. Read as text: 007 stays 007.",
            required=True,
            pattern=SCENE.pattern,
        ),
        Column("sensor", "A built-in sensor or a file of config/sensors, without .yaml.", required=True),
        Column(
            "path",
            "The scene's raster: one file, or a pattern with {band} for one file a band. Anything GDAL opens, /vsi "
            "paths and URLs too; relative to the working directory. All other signs are meant literally.",
            required=True,
        ),
        Column("datetime", "When it was taken, in ISO 8601: 2020-07-05 or 2020-07-05T10:20:31Z."),
        Column("group", "Scenes that belong together, such as a tile or a field campaign."),
        Column(
            "scale",
            "Goes over tags and sensor for the continuous bands: value = number * scale + offset. Fill in both.",
            pattern=NUMBER,
        ),
        Column("offset", "See scale.", pattern=NUMBER),
        Column(
            "nodata",
            "Number of pixels without data in the continuous bands; goes over the file's. A number or nan.",
            pattern=rf"{NUMBER}|[nN][aA][nN]",
        ),
        Column("mask", "A raster on the scene's grid; where it is 0, the scene is invalid."),
    )
}


@dataclass(frozen=True)
class Scene:
    """One line of the sheet; empty cells are None. `line` is where it stands."""

    scene: str
    sensor: Sensor
    path: str
    datetime: str | None = None
    group: str | None = None
    scale: float | None = None
    offset: float | None = None
    nodata: int | float | None = None
    mask: str | None = None
    line: int = 0

    def files_of(self, role: str) -> list[str]:
        """Paths under which a band's file may be found, the most likely first."""
        if BAND not in self.path:
            return [self.path]
        return [self.path.replace(BAND, token) for token in self.sensor.bands[role].tokens]

    def to_json(self) -> dict:
        """The sheet's values in built-in types; nodata not-a-number is the word nan."""
        row = {name: getattr(self, name) for name in COLUMNS}
        row["sensor"] = self.sensor.name
        if isinstance(self.nodata, float) and math.isnan(self.nodata):
            row["nodata"] = "nan"
        return row


def is_local(path: str) -> bool:
    """Whether a path means a local file: it is there, or looks like nothing else."""
    return os.path.exists(path) or not NOT_A_FILE.match(path)


def seen_from(path: str) -> str:
    """What helps to find out why a path leads to no file."""
    if os.path.isabs(path):
        return ""
    start = re.match(r"~[^/]*|\$\w+|\$\{\w+\}", path)
    return f" (seen from {os.getcwd()})" + (f"; {start[0]} is not expanded, write it out" if start else "")


def sidecars(path: str) -> list[str]:
    """Files beside a local raster that GDAL reads for it: metadata, mask, place."""
    if not os.path.isfile(path):
        return []
    stem, ending = os.path.splitext(path)
    endings = [f"{ending[:2]}{ending[-1:]}w", f"{ending}w"] if len(ending) > 2 else []
    names = [path + more for more in SIDECARS] + [stem + other for other in (*endings, *WORLD_FILES)]
    return [name for name in dict.fromkeys(names) if name != path and os.path.isfile(name)]


def read_sheet(
    path: str,
    sensors: Sensors,
    problems: Problems,
    needed: Callable[[Sensor], list[str]] | None = None,
    stored: Callable[[Scene], bool] = lambda scene: False,
) -> tuple[Scene, ...]:
    """Scenes of a sample sheet, in its order; mistakes are noted as `sheet.csv:line:column number`.

    Comma, semicolon or tab separate the columns, whichever the header uses. A byte order mark, any line ends, spaces
    around cells, and blank lines do not matter.

    Parameters
    ----------
    path : str
    sensors : Sensors
    problems : Problems
    needed : function of a Sensor, optional
        Bands whose local files must be there. Without it no file is looked for.
    stored : function of a Scene, optional
        Whether the scene's bands are stored already, as its line asks, so that its files may be gone.

    Returns
    -------
    tuple of Scene
        Lines without a usable id, sensor or path are left out; other values that are wrong are None.
    """
    text = read_text(path, problems)
    rows = _Rows(path, text, problems) if text is not None else None
    if rows is None or not rows.header:
        return ()
    scenes: dict[str, Scene] = {}
    lines: dict[str, int] = {}
    reader = _LineReader(rows, sensors, problems, needed, stored)
    found = False
    for line, cells in rows:
        found = True
        scene = reader.read(line, cells, lines)
        if scene:
            scenes.setdefault(scene.scene, scene)
    if not found:
        problems.add(f"{path}:1:1", "the sheet has no scene: a line a scene is wanted below the header")
    return tuple(scenes.values())


class _Rows:
    """The cells of a delimited text, row by row, each with the line that it starts in."""

    def __init__(self, path: str, text: str, problems: Problems):
        self.path, self.text, self.problems = path, text, problems
        self.header: list[str] = []
        first = next((line for line in text.splitlines() if line.strip()), "")
        self.delimiter = max(
            DELIMITERS, key=lambda mark: sum(cell.strip(' "\t').lower() in COLUMNS for cell in first.split(mark))
        )
        self._rows = self._parse()
        line, names = next(self._rows, (1, []))
        if not names:
            problems.add(f"{path}:1:1", f"the sheet is empty; a header is wanted: {','.join(COLUMNS)}")
        elif self._check_header(line, names):
            self.header = names

    def __iter__(self):
        return self._rows

    def _parse(self):
        reader = csv.reader(io.StringIO(self.text, newline=""), delimiter=self.delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = [cell.strip() for cell in next(reader)]
            except StopIteration:
                return
            except csv.Error as error:
                self.problems.add(f"{self.path}:{line}:1", f"quotes or separators are wrong from here on: {error}")
                return
            while cells and not cells[-1]:  # spreadsheets fill lines up with separators
                cells.pop()
            if cells:
                yield line, cells

    def _check_header(self, line: int, names: list[str]) -> bool:
        before = len(self.problems)
        for number, name in enumerate(names, 1):
            place = f"{self.path}:{line}:{number}"
            if name not in COLUMNS:
                advice = "; column names are small letters" if name.lower() in COLUMNS else ""
                self.problems.add(place, f"unknown column '{name}'{nearest(name, COLUMNS)}{advice}")
            elif name in names[: number - 1]:
                self.problems.add(place, f"column '{name}' stands twice; keep one")
        small = [name.lower() for name in names]
        missing = [column.name for column in COLUMNS.values() if column.required and column.name not in small]
        for name in missing:
            self.problems.add(f"{self.path}:{line}:1", f"column '{name}' is missing: {COLUMNS[name].text}")
        return len(self.problems) == before


class _LineReader:
    """Checks the cells of one line after the other and makes scenes of them."""

    def __init__(self, rows: _Rows, sensors: Sensors, problems: Problems, needed, stored):
        self.path, self.header, self.problems = rows.path, rows.header, problems
        self.needed, self.stored = needed, stored
        self.sensors = sensors
        self.patterns = {name: re.compile(COLUMNS[name].pattern) for name in rows.header}
        self.roles: dict[str, list[str]] = {}

    def read(self, line: int, cells: list[str], lines: dict[str, int]) -> Scene | None:
        """A scene, None where it cannot be made; `lines` holds the ids seen so far and is added to."""
        if len(cells) > len(self.header):
            extra = len(self.header) + 1
            text = (
                f"{len(cells)} cells, but the header has {len(self.header)} columns; put text with separators in quotes"
            )
            self.problems.add(f"{self.path}:{line}:{extra}", text)
            return None
        values: dict = {}
        for number, name in enumerate(self.header):
            cell = cells[number] if number < len(cells) else ""
            values[name] = self._cell(line, name, cell)
        scene = values["scene"]
        if scene:
            self._check_id(line, scene, lines)
        sensor = values["sensor"] and self.sensors.get(
            values["sensor"], lambda text: self._problem(line, "sensor", text)
        )
        if not (scene and sensor and values["path"]):
            return None
        out = Scene(**(values | {"sensor": sensor}), line=line)
        if self.needed:
            self._check_files(out)
        return out

    def _problem(self, line: int, column: str, text: str) -> None:
        self.problems.add(f"{self.path}:{line}:{self.header.index(column) + 1}", f"column '{column}': {text}")

    def _cell(self, line: int, name: str, cell: str):
        if not cell:
            if COLUMNS[name].required:
                self._problem(line, name, "is empty")
            return None
        if CONTROL.search(cell):
            return self._problem(line, name, f"{cell!r} holds a line break or another invisible sign")
        if not self.patterns[name].fullmatch(cell):
            point = decimal_point(cell) if name in ("scale", "offset", "nodata") else ""
            return self._problem(line, name, f"{cell!r} found, {_WANTED.get(name, 'a number')} wanted{point}")
        return self._value(line, name, cell)

    def _value(self, line: int, name: str, cell: str):
        if name in ("scale", "offset"):
            value = float(cell)
            if not math.isfinite(value) or (name == "scale" and value == 0):
                return self._problem(line, name, f"{cell} cannot be used")
            return value
        if name == "nodata":
            # no number of 64 bits has more digits
            value = int(cell) if re.fullmatch(r"[-+]?[0-9]{1,20}", cell) else float(cell)
            return self._problem(line, name, f"{cell} cannot be used") if math.isinf(value) else value
        if name == "datetime" and not _is_date(cell):
            return self._problem(line, name, f"{cell!r} found, ISO 8601 wanted: 2020-07-05 or 2020-07-05T10:20:31Z")
        return cell

    def _check_id(self, line: int, scene: str, lines: dict[str, int]) -> None:
        if scene.endswith(".stale"):
            self._problem(line, "scene", f"{scene!r} ends in .stale, which marks outdated products; choose another id")
        elif len(scene) > LONGEST_SCENE:
            self._problem(
                line,
                "scene",
                f"the id has {len(scene)} characters; at most {LONGEST_SCENE} can be used in file names",
            )
        elif scene in lines:
            self._problem(
                line,
                "scene",
                f"duplicate id {scene!r}: line {lines[scene]} has it already; ids must be unique",
            )
        lines.setdefault(scene, line)

    def _check_files(self, scene: Scene) -> None:
        sensor = scene.sensor
        if sensor.name not in self.roles:
            self.roles[sensor.name] = self.needed(sensor)
        wrong = {}
        if BAND in scene.path:
            bands = [text for role in self.roles[sensor.name] if (text := _band_mistake(scene, role))]
            if bands:
                wrong["path"] = f"{'; '.join(bands)}{seen_from(scene.path)}"
        elif not _is_there(scene.path):
            wrong["path"] = f"{scene.path} not found{seen_from(scene.path)}{_braces(scene.path)}"
        if scene.mask and not _is_there(scene.mask):
            wrong["mask"] = f"{scene.mask} not found{seen_from(scene.mask)}"
        if wrong and not self.stored(scene):
            for column, text in wrong.items():
                self._problem(scene.line, column, text)


_WANTED = {
    "scene": "an id without invalid characters (letters, digits, . _ -, no dot first)",
    "nodata": "a number or nan",
}


def _is_there(path: str) -> bool:
    return os.path.exists(path) or not is_local(path)


def _band_mistake(scene: Scene, role: str) -> str | None:
    files = scene.files_of(role)
    there = [file for file in files if os.path.exists(file)]
    if len(there) == 1 or not is_local(scene.path):
        return None
    if there:
        return f"band '{role}': {' and '.join(there)} both fit; make the pattern narrower"
    return f"band '{role}' of sensor '{scene.sensor.name}' not found: {', '.join(files)}"


def _braces(path: str) -> str:
    wrong = re.search(r"\{band\}", path, re.IGNORECASE)
    if wrong:
        return f"; write {BAND} instead of {wrong[0]}"
    return f"; only {BAND} stands for something else" if re.search(r"\{[a-z]+\}", path) else ""


def _is_date(cell: str) -> bool:
    try:
        iso.fromisoformat(cell)
    except ValueError:
        return False
    return True
