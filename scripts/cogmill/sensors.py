"""Sensors: which bands a scene has, what files and descriptions call them, and what their numbers mean."""

# ruff: noqa: RUF009 - `key` makes a dataclass field
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import yaml

from cogmill.config import KINDS, ROLE
from cogmill.schema import Choice, ListOf, MapOf, Number, Section, Spot, Text, Whole, key, read_section
from cogmill.yamlfiles import Problems, YamlFiles, nearest, read_text

BUILT_IN = Path(__file__).parent / "data" / "sensors"
NAME = re.compile(r"[A-Za-z0-9_-]+")
RESERVED = ("mask", "alpha", "record")  # names in the COG store


@dataclass(frozen=True)
class SensorBand:
    """One band; physical value = stored value * scale + offset."""

    names: tuple[str, ...] = key(
        ListOf(Text()),
        "What files call the band: put in place of {band} in the sheet's path, and compared with band descriptions. "
        "The band's own name is always tried too.",
        (),
    )
    position: int | None = key(
        Whole(1), "Number of the band in a file that holds all bands and describes none of them.", None
    )
    kind: str = key(
        Choice(KINDS),
        "continuous for measurements, classes for class codes, bits for bit flags.",
        "continuous",
    )
    scale: float | None = key(Number(zero=False), "Scale of this band, instead of the sensor's.", None)
    offset: float | None = key(Number(), "Offset of this band, instead of the sensor's.", None)
    name: str = ""

    def check(self, spot: Spot) -> None:
        """Codes have no radiometry."""
        if self.kind != "continuous" and (self.scale is not None or self.offset is not None):
            spot.problem(f"scale and offset cannot be used with kind '{self.kind}'")

    @property
    def tokens(self) -> tuple[str, ...]:
        """What may stand in place of {band}."""
        return tuple(dict.fromkeys((*self.names, self.name)))

    def to_json(self) -> dict:
        return {
            "name": self.name,
            "names": list(self.names),
            "file": list(self.tokens),
            "position": self.position,
            "kind": self.kind,
            "scale": self.scale,
            "offset": self.offset,
        }


@dataclass(frozen=True)
class Sensor:
    """A sensor file; each band's scale and offset are resolved."""

    title: str = key(Text(), "What it is, in one line.")
    bands: dict[str, SensorBand] = key(
        MapOf(Section(SensorBand), ROLE, "small letters, digits and _, a letter first,", reserved=RESERVED),
        "The bands, by the name that formulas and masks use.",
    )
    reference: str | None = key(Text(), "Where the numbers come from: a page or a paper.", None)
    nodata: float | None = key(
        Number(),
        "Stored value of pixels without data, for files that declare none; continuous bands only.",
        None,
    )
    scale: float | None = key(
        Number(zero=False),
        "Scale of the continuous bands. Empty: the file's tags say it, or the numbers are taken as they are.",
        None,
    )
    offset: float | None = key(Number(), "Offset of the continuous bands.", None)
    name: str = ""

    def check(self, spot: Spot) -> None:
        """Names and positions must each lead to one band."""
        if not self.bands:
            spot.child("bands").problem("a sensor needs at least one band")
        owners: dict = {}
        for role, band in self.bands.items():
            claims = {word.casefold(): word for word in (*band.names, role)}
            if band.position is not None:
                claims[band.position] = f"position {band.position}"
            for claim, word in claims.items():
                if owners.setdefault(claim, role) != role:
                    spot.child("bands").child(role).problem(f"'{word}' is used by band '{owners[claim]}' already")

    @cached_property
    def params(self) -> dict:
        """What reading a scene needs to know, in built-in types; one object for all scenes of a campaign."""
        return {
            "name": self.name,
            "nodata": self.nodata,
            "bands": [band.to_json() for band in self.bands.values()],
        }


class Sensors:
    """The user's and the built-in sensors, read when asked for; mistakes in their files are noted once.

    Parameters
    ----------
    folder : str or Path
        The user's own sensor files; need not exist.
    problems : Problems
    """

    def __init__(self, folder: str | Path, problems: Problems):
        self.folder, self.problems = Path(folder), problems
        self._known: dict[str, Sensor | None] = {}

    def names(self) -> list[str]:
        """Names of all sensors."""
        files = [file for folder in (BUILT_IN, self.folder) for file in folder.glob("*.yaml")]
        return sorted({file.stem for file in files})

    def get(self, name: str, mistake: Callable[[str], None]) -> Sensor | None:
        """A sensor by name; None after telling `mistake` that there is none, or noting what is wrong in its file."""
        if name not in self._known:
            folders = [folder for folder in (self.folder, BUILT_IN) if (folder / f"{name}.yaml").is_file()]
            if not NAME.fullmatch(name) or not folders:
                mistake(
                    f"no sensor '{name}'{nearest(name, self.names())} (a file {self.folder}/{name}.yaml would add it)"
                )
                return None
            self._known[name] = read_sensor(folders[0] / f"{name}.yaml", self.problems)
        return self._known[name]

    def roles(self) -> set[str]:
        """Names of all bands of all sensors."""
        sensors = [self.get(name, lambda text: None) for name in self.names() if NAME.fullmatch(name)]
        return {role for sensor in sensors if sensor for role in sensor.bands}


def read_sensor(path: str | Path, problems: Problems) -> Sensor | None:
    """A sensor file; None after noting its mistakes.

    Parameters
    ----------
    path : path of a YAML file; its stem is the sensor's name
    problems : Problems
    """
    before, text = len(problems), read_text(path, problems)
    if text is None:
        return None
    files = YamlFiles([(path, text)], problems, elsewhere=str(path))
    if len(problems) > before:
        return None
    sensor, _ = read_section(Sensor, yaml.safe_load(text) or {}, files, problems)
    if len(problems) > before:
        return None
    bands = {}
    for role, band in sensor.bands.items():
        if band.kind == "continuous":
            scale = sensor.scale if band.scale is None else band.scale
            offset = sensor.offset if band.offset is None else band.offset
            band = replace(band, scale=scale, offset=offset)
        bands[role] = replace(band, name=role)
    return replace(sensor, bands=bands, name=Path(path).stem)
