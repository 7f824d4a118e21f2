"""A scene's folder: its lock, what killed processes left there, and whether a file is still the one recorded."""

import contextlib
import fcntl
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import xxhash

log = logging.getLogger("cogmill")

TERMINATED = 143  # 128 + SIGTERM, what a shell reports for a process that SIGTERM ended


def idle() -> None:
    """What is called at each step where nobody watches."""


@contextlib.contextmanager
def scene_lock(folder: Path, beat: Callable[[], None] = idle) -> Iterator[bool]:
    """Hold the scene's lock file; yields False where the file system has no locks.

    A lock only saves work: two processes on one scene write the same bits under unique names. `beat` is called while
    another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w", encoding="ascii") as file:
        locked = False
        while not locked:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                beat()
                time.sleep(0.5)
            except OSError as error:
                log.warning("no lock on %s (%s): going on without", folder, error)
                break
        yield locked


def sweep(folder: Path) -> None:
    """Remove temporary files that killed processes left; only under the scene's lock."""
    for path in folder.glob(".*.tmp"):
        if not path.is_dir():
            path.unlink(missing_ok=True)


def file_checksum(path: Path, beat: Callable[[], None] = idle) -> str:
    """xxh3-128 of a file's bytes, as hex; `beat` is called every 64 MB."""
    state = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(1 << 26):
            state.update(block)
            beat()
    return state.hexdigest()


def is_current(entry: dict | None, path: Path, key: str, beat: Callable[[], None] = idle) -> bool:
    """Whether the file on disk is the one that `key` means.

    Size and time of change are compared first; where only the time differs (a copied campaign), the file's checksum
    decides and the entry takes the new time.

    Parameters
    ----------
    entry : dict or None
        What was recorded: `key`, `size`, `mtime_ns`, `checksum`.
    """
    if not entry or entry["key"] != key:
        return False
    try:
        found = path.stat()
    except OSError:  # not there, or a link that leads nowhere or to itself
        return False
    if found.st_size != entry["size"]:
        return False
    if found.st_mtime_ns != entry["mtime_ns"]:
        if file_checksum(path, beat) != entry["checksum"]:
            return False
        entry["mtime_ns"] = found.st_mtime_ns
    return True


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Make SIGTERM an exception, so that temporary files go and a cancelled job is not taken for a crash.

    Python lets only the main thread set handlers; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_):
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
