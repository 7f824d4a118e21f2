"""Records, keys and the ledger: what happened to each scene, and whether what lies on disk still fits.

A record is the small JSON file that every per-scene rule declares as its output; the rasters lie beside it,
undeclared. A ledger is the roll-up of a batch's records, written last. Resume compares keys, never ledgers.
"""

import hashlib
import json
import math
import os
import uuid
from datetime import UTC, datetime
from pathlib import Path, PurePath

from cogmill import __version__
from cogmill.errors import DamagedRecordError

# Raised when the same input gives other pixels than before; the golden-pixel tests say so.
PHASE_VERSION = {"ingest": 1, "grid": 2, "compute": 2}

LEDGER_PRODUCT_FIELDS = ("file", "size", "checksum", "pixel_digest", "stats")


# What is read of records, and of which types it must be; anything else was not written by cogmill.
TEXT_OR_NOT = (str, type(None))
RECORD_FIELDS = {
    "every": {"scene": str, "state": str, "reason": TEXT_OR_NOT, "message": TEXT_OR_NOT, "retryable": bool},
    "cogs": {"bands": dict},
    "grids": {"grid": dict, "operation": str, "sources": list},
    "products": {"products": dict, "attempts": list, "journal": dict},
}
BAND_FIELDS = {
    "path": str,
    "band": int,
    "source": dict,
    "dtype": str,
    "shape": list,
    "predictor": int,
    "mask": bool,
    "kind": str,
    "radiometry": dict,
    "tile_checksums": str,
    "mask_checksums": TEXT_OR_NOT,
    "pixel_digest": str,
}
SOURCE_FIELDS = {"grid": dict, "bands": list, "affine": list, "masks": dict}
PRODUCT_FIELDS = {
    "file": str,
    "size": int,
    "mtime_ns": int,
    "checksum": str,
    "pixel_digest": list,
    "key": str,
    "stats": dict,
}


def timestamp() -> str:
    """Now, in UTC, to the millisecond, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def encode_number(value):
    """JSON form of a number: NaN and infinities become the words "nan", "inf", "-inf"; None stays."""
    if value is None:
        return None
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def decode_number(value):
    """Inverse of `encode_number`."""
    return float(value) if isinstance(value, str) else value


def digest(doc) -> str:
    """SHA-256 of the canonical JSON of `doc` (sorted keys, no spaces), as hex."""
    text = json.dumps(doc, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all: beside its final name, flushed to disk, then renamed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, doc) -> None:
    """Write `doc` as JSON, atomically; NaN is refused (see `encode_number`)."""
    write_text(path, json.dumps(doc, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> dict:
    """Read a JSON object that cogmill wrote.

    Raises
    ------
    ValueError
        The file holds something else: it was cut off, garbled, or written by others.
    """
    return _parsed(Path(path).read_bytes())


def _parsed(data: bytes) -> dict:
    try:
        doc = json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(doc, dict):
        raise ValueError(f"it holds a {type(doc).__name__}, not an object")
    return doc


def read_record(path: str | Path, kind: str | None = None) -> dict:
    """Read a scene's record and see that it has what is read of it: of a `kind` cogs, grids or products, or of any.

    Raises
    ------
    DamagedRecordError
    FileNotFoundError
    """
    try:
        record = read_json(path)
        wanted = RECORD_FIELDS["every"] | (RECORD_FIELDS[kind] if kind and record.get("state") == "done" else {})
        require_fields(record, wanted)
        for part in record.get("bands", {}).values() if kind == "cogs" else ():
            require_fields(part, BAND_FIELDS)
        for part in record.get("sources", ()) if kind == "grids" else ():
            require_fields(part, SOURCE_FIELDS)
        for part in record.get("products", {}).values() if kind == "products" else ():
            require_fields(part, PRODUCT_FIELDS)
    except (ValueError, AttributeError) as error:
        raise DamagedRecordError(f"{path} is not a record of cogmill ({error}): delete it and run again") from error
    return record


def require_fields(doc, fields: dict) -> None:
    """See that `doc` is an object with these fields, {name: type or types}; ValueError where it is not."""
    if not isinstance(doc, dict):
        raise ValueError(f"a {type(doc).__name__} stands where an object should")
    for name, types in fields.items():
        if not isinstance(doc.get(name), types):
            raise ValueError(f"its {name!r} is {doc.get(name)!r:.50}")


def new_record(kind: str, scene: str) -> dict:
    """A record that has not ended yet; `kind` is cogs, grids or products."""
    return {
        "cogmill": __version__,
        "kind": kind,
        "scene": scene,
        "state": "failed",
        "reason": "unfinished",
        "message": None,
        "retryable": False,
    }


def end_record(record: dict, state: str, reason=None, message=None, retryable=False) -> dict:
    """Set how a record ended: `state` is done, skipped or failed."""
    record |= {"state": state, "reason": reason, "message": message, "retryable": retryable}
    return record


def ingest_key(row: dict, sensor: dict, bands: list[str], cog: dict) -> str:
    """Key of a scene's COG store: what `to_cog` was asked for, not what it found."""
    return digest([row, sensor, list(bands), cog, PHASE_VERSION["ingest"]])


