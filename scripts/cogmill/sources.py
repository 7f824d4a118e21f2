"""The input rasters of a scene: which file and band holds which role, what headers say, what an error of GDAL means."""

import contextlib
import logging
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import rasterio
from rasterio.enums import ColorInterp, MaskFlags
from rasterio.errors import CRSError, RasterioError

from cogmill.cog.files import lasts
from cogmill.cog.header import Header, band_text, open_raster, read_header
from cogmill.errors import CogmillError, RetryableError, SceneError
from cogmill.ledger import decode_number
from cogmill.masks import nodata_in
from cogmill.scenes import sidecars

log = logging.getLogger("cogmill")

# what rasterio raises on a file that it cannot make sense of; texts in Latin-1 and wild numbers come as the last three
STRANGE = (RasterioError, CRSError, MemoryError, ValueError, ArithmeticError, LookupError)

# One window's blocks must fit; more would only add to each job's memory, since no block is read twice.
GDAL_CACHE_BYTES = 64 << 20

REMOTE = re.compile(
    r"^(/vsi(curl|s3|gs|az|adls|oss|swift|hdfs|webhdfs)(_streaming)?/|/vsi\w+//vsi(curl|s3|gs|az|adls|oss|swift)"
    r"|(https?|ftp|s3|gs|az|adl|oss|swift|hdfs|zip\+https?|zip\+s3)://)"
)
NOT_THERE = re.compile(
    r"(HTTP response code|HTTP error code)\s*:?\s*(404|410)|No such file|does not exist", re.IGNORECASE
)
FORBIDDEN = re.compile(
    r"(HTTP response code|HTTP error code)\s*:?\s*(401|403)|AccessDenied|InvalidCredentials", re.IGNORECASE
)
NO_MEMORY = re.compile(r"out of memory|cannot allocate|memory allocation", re.IGNORECASE)
# What a band is called in a product's documentation: B04, B8A, SR_B5
DESIGNATION = re.compile(r"(SR_|ST_)?B\d{1,2}A?", re.IGNORECASE)
# JPEG decoders report damage as a warning and go on with grey pixels
DAMAGE = re.compile(r"corrupt|premature|truncat|bad huffman|invalid jpeg|unsupported marker", re.IGNORECASE)

# why a band has a mask instead of its nodata value
INEXACT_NODATA = "file, as a number of 64 bits that GDAL's mask alone tells exactly"

# Tags of a data set that describe the old file or its other bands, not the scene
OLD_FILE_TAG = re.compile(
    r"^(AREA_OR_POINT|NODATA_VALUES|OVR_RESAMPLING_ALG|COGMILL_\w+|TIFFTAG_M(IN|AX)SAMPLEVALUE"
    r"|(STATISTICS|HISTOGRAM)_\w+|(Band|band|BAND)[_ ]?\d+([#_].*)?|\w+_(Band|band|BAND)_?\d+)$"
)


@dataclass(frozen=True)
class SourceBand:
    """One band of an input raster, as its header describes it.

    Parameters
    ----------
    role : str
        What the sensor calls it; "mask" and "alpha" for masks of the whole scene.
    number : int
        1-based.
    kind : "continuous" | "classes" | "bits" | "mask"
    dtype : str
    nodata : float, int or None
        None also where the declared value cannot occur in `dtype`.
    nodata_from : str
        Who said so.
    masked : bool
        Whether GDAL gives a mask besides nodata: an internal or .msk mask, or an alpha band that it applies.
    shared_mask : bool
        Whether that mask is the same for all bands of the file.
    header : Header
        What goes into the stored file besides the pixels.
    """

    role: str
    number: int
    kind: str
    dtype: str
    nodata: float | int | None
    nodata_from: str
    masked: bool
    shared_mask: bool
    header: Header


