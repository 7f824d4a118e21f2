"""Logging of a rule's script: to its log file and to standard error, tracebacks included."""

import logging
import sys
from pathlib import Path


def start_log(path: str | Path | None = None) -> None:
    """Send log lines to standard error and to `path`; an exception that ends the script goes there too."""
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, mode="a", encoding="utf-8"))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=handlers, force=True
    )
    sys.excepthook = _log_exception


def _log_exception(kind, error, traceback):
    from cogmill.errors import CogmillError

    if issubclass(kind, CogmillError):
        # the message is made for the user; a traceback through our own frames would hide it
        logging.getLogger("cogmill").error("%s: %s", error.reason, error)
    else:
        logging.getLogger("cogmill").error("uncaught exception", exc_info=(kind, error, traceback))
