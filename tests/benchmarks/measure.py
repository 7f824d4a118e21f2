"""Seconds and memory of programs, and what they ran on."""

import datetime
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy
import pyproj
import rasterio

from cogmill import __version__
from cogmill.device import cpu_model


@dataclass(frozen=True)
class Stage:
    """Wall seconds of a program, and the largest memory that one of its processes held."""

    seconds: float
    peak_memory_mb: float


def measured(command: list[str], threads: int) -> Stage:
    """Run a program on `threads` cores to its end.

    Memory is what the kernel counted: looking into /proc while it runs would hold up its page faults.

    Raises
    ------
    RuntimeError
        It failed; with what it said.
    """
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.sync()  # what the program before it wrote is not this one's burden
    with tempfile.TemporaryFile() as said:
        clock = time.perf_counter()
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        _, status, usage = os.wait4(program.pid, 0)
        seconds = time.perf_counter() - clock
        program.returncode = os.waitstatus_to_exitcode(status)
        if program.returncode:
            said.seek(0)
            raise RuntimeError(f"{command[:4]} failed:\n{said.read().decode(errors='replace')[-2000:]}")
    return Stage(seconds, round(usage.ru_maxrss / 1024, 1))


def hardware() -> dict:
    """CPU, cores, memory and system of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return {"cpu": cpu_model(), "cores": cores, "memory_mb": memory // 2**20, "system": platform.platform()}


def versions() -> dict:
    """Versions of what was compared, and the date."""
    found = {
        "cogmill": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "rasterio": rasterio.__version__,
        "rasterio_gdal": rasterio.__gdal_version__,
        "pyproj": pyproj.__version__,
        "proj": pyproj.proj_version_str,
    }
    if shutil.which("gdalwarp"):
        found["gdalwarp"] = subprocess.run(["gdalwarp", "--version"], capture_output=True, text=True).stdout.strip()
    return found | {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}


def table(heads, lines) -> str:
    """Columns of text."""
    widths = [max(len(str(line[i])) for line in (heads, *lines)) for i in range(len(heads))]
    return "\n".join(
        "  ".join(str(cell).ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *lines)
    )


def write_json(path: Path, document: dict) -> None:
    """Write a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