@dataclass(frozen=True)
class SourceFile:
    """Structure of an input raster.

    `parts` are the other local files that GDAL reads for it, as (path, size, time of change): sidecars, and what a
    virtual raster is made of. `sidecars` are the paths of those that Snakemake watches.
    """

    path: str
    local: str | None
    size: int | None
    mtime_ns: int | None
    parts: tuple[tuple[str, int, int], ...]
    sidecars: tuple[str, ...]
    driver: str
    count: int
    dtypes: tuple[str, ...]
    shape: tuple[int, int]
    block: tuple[int, int]
    compression: str | None
    interleave: str | None
    descriptions: tuple[str | None, ...]

    @property
    def identity(self) -> list:
        """Changes whenever its local bytes do."""
        return [self.path, self.size, self.mtime_ns, [list(part) for part in self.parts]]

    def to_json(self) -> dict:
        return {
            "path": self.path,
            "size": self.size,
            "mtime_ns": self.mtime_ns,
            "sidecars": list(self.sidecars),
            "driver": self.driver,
            "dtype": self.dtypes[0] if len(set(self.dtypes)) == 1 else ",".join(self.dtypes),
            "bands": self.count,
            "compression": self.compression,
            "interleave": self.interleave,
            "block": list(self.block),
            "shape": list(self.shape),
        }


class SceneFiles:
    """A line of the sample sheet with its sensor: finds files and bands, and words the errors.

    Parameters
    ----------
    name : str
    row : dict
        Values of the sheet's columns; empty ones are None or "".
    sensor : dict
        `name`, `nodata` and `bands` (see `cogmill.sensors`).
    """

    def __init__(self, name: str, row: dict, sensor: dict):
        self.name, self.row, self.sensor = name, row, sensor
        self.bands = {band["name"]: band for band in sensor["bands"]}

    def error(self, message: str, reason: str) -> SceneError:
        return SceneError(f"scene '{self.name}': {message}", reason)

    def number(self, column: str) -> float | int | None:
        """Value of a numeric column of the sheet, None where it is empty."""
        value = self.row.get(column)
        if value is None or value == "":
            return None
        # nodata of 64 bits would not survive as a float
        return value if isinstance(value, int) else float(value)

    def band(self, role: str) -> dict:
        if role not in self.bands:
            raise self.error(
                f"sensor '{self.sensor['name']}' has no band '{role}'; it has {', '.join(self.bands)}",
                "band_missing",
            )
        return self.bands[role]

    def files(self, roles: list[str]) -> dict[str, list[str]]:
        """{path: roles to find in it}, in the order of `roles`.

        Raises
        ------
        SceneError
            `not_found` or `band_ambiguous`: none or several of a band's names fit the pattern.
        """
        pattern = self.row["path"]
        if "{band}" not in pattern:
            return {pattern: list(roles)}
        files: dict[str, list[str]] = {}
        for role in roles:
            files.setdefault(self._file_of(pattern, role), []).append(role)
        return files

    def _file_of(self, pattern: str, role: str) -> str:
        candidates = [pattern.replace("{band}", token) for token in dict.fromkeys(self.band(role)["file"])]
        there = [path for path in candidates if exists(path)]
        if not there:
            raise self.error(
                f"band '{role}': not found, tried {', '.join(candidates)}. Correct column 'path'", "not_found"
            )
        if len(there) > 1:
            raise self.error(
                f"band '{role}': several files fit, {' and '.join(there)}. Make the pattern in column 'path' narrower",
                "band_ambiguous",
            )
        return there[0]

    def fault(self, path: str, error: BaseException, doing: str) -> CogmillError:
        """The error of ours that an error of GDAL on `path` means: can another attempt help, or is the file bad?"""
        words = gdal_words(error)
        text = f"scene '{self.name}': {path} cannot be {doing}: {words}"
        if NO_MEMORY.search(words):
            return RetryableError(text, "out_of_memory")
        if NOT_THERE.search(words):
            return SceneError(f"{text}. Correct column 'path'", "not_found")
        if REMOTE.match(path):
            if FORBIDDEN.search(words):
                return SceneError(f"{text}. Give GDAL the credentials by its environment variables", "forbidden")
            return RetryableError(text, "network")
        try:
            _read_through(local_file(path))
        except OSError as cause:
            return RetryableError(f"{text} ({cause})", "io_error")
        return SceneError(f"{text}. The file is damaged or of a kind that this GDAL lacks", "unreadable")

    @contextlib.contextmanager
    def gdal(self, path: str, doing: str, pixels: bool = False) -> Iterator[None]:
        """Turn GDAL's errors into ours; while it reads pixels, its warnings of damage too."""
        with _listen() as heard:
            try:
                yield
            except STRANGE as error:
                raise self.fault(path, error, doing) from error
        damage = next((text for text in heard if pixels and DAMAGE.search(text)), None)
        if damage:
            raise self.error(f"{path} cannot be {doing}: {damage}. The file is damaged", "unreadable")