def band_identity(band: dict) -> dict:
    """What of a stored band decides a product's pixels and tags: content, how it is read, and what it came from."""
    return {
        "source": [PurePath(band["source"]["path"]).name, band["source"]["band"]],
        "pixels": band["pixel_digest"],
        "mask": band["mask_checksums"],
        "dtype": band["dtype"],
        "nodata": band["nodata"],
        "kind": band["kind"],
        "scale": band["radiometry"]["scale"],
        "offset": band["radiometry"]["offset"],
        "decided_by": band["radiometry"]["decided_by"],
    }


def product_key(product: dict, bands: dict, masks: dict, grid: dict, warp: dict | None) -> str:
    """Key of one product of one scene.

    Two products with one key have the same pixels and the same tags, whatever the window, reader, memory,
    batch or machine was.

    Parameters
    ----------
    product : dict
        Resolved product of the config: canonical formula, dtype, scale, offset, nodata, unit, description, kind.
    bands : dict
        {role: band of the scene's `cogs` record} of the bands that its formula uses.
    masks : dict
        {band role: {"rule", "band"}} as applied to this scene; `band` is that of the `cogs` record.
    grid : dict
        The scene's `grids` record.
    warp : dict or None
        How its bands are resampled: {"resampling": {band: method}, "order"}; None where they are not.
    """
    return digest(
        {
            "product": product,
            "bands": {name: band_identity(band) for name, band in bands.items()},
            "masks": {
                role: {"rule": mask["rule"], "band": band_identity(mask["band"])} for role, mask in masks.items()
            },
            "grid": [grid["grid"], grid["operation"]],
            "sources": [
                _source_identity(source, bands, masks)
                for source in grid["sources"]
                if set(bands) & set(source["bands"])
            ],
            "warp": warp and warp | {"place": _place_identity(grid["warp"])},
            "phases": PHASE_VERSION,
        }
    )


def _source_identity(source: dict, bands: dict, masks: dict) -> dict:
    """What of a source grid decides pixels; the ratio, which only says whether they may be made, does not."""
    return {
        "grid": [source["grid"], source["gcps"], source["rpcs"], source["affine"]],
        "bands": [role for role in source["bands"] if role in bands],
        "masks": {role: source["masks"].get(role) for role in masks},
    }


def _place_identity(warp: dict) -> list:
    """What decides the coordinates: the nodes' file, else the operation that computes each of them."""
    return [warp["engine"], warp["checksum"], warp["projection"]]


def counting_attempts(record: dict, names) -> list[dict]:
    """Attempts that made the products `names` as they are now, and the killed ones before each; oldest first."""
    wanted, counting, before = set(names), [], False
    for attempt in reversed(record.get("attempts", [])):
        made = wanted.intersection(attempt.get("products", ()))
        # what a killed, stopped or repeated attempt took was spent on the pixels that the next one finished
        if made or (before and attempt["outcome"] not in ("done", "failed")):
            counting.append(attempt)
            before = True
        else:
            before = False
        wanted -= made
    return counting[::-1]


def ledger_line(record: dict, sensor: str | None, names) -> dict:
    """One scene's line of a ledger, from its `products` record; `names` are the products of the config."""
    made = {name: record["products"][name] for name in names if name in record.get("products", {})}
    return {
        "scene": record["scene"],
        "state": record["state"],
        "reason": record["reason"],
        "message": record["message"],
        "retryable": record["retryable"],
        "sensor": sensor,
        "products": {name: {field: entry[field] for field in LEDGER_PRODUCT_FIELDS} for name, entry in made.items()},
        "attempts": counting_attempts(record, made),
        "self_check": record.get("self_check"),
    }


def write_ledger(path: str | Path, lines: list[dict]) -> None:
    """Write a batch's ledger: one JSON object a line, in the batch's order."""
    write_text(path, "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines))


def read_ledger(path: str | Path) -> list[dict]:
    """Lines of a ledger.

    Raises
    ------
    DamagedRecordError
    FileNotFoundError
    """
    # not splitlines(): a message may hold U+2028 or U+0085, which end no line of JSON
    try:
        lines = [_parsed(line) for line in Path(path).read_bytes().split(b"\n") if line]
        for line in lines:
            require_fields(line, {"scene": str, "state": str, "products": dict})
    except ValueError as error:
        raise DamagedRecordError(f"{path} is not a ledger of cogmill ({error}): delete it and run again") from error
    return lines
