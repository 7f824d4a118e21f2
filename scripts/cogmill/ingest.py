"""Any raster that GDAL reads -> one Cloud Optimized GeoTIFF a band, and a record of what was found.

GDAL decodes, window by window and never decimated, so that overviews and sidecar pyramids are not looked at; our
writer encodes. A file that has the store's form already is indexed where it lies. Beside the record lie two files that
no rule declares: `state.json` knows which bands are written and from what, so that a second run writes nothing;
`.started` counts deaths and faults.
"""

import copy
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rasterio.windows import Window as GdalWindow

from cogmill.codecs.cpu import encode_checksums, predictor_for
from cogmill.cog.files import writing
from cogmill.cog.index import read_index, why_not_conforming
from cogmill.cog.reader import index_tiles
from cogmill.cog.writer import CogInfo, CogWriter, Layer
from cogmill.errors import RetryableError, SceneError
from cogmill.folders import exit_on_sigterm, is_current, scene_lock, sweep
from cogmill.grids import TILE, windows
from cogmill.ledger import (
    BAND_FIELDS,
    PHASE_VERSION,
    digest,
    encode_number,
    end_record,
    ingest_key,
    new_record,
    read_json,
    require_fields,
    write_json,
)
from cogmill.radiometry import Claims, decide_radiometry
from cogmill.sources import (
    SceneFiles,
    SourceBand,
    SourceFile,
    changed_since,
    describe_band,
    describe_file,
    doubts,
    find_bands,
    gdal_environment,
    open_source,
    unapplied_alpha,
)
from cogmill.tasks import MAX_DEATHS

log = logging.getLogger("cogmill")

WINDOW_BYTES = 64 << 20
STATE_FIELDS = {"key": str, "size": int, "mtime_ns": int, "seconds": dict, "bytes": dict, "band": dict}
STAGES = ("read", "encode", "write", "total")
# how overviews of a band are made; those of masks as of classes, so that they stay what they were
OVERVIEW_KIND = {"continuous": "continuous", "classes": "classes", "bits": "bits", "mask": "classes"}


def to_cog(
    scene: str,
    row: dict,
    sensor: dict,
    bands: list[str],
    cog: dict,
    record: str | Path,
    max_attempts: int,
    spool_mb: int = 256,
    watched: list | None = None,
    threads: int = 1,
) -> dict:
    """Store the needed bands of one scene and write its record.

    Parameters
    ----------
    scene : str
    row : dict
        Its line of the sample sheet: `path`, and `scale`, `offset`, `nodata`, `mask` where given.
    sensor : dict
        `name`, `nodata`, and `bands`: dicts of `name`, `names`, `file`, `position`, `kind`, `scale`, `offset`.
    bands : list of str
        Roles of the bands to store.
    cog : dict
        `bands` ("needed" | "all": then bands that the file lacks are left out, and the record says so in
        `left_out`), `overviews`, `zstd_level`.
    record : path
        The record to write; the bands lie beside it.
    max_attempts : int
        A fault of disk, network or memory that comes back this often is recorded as failed.
    spool_mb : int
        Compressed tiles kept in memory, all bands of a file together; more go to an unlinked file.
    watched : list, optional
        [path, size, mtime_ns] of the source files as they were planned with; kept in the record.
    threads : int

    Returns
    -------
    dict
        The record. A scene that cannot be stored gives one with state "failed".

    Raises
    ------
    RetryableError
        Another attempt may help; no record was written.
    """
    files, spool_bytes = SceneFiles(scene, row, sensor), spool_mb << 20
    job = Job(files, tuple(bands), cog, Path(record), max_attempts, spool_bytes, watched or [], threads)
    try:
        with exit_on_sigterm(), scene_lock(job.folder) as locked:
            if locked:
                sweep(job.folder)
            return _attempt(job)
    except OSError as error:
        raise RetryableError(f"scene '{scene}': {error}", "io_error") from error


@dataclass(frozen=True)
class Job:
    """What `to_cog` was asked for."""

    scene: SceneFiles
    roles: tuple[str, ...]
    cog: dict
    record: Path
    max_attempts: int
    spool_bytes: int
    watched: list
    threads: int

    @property
    def folder(self) -> Path:
        return self.record.parent

    @property
    def key(self) -> str:
        return ingest_key(self.scene.row, self.scene.sensor, self.roles, self.cog)

    def path(self, role: str) -> Path:
        return self.folder / f"{role}.tif"