def gdal_environment(threads: int) -> rasterio.Env:
    """GDAL with a small cache, that never goes on over a read error."""
    options = {
        "GDAL_CACHEMAX": GDAL_CACHE_BYTES,
        "GDAL_NUM_THREADS": str(threads),
        "GTIFF_IGNORE_READ_ERRORS": "NO",
        "GDAL_ERROR_ON_LIBJPEG_WARNING": "YES",
    }
    defaults = {"GDAL_HTTP_MAX_RETRY": "3", "GDAL_HTTP_RETRY_DELAY": "1"}
    return rasterio.Env(**options, **{key: value for key, value in defaults.items() if key not in os.environ})


def gdal_words(error: BaseException) -> str:
    """What GDAL said, the causes behind an error included, each once."""
    words: list[str] = []
    while error is not None:
        text = str(error).strip().rstrip(".")
        if text and "See previous exception" not in text and not any(text in other for other in words):
            words.append(text)
        error = error.__cause__ or error.__context__
    return "; ".join(words) or "no reason given"


@contextlib.contextmanager
def _listen() -> Iterator[list[str]]:
    """Collect the warnings that GDAL logs meanwhile."""
    heard: list[str] = []

    class Collector(logging.Handler):
        def emit(self, entry):
            heard.append(entry.getMessage())

    collector, logger = Collector(logging.WARNING), logging.getLogger("rasterio")
    logger.addHandler(collector)
    try:
        yield heard
    finally:
        logger.removeHandler(collector)


def local_file(path: str) -> str | None:
    """The local file behind a GDAL data set name: itself, the archive of a /vsi path, or a part between colons.

    None if there is none.
    """
    if os.path.exists(path):
        return path
    if path.startswith("/vsi"):
        parts = path.split("/")
        for start in range(2, len(parts)):
            for end in range(len(parts), start, -1):
                inner = "/".join(parts[start:end])
                for candidate in (inner, "/" + inner):
                    if os.path.isfile(candidate):
                        return candidate
        return None
    if ":" in path:
        pieces = (piece.strip('"') for piece in re.split(r'"([^"]*)"|:', path) if piece)
        return next((piece for piece in pieces if os.path.exists(piece)), None)
    return None


def exists(path: str) -> bool:
    """Whether GDAL would find `path`: a file, or something in or behind one, for which it is asked."""
    if os.path.exists(path):
        return True
    if not path.startswith("/vsi") and not REMOTE.match(path) and not local_file(path):
        return False
    try:
        with open_raster(path):
            return True
    except ValueError:  # it is there; what is strange about it is said when it is opened
        return True
    except RasterioError as error:
        words = gdal_words(error)
        if REMOTE.match(path) and not NOT_THERE.search(words) and "not recognized" not in words:
            raise RetryableError(f"{path} cannot be asked for: {words}", "network") from error
        return False


def _read_through(path: str | None) -> None:
    """Read a whole file; an OSError says that the disk, not the format, is at fault."""
    if path and os.path.isfile(path):
        with open(path, "rb") as file:
            while file.read(1 << 22):
                pass


@contextlib.contextmanager
def open_source(scene: SceneFiles, path: str):
    """Open an input raster with GDAL.

    Raises
    ------
    SceneError
        `not_found`, `unreadable` (empty, damaged, no such codec), `no_bands` (subdatasets only).
    RetryableError
        Disk or network at fault.
    """
    _probe(scene, path)
    with contextlib.ExitStack() as stack:
        with scene.gdal(path, "opened"):
            dataset = stack.enter_context(open_raster(path))
        if dataset.count == 0:
            raise scene.error(
                f"{path} has no band of its own but {len(dataset.subdatasets)} subdatasets: give one of them in "
                f"column 'path': {', '.join(dataset.subdatasets[:10])}",
                "no_bands",
            )
        yield dataset


