"""The worker's side of `compute`: one scene after another, window by window, from COG tiles to checked products.

The supervisor (supervisor.py) starts the worker, watches it and writes the ledger. What a scene needs comes from
its `cogs` and `grids` records; what it becomes goes to its `products` record, so that any process can go on where
another one died.
"""

import contextlib
import functools
import json
import logging
import os
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from cogmill import __version__
from cogmill.cog.files import lasts
from cogmill.device import Device, cpu_model
from cogmill.errors import DamagedRecordError, RetryableError, SceneError
from cogmill.folders import is_current, scene_lock, sweep
from cogmill.indices import parse_formula
from cogmill.ledger import end_record, new_record, product_key, read_record, timestamp, write_json
from cogmill.scenemaker import SceneMaker
from cogmill.selfcheck import check_tile
from cogmill.store import NEVER, Inputs
from cogmill.tasks import MAX_DEATHS, Task, load_record
from cogmill.warp import check_aliasing, warp_of

log = logging.getLogger("cogmill")


def run_scene(task: Task, device: Device, beat: Callable[[], None]) -> str:
    """Make the products of one scene that are missing or no longer fit, and write its record.

    Parameters
    ----------
    task : Task
    device : Device
    beat : callable
        Called at every step, so that the supervisor sees the worker alive.

    Returns
    -------
    str
        done, kept (nothing was to be made), skipped, failed, or `retry` for a fault that another attempt can mend.
    """
    try:
        with scene_lock(task.folder, beat) as locked:
            if locked:
                sweep(task.folder)
            return _run_locked(task, device, beat)
    except (OSError, RetryableError) as error:
        log.error("scene %r: %s", task.scene, error)
        return "retry"


def _run_locked(task: Task, device: Device, beat: Callable[[], None]) -> str:
    record = load_record(task.record, task.scene)
    before = json.dumps(record, sort_keys=True)
    cogs, grid = _read_upstream(task)
    if cogs["state"] != "done":
        for name in task.products:
            _set_aside(task, record, name)
        ended = {field: cogs[field] for field in ("state", "reason", "message", "retryable")}
        _save(task, end_record(record, **ended), before)
        return cogs["state"]
    inputs = _inputs(task, cogs, grid)
    try:
        keys, specs = _keys(task, inputs)
    except SceneError as error:
        _save(task, end_record(record, "failed", error.reason, f"scene {task.scene!r}: {error}"), before)
        return "failed"
    entries = record["products"]
    pending = [name for name in specs if not is_current(entries.get(name), task.product(name), keys[name], beat)]
    if not pending:
        _save(task, end_record(record, "done"), before)
        return "kept"
    journal, scene_key = record["journal"], json.dumps(keys, sort_keys=True)
    if journal.get("key") != scene_key:
        journal |= {"key": scene_key, "died": 0, "faults": 0}
    elif task.running.exists():
        journal["died"] += 1
    for attempt in record["attempts"]:
        if attempt["outcome"] == "running":
            attempt["outcome"] = "crashed" if task.running.exists() else "stopped"
    task.running.unlink(missing_ok=True)
    if journal["died"] >= MAX_DEATHS:
        message = (
            f"scene {task.scene!r}: the process died {journal['died']} times on it; "
            f"`cogmill forget {task.scene}` lets it be tried anew"
        )
        _save(task, end_record(record, "failed", "crashed", message), before)
        return "failed"
    record["attempts"].append({"started": timestamp(), "outcome": "running"})
    write_json(task.record, end_record(record, "failed", "unfinished"))
    task.running.touch()
    try:
        return _attempt(task, device, beat, record, inputs, cogs, {name: specs[name] for name in pending}, keys)
    finally:
        task.running.unlink(missing_ok=True)


def _attempt(task, device, beat, record, inputs, cogs, specs, keys) -> str:
    """Make `specs` once and write how it ended; a fault that can be mended gives `retry` until the last attempt."""
    journal, attempt = record["journal"], record["attempts"][-1]
    clock = time.perf_counter()
    _reset_peak()
    maker = SceneMaker(task, device, inputs, beat, attempt)
    record["self_check"] = None
    try:
        for name in specs:
            _set_aside(task, record, name)
        for name, entry in maker.make(specs, keys):
            record["products"][name] = entry
            # at once: a process that dies on a later product must not lose this one
            write_json(task.record, record)
        end_record(record, "done")
        if task.check:
            _self_check(task, record, inputs, cogs, specs, beat, attempt)
    except SceneError as error:
        end_record(record, "failed", error.reason, f"scene {task.scene!r}: {error}")
    except (OSError, MemoryError, RetryableError) as error:
        journal["faults"] += 1
        reason = "out_of_memory" if isinstance(error, MemoryError) else getattr(error, "reason", "io_error")
        message = f"scene {task.scene!r}: {error or type(error).__name__}"
        again = not (isinstance(error, OSError) and lasts(error))
        end_record(record, "failed", reason if again else "unwritable", message, retryable=again)
    except BaseException as error:
        # neither a bug nor a SIGTERM is the scene's fault
        attempt |= {"ended": timestamp(), "outcome": "stopped", "reason": type(error).__name__}
        write_json(task.record, record)
        raise
    again = record["retryable"] and journal["faults"] < task.run["max_attempts"]
    journal["died"] = 0
    attempt |= {
        "ended": timestamp(),
        "outcome": "retry" if again else record["state"],
        "reason": record["reason"],
        "device": device.kind,
        "device_name": device.name,
        "threads": device.threads,
        "peak_memory_mb": _peak_mb(),
        "machine": machine(device),
        "versions": software(),
    }
    attempt["seconds"]["total"] = round(time.perf_counter() - clock, 6)
    write_json(task.record, record)
    if record["message"]:
        log.error("%s: %s", record["reason"], record["message"])
    return "retry" if again else record["state"]