class Journal:
    """Deaths and faults of the attempts at one scene, kept in `.started` from before the work until it ends."""

    def __init__(self, job: Job):
        self.path = job.folder / ".started"
        try:
            self.doc = read_json(self.path)
        except (FileNotFoundError, ValueError):
            self.doc = {}
        counts = [self.doc.get("died"), self.doc.get("faults")]
        if self.doc.get("key") != job.key or not all(isinstance(count, int) for count in counts):
            self.doc = {"key": job.key, "died": 0, "faults": 0}

    @property
    def died(self) -> int:
        return self.doc["died"]

    @property
    def faults(self) -> int:
        return self.doc["faults"]

    def start(self) -> None:
        """Count a death in advance: a process that is killed cannot do it later."""
        self._add(1)

    def live(self, faults: int = 0) -> None:
        """Take the death back, and count a fault."""
        try:
            self._add(-1, faults)
        except OSError:
            # on a full disk the count cannot be changed, but a wrong one would make two such attempts a crash
            self.clear()

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)

    def _add(self, deaths: int, faults: int = 0) -> None:
        self.doc["died"] += deaths
        self.doc["faults"] += faults
        write_json(self.path, self.doc)


def _attempt(job: Job) -> dict:
    """Try once and write how it ended, unless another attempt may help."""
    name = job.scene.name
    journal = Journal(job)
    record = new_record("cogs", name) | {
        "key": job.key,
        "watched": job.watched,
        "sensor": job.scene.sensor["name"],
        "sources": [],
        "notes": [],
        "bands": {},
        "left_out": {},
        "seconds": dict.fromkeys(STAGES, 0.0),
        "bytes": {"read": 0, "written": 0},
        "attempts": journal.died + journal.faults + 1,
    }
    if journal.died >= MAX_DEATHS:
        message = (
            f"scene '{name}': the process died {journal.died} times while storing it; "
            f"`cogmill forget {name}` lets it be tried anew"
        )
        end_record(record, "failed", "crashed", message)
    else:
        journal.start()
        try:
            with gdal_environment(job.threads):
                Store(job, record).make()
            end_record(record, "done")
        except SceneError as error:
            end_record(record, "failed", error.reason, _worded(name, error))
        except (OSError, MemoryError, RetryableError) as error:
            journal.live(faults=1)
            reason = "out_of_memory" if isinstance(error, MemoryError) else getattr(error, "reason", "io_error")
            if journal.faults < job.max_attempts:
                raise RetryableError(_worded(name, error), reason) from error
            end_record(record, "failed", reason, _worded(name, error), retryable=True)
        except BaseException:
            # a bug or a cancelled job is not the scene's fault
            journal.live()
            raise
    if record["state"] != "done":
        record["bands"] = {}
    write_json(job.record, record)
    journal.clear()
    if record["message"]:
        log.error("%s: %s", record["reason"], record["message"])
    return record


def _worded(scene: str, error: BaseException) -> str:
    """What an error says, the scene named: codec and writer do not know it."""
    text = str(error) or type(error).__name__
    return text if text.startswith("scene ") else f"scene '{scene}': {text}"