def _probe(scene: SceneFiles, path: str) -> None:
    """Say plainly what GDAL words oddly: a local file that is missing, empty or not to be read."""
    if path.startswith("/vsi") or REMOTE.match(path) or os.path.isdir(path):
        return
    local = local_file(path)
    if local is None:
        raise scene.error(f"{path} not found. Correct column 'path'", "not_found")
    try:
        if not stat.S_ISREG(os.stat(local).st_mode):
            # a pipe or a device would be waited for without end
            raise scene.error(f"{path} is neither a file nor a folder. Correct column 'path'", "unreadable")
        with open(local, "rb") as file:
            empty = not file.read(1)
    except OSError as error:
        if lasts(error):
            raise scene.error(f"{path} cannot be opened: {error.strerror}", "unreadable") from error
        raise RetryableError(f"scene '{scene.name}': {path} cannot be read: {error}", "io_error") from error
    if empty:
        raise scene.error(f"{path} cannot be read: the file is empty (0 bytes)", "unreadable")


def describe_file(scene: SceneFiles, path: str, dataset) -> SourceFile:
    """How an open raster is stored, and how its bands are described."""
    local = local_file(path)
    found = os.stat(local) if local and os.path.isfile(local) else None
    structure = dataset.tags(ns="IMAGE_STRUCTURE")
    return SourceFile(
        path=path,
        local=local,
        size=found.st_size if found else None,
        mtime_ns=found.st_mtime_ns if found else None,
        parts=_parts(path, dataset),
        sidecars=tuple(sidecars(path)),
        driver=dataset.driver,
        count=dataset.count,
        dtypes=tuple(dataset.dtypes),
        shape=tuple(dataset.shape),
        block=tuple(dataset.block_shapes[0]),
        compression=structure.get("COMPRESSION"),
        interleave=structure.get("INTERLEAVE"),
        descriptions=tuple(_description(scene, path, dataset, number) for number in range(1, dataset.count + 1)),
    )


def _parts(path: str, dataset) -> tuple[tuple[str, int, int], ...]:
    if REMOTE.match(path):
        return ()
    names, todo = {dataset.name}, list(dataset.files)
    while todo:
        name = todo.pop()
        # external pyramids are never looked at
        if name in names or name.endswith(".ovr"):
            continue
        names.add(name)
        if name.casefold().endswith(".vrt"):
            with open_raster(name) as nested:
                todo += nested.files
    files = {local for local in map(local_file, names) if local} - {local_file(path)}
    found = {name: os.stat(name) for name in sorted(files)}
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found.items())


def _description(scene: SceneFiles, path: str, dataset, number: int) -> str | None:
    texts = {}
    for what in ("descriptions", "units"):
        try:
            texts[what] = band_text(dataset, what, number)
        except UnicodeDecodeError as error:
            log.warning(
                "scene '%s': %s, band %d: a text among its %s is not in UTF-8 and is left out: %r",
                scene.name,
                path,
                number,
                what,
                error.object,
            )
    return texts.get("descriptions")


def find_bands(scene: SceneFiles, file: SourceFile, dataset, roles: list[str]) -> dict[str, int]:
    """{role: band number} of the roles to be found in one file.

    By description where any description is a name of the sensor's bands; else by position in a file with all bands;
    else, in a file per band, its only band.

    Raises
    ------
    SceneError
        `band_missing` (with the bands that there are), `band_ambiguous`.
    """
    by_description = _described_roles(scene, file)
    if by_description:
        lacking = [role for role in roles if role not in by_description]
        if lacking:
            raise scene.error(
                f"{file.path} has no band '{lacking[0]}' among its described bands: it has {_bands_text(file)}, of "
                f"which sensor '{scene.sensor['name']}' knows {', '.join(by_description)}. Correct the descriptions "
                "or column 'sensor'",
                "band_missing",
            )
        return {role: by_description[role] for role in roles}
    if "{band}" in scene.row["path"]:
        return {role: _only_band(scene, file, dataset, role) for role in roles}
    return {role: _positioned_band(scene, file, dataset, role) for role in roles}


def _described_roles(scene: SceneFiles, file: SourceFile) -> dict[str, int]:
    names = {
        name.casefold(): role for role, band in scene.bands.items() for name in (role, *band["names"], *band["file"])
    }
    found: dict[str, int] = {}
    for number, description in enumerate(file.descriptions, 1):
        # some readers describe a band as "B4, central wavelength 665 nm"
        for text in (description or "", (description or "").split(",")[0]):
            role = names.get(text.strip().casefold())
            if role:
                break
        if role is None:
            continue
        if role in found:
            raise scene.error(
                f"{file.path}: bands {found[role]} and {number} are both described as band '{role}' "
                f"({_bands_text(file)}). Correct the descriptions",
                "band_ambiguous",
            )
        found[role] = number
    return found


