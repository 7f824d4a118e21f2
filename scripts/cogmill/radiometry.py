"""From stored numbers to physical ones: which scale and offset apply, and who said so.

Sentinel-2 and Landsat archives exist with the offset applied, with it left in the numbers, and with tags that say the
opposite of what the numbers are. An offset that is forgotten or applied twice does not cancel in a ratio, so nothing is
guessed here, least of all from a date: reprocessed archives carry old dates. Sources that contradict each other stop
the scene until the sheet decides.
"""

from dataclasses import dataclass
from math import isfinite

from cogmill.errors import SceneError

IDENTITY = (1.0, 0.0)
# tags written as text or float32 by other software differ from the sensor's file in the last digits
RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Radiometry:
    """physical value = stored value * scale + offset.

    Parameters
    ----------
    scale, offset : float
    decided_by : "sheet" | "tags" | "sensor" | "none"
    evidence : str
        A sentence that names the numbers found and where they stood.
    """

    scale: float
    offset: float
    decided_by: str
    evidence: str

    def to_json(self) -> dict:
        return {
            "scale": self.scale,
            "offset": self.offset,
            "decided_by": self.decided_by,
            "evidence": self.evidence,
        }


@dataclass(frozen=True)
class Claims:
    """What each source says about one band; None where it says nothing.

    Parameters
    ----------
    scene, role, file : str
        For messages.
    sheet_scale, sheet_offset : float or None
        Columns `scale` and `offset` of the sample sheet.
    tags : (scale, offset)
        As GDAL reports them; (1, 0) is what it reports for a file without tags.
    sensor : str
        Name of the sensor.
    sensor_scale, sensor_offset : float or None
    """

    scene: str
    role: str
    file: str
    sheet_scale: float | None = None
    sheet_offset: float | None = None
    tags: tuple[float, float] = IDENTITY
    sensor: str = ""
    sensor_scale: float | None = None
    sensor_offset: float | None = None

    @property
    def where(self) -> str:
        return f"scene '{self.scene}': band '{self.role}' ({self.file})"

    @property
    def tagged(self) -> tuple[float, float] | None:
        return None if tuple(self.tags) == IDENTITY else (float(self.tags[0]), float(self.tags[1]))

    @property
    def by_sensor(self) -> tuple[float, float] | None:
        if self.sensor_scale is None and self.sensor_offset is None:
            return None
        return _pair(self.sensor_scale, self.sensor_offset)


def decide_radiometry(claims: Claims, kind: str, integer: bool) -> Radiometry:
    """Scale and offset of one band.

    Order: the sheet; tags of the file (for integers checked against the sensor); the sensor, for integers only.

    Parameters
    ----------
    claims : Claims
    kind : "continuous" | "classes" | "bits" | "mask"
        Codes have no radiometry, whatever the tags say.
    integer : bool
        Whether the stored numbers are integers. A float file has been calibrated by someone; a sensor's scale is about
        its integers.

    Returns
    -------
    Radiometry

    Raises
    ------
    SceneError
        `radiometry_conflict`: tags and sensor contradict each other. `radiometry_unclear`: float numbers whose unit
        nobody states, half a pair in the sheet, or tags that are no numbers to calculate with.
    """
    if kind != "continuous":
        return Radiometry(*IDENTITY, "none", f"codes of kind '{kind}' are not calibrated")
    if claims.sheet_scale is not None or claims.sheet_offset is not None:
        return _from_sheet(claims)
    if claims.tagged:
        return _from_tags(claims, integer)
    if claims.by_sensor and not integer and claims.by_sensor != IDENTITY:
        raise SceneError(
            f"{claims.where} holds floating-point numbers without scale and offset tags, and sensor "
            f"'{claims.sensor}' gives {_text(claims.by_sensor)} for its integers: the numbers may be calibrated "
            "already or not. Give both in the sheet's columns 'scale' and 'offset' (1 and 0 if they are calibrated).",
            "radiometry_unclear",
        )
    if claims.by_sensor and integer:
        return Radiometry(
            *claims.by_sensor,
            "sensor",
            f"sensor '{claims.sensor}': {_text(claims.by_sensor)}; the file has no such tags",
        )
    return Radiometry(
        *IDENTITY, "none", "neither sheet nor tags nor sensor give scale or offset: numbers taken as they are"
    )


def _from_sheet(claims: Claims) -> Radiometry:
    pair = _pair(claims.sheet_scale, claims.sheet_offset)
    if claims.sheet_scale is None or claims.sheet_offset is None:
        given, missing = ("offset", "scale") if claims.sheet_scale is None else ("scale", "offset")
        which = ("scale", "offset").index(missing)
        others = [("the tags", claims.tagged), (f"sensor '{claims.sensor}'", claims.by_sensor)]
        for source, other in others:
            if other and other[which] != IDENTITY[which]:
                raise SceneError(
                    f"{claims.where}: the sheet gives {given} {pair[1 - which]!r} but no {missing}, against "
                    f"{_text(other)} of {source}: it is unclear which {missing} is meant. Fill in column "
                    f"'{missing}' too.",
                    "radiometry_unclear",
                )
    return Radiometry(*_usable(pair, claims, "the sheet"), "sheet", f"sheet: {_text(pair)}")


def _from_tags(claims: Claims, integer: bool) -> Radiometry:
    tagged = _usable(claims.tagged, claims, "the tags")
    if not integer or not claims.by_sensor:
        return Radiometry(*tagged, "tags", f"tags of {claims.file}: {_text(tagged)}")
    if not _same(tagged, claims.by_sensor):
        raise SceneError(
            f"{claims.where}: tags say {_text(tagged)}, sensor '{claims.sensor}' says "
            f"{_text(claims.by_sensor)}. Name the sensor that fits the file (column 'sensor'), or decide in the "
            "sheet's columns 'scale' and 'offset'.",
            "radiometry_conflict",
        )
    return Radiometry(*tagged, "tags", f"tags of {claims.file}: {_text(tagged)}, as sensor '{claims.sensor}' says")


def _pair(scale: float | None, offset: float | None) -> tuple[float, float]:
    return (
        IDENTITY[0] if scale is None else float(scale),
        IDENTITY[1] if offset is None else float(offset),
    )


def _usable(pair: tuple[float, float], claims: Claims, source: str) -> tuple[float, float]:
    if not all(map(isfinite, pair)) or pair[0] == 0:
        raise SceneError(
            f"{claims.where}: nothing can be calculated with {_text(pair)} of {source}. Give both in the sheet's "
            "columns 'scale' and 'offset'.",
            "radiometry_unclear",
        )
    return pair


def _same(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return all(abs(x - y) <= RELATIVE_TOLERANCE * max(abs(x), abs(y)) for x, y in zip(a, b, strict=True))


def _text(pair: tuple[float, float]) -> str:
    return f"scale {pair[0]!r}, offset {pair[1]!r}"