class Store:
    """One pass over the sources of a scene, filling its folder and its record."""

    def __init__(self, job: Job, record: dict):
        self.job, self.scene, self.record = job, job.scene, record
        self.state_path = job.folder / "state.json"
        try:
            self.state = read_state(self.state_path)
        except (FileNotFoundError, ValueError):
            self.state = {"bands": {}}
        self.saved = copy.deepcopy(self.state)

    def make(self) -> None:
        """Store what is missing and enter every band of the scene."""
        for path, roles in self._files().items():
            self._source(path, lambda dataset, file, roles=roles: self._find(dataset, file, roles))
        if self.scene.row.get("mask"):
            path = self.scene.row["mask"]
            self._source(path, lambda dataset, file: {"mask": 1})
        if not self.record["bands"]:
            raise self.scene.error(
                f"no band of sensor '{self.scene.sensor['name']}' was found. Correct columns 'path' and 'sensor'",
                "band_missing",
            )
        self._save()

    def _save(self) -> None:
        if self.state != self.saved:
            with writing(self.state_path):
                write_json(self.state_path, self.state)
            self.saved = copy.deepcopy(self.state)

    @property
    def _some_will_do(self) -> bool:
        return self.job.cog.get("bands") == "all"

    def _files(self) -> dict[str, list[str]]:
        if not self._some_will_do:
            return self.scene.files(list(self.job.roles))
        return self._gather(self.job.roles, self.scene.files)

    def _find(self, dataset, file: SourceFile, roles: list[str]) -> dict[str, int]:
        def find(some):
            return find_bands(self.scene, file, dataset, some)

        numbers = self._gather(roles, find) if self._some_will_do else find(roles)
        doubt = doubts(self.scene, file, numbers)
        if doubt:
            log.warning(doubt)
            self.record["notes"].append(doubt)
        alpha = unapplied_alpha(dataset, list(numbers.values()))
        if alpha:
            others = sum(role.startswith("alpha") for role in self.record["bands"])
            numbers[f"alpha-{others + 1}" if others else "alpha"] = alpha
        return numbers

    def _gather(self, roles, find) -> dict:
        """Results of `find([role])` of the roles that there are."""
        found: dict = {}
        for role in roles:
            try:
                for key, value in find([role]).items():
                    found[key] = found.get(key, []) + value if isinstance(value, list) else value
            except SceneError as error:
                if error.reason not in ("band_missing", "not_found"):
                    raise
                log.warning("%s; left out", error)
                self.record["left_out"][role] = str(error)
        return found

    def _source(self, path: str, find) -> None:
        """Store the bands of one input file; `find(dataset, file)` gives {role: band number}."""
        with open_source(self.scene, path) as dataset:
            with self.scene.gdal(path, "read"):
                file = describe_file(self.scene, path, dataset)
                self.record["sources"].append(file.to_json())
                bands = [
                    describe_band(self.scene, path, dataset, role, number, self._kind(role))
                    for role, number in find(dataset, file).items()
                ]
            radiometry = {band.role: self._radiometry(file, band) for band in bands}
            keys = {band.role: self._key(file, band) for band in bands}
            pending = [band for band in bands if not self._kept(band.role, keys[band.role])]
            if pending:
                self._remake(dataset, file, pending, keys)
        for band in bands:
            self._enter(band.role, radiometry[band.role])

    def _kind(self, role: str) -> str:
        return self.scene.bands[role]["kind"] if role in self.scene.bands else "mask"

    def _key(self, file: SourceFile, band: SourceBand) -> str:
        """Changes when the stored file would; the ZSTD level does not, since the pixels stay the same."""
        return digest(
            {
                "phase": PHASE_VERSION["ingest"],
                "source": file.identity,
                "band": band.number,
                "header": repr(band.header),
                "kind": band.kind,
                "nodata": encode_number(band.nodata),
                "overviews": bool(self.job.cog.get("overviews")),
            }
        )

    def _radiometry(self, file: SourceFile, band: SourceBand) -> dict:
        of_sensor = self.scene.bands.get(band.role, {})
        claims = Claims(
            scene=self.scene.name,
            role=band.role,
            file=file.path,
            sheet_scale=self.scene.number("scale"),
            sheet_offset=self.scene.number("offset"),
            tags=(band.header.scale, band.header.offset),
            sensor=self.scene.sensor["name"],
            sensor_scale=of_sensor.get("scale"),
            sensor_offset=of_sensor.get("offset"),
        )
        return decide_radiometry(claims, band.kind, np.dtype(band.dtype).kind in "iu").to_json()

    def _kept(self, role: str, key: str) -> bool:
        entry = self.state["bands"].get(role)
        if not entry or entry["key"] != key:
            return False
        # of a band indexed in place, size and time of the source are part of the key
        return not entry["band"]["written"] or is_current(entry, self.job.path(role), key)

    def _remake(self, dataset, file: SourceFile, bands: list[SourceBand], keys: dict) -> None:
        clock = time.perf_counter()
        for band in bands:
            self.state["bands"].pop(band.role, None)
            # an old band must not stand there as this one if the source turns out to be damaged
            with writing(self.job.path(band.role)):
                self.job.path(band.role).unlink(missing_ok=True)
        entries = None if self.job.cog.get("overviews") else self._index_in_place(file, bands)
        if entries is None:
            entries = self._convert(dataset, file, bands)
        if changed_since(file):
            for band in bands:
                self.job.path(band.role).unlink(missing_ok=True)
            raise RetryableError(
                f"scene '{self.scene.name}': {file.path} was changed while it was read", "source_changed"
            )
        for role, entry in entries.items():
            entry["key"] = entry["band"]["key"] = keys[role]
            entry["seconds"]["total"] = (time.perf_counter() - clock) / len(bands)
        self.state["bands"] |= entries
        self._save()

    def _enter(self, role: str, radiometry: dict) -> None:
        """Put a stored band into the record, with what it cost when it was made."""
        entry = self.state["bands"][role]
        stat = {"size": entry["size"], "mtime_ns": entry["mtime_ns"]}
        self.record["bands"][role] = entry["band"] | {"radiometry": radiometry} | stat
        for stage in STAGES:
            self.record["seconds"][stage] = round(self.record["seconds"][stage] + entry["seconds"][stage], 6)
        for way in ("read", "written"):
            self.record["bytes"][way] += entry["bytes"][way]

    def _index_in_place(self, file: SourceFile, bands: list[SourceBand]) -> dict | None:
        """State entries of bands whose file has the store's form; None where one has not."""
        if file.driver != "GTiff" or file.local != file.path or any(band.masked for band in bands):
            return None
        try:
            reasons = (why_not_conforming(read_index(file.path, band.number)) for band in bands)
            reason = next(filter(None, reasons), None)
            found = None if reason else [self._indexed(file, band) for band in bands]
        except SceneError as error:
            # what our index cannot make sense of, GDAL may still read; if not, it says why
            reason = str(error)
        if reason:
            log.info("scene %r: %s is stored anew: %s", self.scene.name, file.path, reason)
            return None
        return dict(zip((band.role for band in bands), found, strict=True))

    def _indexed(self, file: SourceFile, band: SourceBand) -> dict:
        """State entry of a band that stays where it lies; decodes every tile."""
        clock = time.perf_counter()
        checksums, pixels = index_tiles(file.path, band.number, self.job.threads)
        predictor = read_index(file.path, band.number).images[0].predictor
        return {
            "size": file.size,
            "mtime_ns": file.mtime_ns,
            "checksum": None,
            "seconds": {"read": time.perf_counter() - clock, "encode": 0.0, "write": 0.0},
            "bytes": {"read": file.size // file.count, "written": 0},
            "band": self._band_doc(file, band)
            | {
                "path": str(Path(file.path).absolute()),
                "written": False,
                "band": band.number,
                "predictor": predictor,
                "mask": False,
                "tile_checksums": encode_checksums(checksums),
                "mask_checksums": None,
                "pixel_digest": pixels,
            },
        }

    def _convert(self, dataset, file: SourceFile, bands: list[SourceBand]) -> dict:
        """State entries of bands that our writer wrote: all bands of the file in one pass."""
        spool = self.job.spool_bytes // len(bands)
        clock = {"read": 0.0, "encode": 0.0}
        writers: dict[str, CogWriter] = {}
        try:
            for band in bands:
                writers[band.role] = self._writer(file, band, spool)
            for window in reading_windows(file, bands):
                begin = time.perf_counter()
                pixels, masks = self._read(dataset, file, bands, window)
                read = time.perf_counter()
                for band in bands:
                    writers[band.role].write(window, pixels[band.role], masks.get(band.role))
                clock["read"] += read - begin
                clock["encode"] += time.perf_counter() - read
            infos = {role: writer.finish() for role, writer in writers.items()}
        except BaseException:
            for role, writer in writers.items():
                writer.abort()
                self.job.path(role).unlink(missing_ok=True)
            raise
        share = {stage: seconds / len(bands) for stage, seconds in clock.items()}
        return {band.role: self._written_entry(file, band, infos[band.role], share, len(bands)) for band in bands}

    def _writer(self, file: SourceFile, band: SourceBand, spool: int) -> CogWriter:
        layer = Layer(
            shape=file.shape,
            dtype=band.dtype,
            nodata=band.nodata,
            kind=OVERVIEW_KIND[band.kind],
            mask=band.masked,
            overviews=bool(self.job.cog.get("overviews")),
            level=self.job.cog.get("zstd_level", 9),
        )
        return CogWriter(self.job.path(band.role), layer, band.header, spool_bytes=spool, threads=self.job.threads)

    def _read(self, dataset, file: SourceFile, bands: list[SourceBand], window) -> tuple[dict, dict]:
        """Pixels and validity (uint8, 1 valid) of one window, by role; bands without a mask are not in the second."""
        where = GdalWindow(window.col, window.row, window.cols, window.rows)
        pixels: dict[str, np.ndarray] = {}
        masks: dict[str, np.ndarray] = {}
        with self.scene.gdal(file.path, "read", pixels=True):
            # GDAL would cast bands of different dtypes to one
            for dtype in dict.fromkeys(band.dtype for band in bands):
                same = [band for band in bands if band.dtype == dtype]
                block = dataset.read([band.number for band in same], window=where).astype(dtype, copy=False)
                pixels |= {band.role: plane for band, plane in zip(same, block, strict=True)}
            shared = None
            for band in bands:
                if band.masked and band.shared_mask:
                    shared = self._valid(dataset, band, where) if shared is None else shared
                    masks[band.role] = shared
                elif band.masked:
                    masks[band.role] = self._valid(dataset, band, where)
        return pixels, masks

    @staticmethod
    def _valid(dataset, band: SourceBand, where: GdalWindow) -> np.ndarray:
        return (dataset.read_masks(band.number, window=where) > 0).astype(np.uint8)

    def _written_entry(self, file: SourceFile, band: SourceBand, info: CogInfo, share: dict, sharing: int) -> dict:
        source_bytes = file.size if file.size is not None else 0
        return {
            "size": info.size,
            "mtime_ns": info.mtime_ns,
            "checksum": info.checksum,
            "seconds": share | {"write": sum(info.seconds.get(stage, 0.0) for stage in ("write", "check"))},
            "bytes": {"read": source_bytes // sharing, "written": info.size},
            "band": self._band_doc(file, band)
            | {
                "path": self.job.path(band.role).name,
                "written": True,
                "band": 1,
                "mask": band.masked,
                "predictor": predictor_for(band.dtype),
                "tile_checksums": encode_checksums(info.checksums),
                "mask_checksums": None if info.mask_checksums is None else encode_checksums(info.mask_checksums),
                "pixel_digest": info.pixel_digest[0],
            },
        }

    @staticmethod
    def _band_doc(file: SourceFile, band: SourceBand) -> dict:
        header = band.header
        return {
            "source": {"path": file.path, "band": band.number},
            "dtype": band.dtype,
            "shape": list(file.shape),
            "transform": header.transform and list(header.transform),
            "crs": header.crs,
            "gcps": header.gcps and [list(point) for point in header.gcps],
            "rpcs": header.rpcs and dict(header.rpcs),
            "nodata": encode_number(band.nodata),
            "nodata_from": band.nodata_from,
            "kind": band.kind,
            "tags": {
                "scale": encode_number(header.scale),
                "offset": encode_number(header.offset),
                "unit": header.unit,
                "description": header.description,
            },
        }


def read_state(path: Path) -> dict:
    """What `state.json` knows of the bands that are stored.

    Raises
    ------
    ValueError
        It was damaged: the bands are stored anew.
    FileNotFoundError
    """
    state = read_json(path)
    require_fields(state, {"bands": dict})
    for entry in state["bands"].values():
        require_fields(entry, STATE_FIELDS)
        require_fields(entry["band"], {"written": bool, **BAND_FIELDS, "radiometry": object})
    return state


def reading_windows(file: SourceFile, bands: list[SourceBand]):
    """Windows of whole tiles that keep within `WINDOW_BYTES`, as high as the source's blocks where that fits.

    A window that cut blocks in two would have GDAL decode them twice.
    """
    per_pixel = sum(np.dtype(band.dtype).itemsize + band.masked for band in bands)
    tile_rows, tile_cols = -(-file.shape[0] // TILE), -(-file.shape[1] // TILE)
    fitting = max(1, WINDOW_BYTES // (TILE * TILE * per_pixel))
    if fitting < tile_cols:
        return windows(file.shape, 1, fitting)
    rows = min(tile_rows, fitting // tile_cols)
    step = math.lcm(TILE, file.block[0]) // TILE
    return windows(file.shape, rows - rows % step if rows > step else rows)