def _self_check(task, record, inputs, cogs, specs, beat, attempt) -> None:
    """Recompute one tile of the products just made by code of its own; products that differ lose their names."""
    clock = time.perf_counter()
    result = check_tile(
        scene=task.scene,
        cogs=cogs,
        cogs_folder=inputs.folder,
        grid=inputs.grid,
        products={name: task.products[name] for name in specs},
        masks=task.masks,
        warp=task.warp,
        files={name: task.product(name) for name in specs},
        tile=None,
        beat=beat,
    )
    attempt["seconds"]["self_check"] = time.perf_counter() - clock
    record["self_check"] = result
    if result is None or result.get("passed", True):
        return
    for name in specs:
        task.product(name).replace(task.product(name).with_name(f"{name}.suspect.tif"))
        del record["products"][name]
    end_record(record, "failed", "self_check", result["message"])


def _read_upstream(task: Task) -> tuple[dict, dict]:
    """The scene's `cogs` and `grids` records, or (the first that is not done, {})."""
    found = []
    for kind, path in (("cogs", task.cogs), ("grids", task.grid)):
        try:
            record = read_record(path, kind)
        except DamagedRecordError as error:
            record = end_record(new_record(kind, task.scene), "failed", error.reason, f"scene {task.scene!r}: {error}")
        if record["state"] != "done":
            return record, {}
        found.append(record)
    return tuple(found)


def _inputs(task: Task, cogs: dict, grid: dict) -> Inputs:
    bands = cogs["bands"]
    masks = {role: task.masks[role] for role in sorted(task.masks) if role in bands}
    masks |= {role: NEVER for role in sorted(bands) if bands[role]["kind"] == "mask"}
    return Inputs(Path(task.cogs).parent, bands, grid, masks)


def _keys(task: Task, inputs: Inputs) -> tuple[dict, dict]:
    """Key and {"expression", **spec} of every product asked for."""
    keys, specs = {}, {}
    for name, spec in task.products.items():
        expression = parse_formula(spec["formula"])
        lacking = [band for band in expression.names if band not in inputs.bands]
        if lacking:
            raise SceneError(f"product {name!r} needs band {lacking[0]!r}, which is not in the store", "band_missing")
        specs[name] = spec | {"expression": expression}
        keys[name] = _key(specs[name], inputs, task.warp)
    check_aliasing(inputs, specs, task.warp)
    return keys, specs


def _key(spec: dict, inputs: Inputs, warp: dict) -> str:
    expression = spec["expression"]
    how = warp_of(spec, inputs.bands, warp["order"])
    product = {field: value for field, value in spec.items() if field not in ("expression", "resampling")}
    return product_key(
        product | {"formula": expression.canonical},
        {name: inputs.bands[name] for name in expression.names},
        {role: {"rule": rule, "band": inputs.bands[role]} for role, rule in inputs.masks.items()},
        inputs.grid,
        None if inputs.grid["operation"] == "identity" else how,
    )


def _set_aside(task: Task, record: dict, name: str) -> None:
    """Rename a product whose key no longer fits, so that nobody takes it for the one asked for."""
    path = task.product(name)
    if os.path.lexists(path):
        path.replace(path.with_name(f"{name}.stale.tif"))
    record["products"].pop(name, None)


def _save(task: Task, record: dict, before: str) -> None:
    """Write the record only when it says something new: an untouched campaign keeps its times of change."""
    if json.dumps(record, sort_keys=True) != before:
        write_json(task.record, record)


@functools.cache
def machine(device: Device) -> dict:
    """What the pixels were made on: CPU model, CPUs that this process may use, memory in MB, GPU."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": memory >> 20,
        "gpu": device.name if device.kind == "gpu" else None,
    }


@functools.cache
def software() -> dict:
    """Versions of what made the pixels."""
    import platform

    import rasterio

    packages = ("numpy", "numba", "rasterio", "zstandard", "xxhash")
    return {
        "cogmill": __version__,
        "python": platform.python_version(),
        "gdal": rasterio.__gdal_version__,
        **{name: version(name) for name in packages},
    }


def _reset_peak() -> None:
    """Let the kernel count this process's peak memory from here on, so that each scene has its own."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _peak_mb() -> float | None:
    """Peak resident memory of this process in MB since `_reset_peak`; None where /proc does not say."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    return None
