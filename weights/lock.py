"""A lock that threads and processes share; the system releases it when its holder dies."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path, busy: Callable[[int], object]) -> Iterator[None]:
    """Hold the lock of a file, which is made and stays.

    While somebody else holds it, ``busy`` is called with 0, 1, 2 and so on: it waits for a moment, or raises.

    >>> import tempfile
    >>> with locked(Path(tempfile.mkdtemp(), "lock"), print): "alone"
    'alone'
    """
    with open(path, "ab") as file:
        tries = 0
        while not _try_lock(file.fileno()):
            busy(tries)
            tries += 1
        try:
            yield
        finally:
            # Closing the file would not do: a process forked meanwhile has it open as well.
            _unlock(file.fileno())


if sys.platform == "win32":
    import errno
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        return True

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