def _only_band(scene: SceneFiles, file: SourceFile, dataset, role: str) -> int:
    numbers = [n for n, meaning in enumerate(dataset.colorinterp, 1) if meaning != ColorInterp.alpha]
    if len(numbers) != 1:
        raise scene.error(
            f"{file.path} should hold band '{role}' alone but has {_bands_text(file)}. Describe the bands by the "
            "sensor's names, or give the file without {band} in column 'path'",
            "band_ambiguous",
        )
    return numbers[0]


def _positioned_band(scene: SceneFiles, file: SourceFile, dataset, role: str) -> int:
    path = file.path
    position = scene.band(role)["position"]
    if position is None:
        raise scene.error(
            f"sensor '{scene.sensor['name']}' gives no position for band '{role}', and {path} describes no band by a "
            f"name of the sensor's: it has {_bands_text(file)}. Add the band's `position` to the sensor's file, or "
            "describe the bands",
            "band_missing",
        )
    if position > dataset.count:
        others = (
            f" and {len(dataset.subdatasets)} subdatasets ({', '.join(dataset.subdatasets)})"
            if dataset.subdatasets
            else ""
        )
        raise scene.error(
            f"{path} has no band {position}, where sensor '{scene.sensor['name']}' has '{role}': it has "
            f"{_bands_text(file)}{others}. Correct column 'path' or 'sensor'",
            "band_missing",
        )
    if dataset.colorinterp[position - 1] == ColorInterp.alpha:
        raise scene.error(
            f"band {position} of {path}, where sensor '{scene.sensor['name']}' has '{role}', is marked as alpha "
            "(transparency), and GDAL would mask the other bands by it. Name the sensor that fits in column "
            f"'sensor', or, if the mark is wrong, take it off: gdal_edit.py -colorinterp_{position} undefined",
            "alpha_as_band",
        )
    return position


def doubts(scene: SceneFiles, file: SourceFile, numbers: dict[str, int]) -> str | None:
    """What a reader should know of bands that were found by position although the file gives them designations."""
    described = [text for text in file.descriptions if text and DESIGNATION.fullmatch(text.split(",")[0].strip())]
    if not described or "{band}" in scene.row["path"] or _described_roles(scene, file):
        return None
    found = ", ".join(f"{role} = band {number}" for role, number in numbers.items())
    return (
        f"scene '{scene.name}': the bands of {file.path} are described ({_bands_text(file)}), but none by a name of "
        f"sensor '{scene.sensor['name']}', whose positions were taken: {found}. If that is wrong, correct column "
        "'sensor'"
    )


def _bands_text(file: SourceFile) -> str:
    named = [f"{n} ({text or 'no description'})" for n, text in enumerate(file.descriptions, 1)]
    return f"{file.count} band{'s' if file.count > 1 else ''}: {', '.join(named)}"


def unapplied_alpha(dataset, numbers: list[int]) -> int | None:
    """Number of an alpha band that GDAL does not use as the mask of bands `numbers`; None where there is none."""
    alphas = [n for n, meaning in enumerate(dataset.colorinterp, 1) if meaning == ColorInterp.alpha]
    applied = any(MaskFlags.alpha in dataset.mask_flag_enums[n - 1] for n in numbers)
    return alphas[0] if alphas and not applied else None


def stored_dtype(dataset, number: int) -> str:
    """Data type of a band in the store: that of the file, but half floats become float32.

    GDAL before 3.11 reads them so, and no older one would read a COG of half floats.
    """
    dtype = dataset.dtypes[number - 1]
    return "float32" if dtype == "float16" else dtype


