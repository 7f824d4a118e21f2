"""Access to files with this package's errors: what another attempt can mend is told from what it cannot."""

import contextlib
import errno
import os
from collections.abc import Iterator

from cogmill.errors import RetryableError, SceneError

# the path itself is wrong; any other fault of the system (I/O, stale handle, disk full) can pass
LASTING = {
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}


def lasts(error: OSError) -> bool:
    """Whether another attempt will meet the same fault."""
    return error.errno in LASTING


@contextlib.contextmanager
def reading(path) -> Iterator[None]:
    """Turn OSErrors of the block into SceneError `unreadable` or RetryableError `io_error`, naming `path`."""
    try:
        yield
    except OSError as error:
        if lasts(error) or isinstance(error, FileNotFoundError):
            raise SceneError(f"{path} cannot be read: {error.strerror}", "unreadable") from error
        raise RetryableError(f"reading {path} failed: {error}", "io_error") from error


@contextlib.contextmanager
def writing(path) -> Iterator[None]:
    """Turn OSErrors of the block into SceneError `unwritable` or RetryableError `io_error`, naming `path`."""
    try:
        yield
    except OSError as error:
        if lasts(error):
            raise SceneError(f"{path} cannot be written: {error.strerror}", "unwritable") from error
        raise RetryableError(f"writing {path} failed: {error}", "io_error") from error


def pread(fd: int, size: int, offset: int) -> bytes:
    """`size` bytes at `offset`; fewer only where the file ends."""
    data = os.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size:
        data = os.pread(fd, size - got, offset + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)
