"""Kernels, and where what they compile to is kept between processes.

Import Numba through this module (`from cogmill.kernels import njit`): it sets the cache before the first compilation.
"""

import atexit
import functools
import hashlib
import logging
import os
import pickle
import shutil
import tempfile
from pathlib import Path

# Intel's vector maths rounds pow differently from the scalar one that ends a row: pixels would depend on the window
os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

from cogmill import __version__

log = logging.getLogger(__name__)


@functools.cache
def cache_folder() -> Path:
    """Folder of generated and compiled kernels, made if need be.

    Returns
    -------
    Path
        `$COGMILL_CACHE`, else `$XDG_CACHE_HOME/cogmill`, else `~/.cache/cogmill`; where that cannot be written, a
        private temporary folder that goes with this process.
    """
    folder = _wanted_folder()
    if folder is not None and _is_writable(folder):
        return folder
    private = Path(tempfile.mkdtemp(prefix="cogmill-"))
    atexit.register(_remove_own, private, os.getpid())
    return private


def _wanted_folder() -> Path | None:
    if os.environ.get("COGMILL_CACHE"):
        return Path(os.environ["COGMILL_CACHE"]).absolute()
    # the XDG specification: a relative path there is to be ignored
    if os.path.isabs(os.environ.get("XDG_CACHE_HOME", "")):
        return Path(os.environ["XDG_CACHE_HOME"]) / "cogmill"
    try:
        return Path.home() / ".cache" / "cogmill"
    except RuntimeError:  # a container's user without a home
        return None


def _is_writable(folder: Path) -> bool:
    try:
        # code is loaded from here: nobody else may write
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child must not take its parent's cache away
        shutil.rmtree(folder, ignore_errors=True)


# what loading says of a file cut off by a crash of the machine, or of code whose module is gone
_UNUSABLE = (EOFError, pickle.UnpicklingError, ImportError, AttributeError)


class _CacheFile(IndexDataCacheFile):
    """Numba's cache with names that two processes cannot give to different code.

    Numba numbers the files of compiled code (`.1.nbc`) and writes the index before the code. Two processes that start
    on a cold cache with different dtypes, or after an upgrade, can then load each other's or yesterday's code: wrong
    pixels without an error. Here a file is named by what it was compiled from, and the index comes last.
    """

    def save(self, key, data):
        content = repr((self._version, self._source_stamp, key)).encode()
        name = self._data_name_pattern.format(number=int(hashlib.sha256(content).hexdigest()[:15], 16))
        try:
            self._save_data(name, data)
            self._save_index({**self._load_index(), key: name})
        except OSError as error:
            # a full disk costs a compilation in the next process, not this campaign
            log.warning("compiled kernel not kept in %s: %s", self._cache_path, error)

    def _load_index(self):
        try:
            return super()._load_index()
        except _UNUSABLE:
            return {}

    def _load_data(self, name):
        try:
            return super()._load_data(name)
        except _UNUSABLE as error:
            raise FileNotFoundError(name) from error  # what Numba answers by compiling again


class _Cache(FunctionCache):
    def __init__(self, function):
        super().__init__(function)
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())


def njit(function, signature: tuple | None = None):
    """Compile with Numba: without the GIL, IEEE arithmetic (no fastmath, x/0 is inf), cached on disk.

    Parameters
    ----------
    function : callable
        At module level of a file.
    signature : tuple of Numba types, optional
        Compile for these arguments now, and for no others ever.
    """
    dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
    if numba.config.DISABLE_JIT:
        return dispatcher
    dispatcher._cache = _Cache(function)
    if signature is not None:
        dispatcher.compile(signature)
        dispatcher.disable_compile()
    return dispatcher


if not numba.config.CACHE_DIR:
    # by version: packages install with fixed file times, which is all that Numba compares of a source
    numba.config.CACHE_DIR = str(cache_folder() / "numba" / __version__)