def describe_band(scene: SceneFiles, path: str, dataset, role: str, number: int, kind: str) -> SourceBand:
    """Header of one band.

    Raises
    ------
    SceneError
        `complex_dtype`, `unsupported_dtype`, `nodata_range` (the sheet's nodata cannot occur in the dtype), `header`
        (a place that is no number).
    """
    dtype = stored_dtype(dataset, number)
    if "complex" in dtype:
        raise scene.error(
            f"band '{role}' ({path}, band {number}) is of complex data type {dtype}; products are real-valued. "
            "Make amplitude or phase first",
            "complex_dtype",
        )
    if dtype not in ("float32", "float64") and np.dtype(dtype).kind not in "iu":
        raise scene.error(
            f"band '{role}' ({path}, band {number}) is of unsupported data type {dtype}", "unsupported_dtype"
        )
    flags = dataset.mask_flag_enums[number - 1]
    nodata, nodata_from = _decide_nodata(scene, path, dataset, role, number, kind)
    by_mask = MaskFlags.nodata not in flags or MaskFlags.per_dataset in flags or nodata_from == INEXACT_NODATA
    header = read_header(dataset, number)
    _check_place(scene, path, header)
    return SourceBand(
        role=role,
        number=number,
        kind=kind,
        dtype=dtype,
        nodata=nodata,
        nodata_from=nodata_from,
        # of a mask, 0 is invalid and nothing else is
        masked=kind != "mask" and MaskFlags.all_valid not in flags and by_mask,
        shared_mask=MaskFlags.per_dataset in flags,
        header=replace(
            header,
            tags=_lasting(header.tags),
            band_tags=_lasting(header.band_tags),
            # TIFF has palettes of these only
            colormap=header.colormap if dtype in ("uint8", "uint16") else None,
        ),
    )


def _check_place(scene: SceneFiles, path: str, header: Header) -> None:
    if header.transform:
        a, b, _, d, e, _ = header.transform
        size = a * e - b * d
        if not all(map(math.isfinite, (*header.transform, size))) or size == 0:
            raise scene.error(f"{path}: its geotransform {header.transform} places no pixel. Correct it", "header")
    for point in header.gcps or ():
        if not all(map(math.isfinite, point)):
            raise scene.error(f"{path}: its ground control point {point} is not of numbers. Correct it", "header")


def _lasting(tags: dict) -> dict:
    return {key: value for key, value in tags.items() if not OLD_FILE_TAG.match(key)}


def _decide_nodata(
    scene: SceneFiles, path: str, dataset, role: str, number: int, kind: str
) -> tuple[float | int | None, str]:
    """Sheet, else file, else (for integers that are measurements) the sensor; a mask has none."""
    if kind == "mask":
        return None, "nobody"
    dtype = stored_dtype(dataset, number)
    given = scene.number("nodata") if kind == "continuous" else None
    if given is not None:
        usable = nodata_in(given, dtype)
        if usable is None:
            raise scene.error(
                f"nodata {given} of the sheet cannot occur in band '{role}' ({path}), which is {dtype}. "
                "Correct column 'nodata'",
                "nodata_range",
            )
        return usable, "sheet"
    declared = dataset.nodatavals[number - 1]
    if _is_inexact(declared, dtype, dataset.mask_flag_enums[number - 1]):
        return None, INEXACT_NODATA
    if declared is not None:
        usable = nodata_in(declared, dtype)
        if usable is None:
            return None, f"file says {declared:g}, which cannot occur in {dtype}: ignored"
        return usable, "file"
    by_sensor = decode_number(scene.sensor.get("nodata"))
    if by_sensor is not None and kind == "continuous" and np.dtype(dtype).kind in "iu":
        usable = nodata_in(by_sensor, dtype)
        if usable is not None:
            return usable, f"sensor '{scene.sensor['name']}'"
    return None, "nobody"


def _is_inexact(declared: float | None, dtype: str, flags: list[MaskFlags]) -> bool:
    """Whether rasterio's float cannot say which 64-bit number is nodata; None is what it says of the largest ones."""
    if dtype not in ("int64", "uint64") or MaskFlags.nodata not in flags:
        return False
    # the lowest number is a power of two, and the one that people choose
    return declared is None or (abs(declared) >= 2**53 and declared != np.iinfo("int64").min)


def changed_since(file: SourceFile) -> bool:
    """Whether a local file of the raster was written to after its header was read."""
    own = [] if file.size is None else [(file.local, file.size, file.mtime_ns)]
    for path, size, mtime_ns in (*own, *file.parts):
        found = os.stat(path)
        if (found.st_size, found.st_mtime_ns) != (size, mtime_ns):
            return True
    return False
