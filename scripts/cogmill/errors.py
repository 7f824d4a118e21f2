"""Every error that cogmill raises on purpose, each with a stable `reason` word for the ledger."""


class CogmillError(Exception):
    """Root of cogmill's errors; the message is a whole sentence for the user."""

    reason = "error"


class ConfigError(CogmillError):
    """The config or the sample sheet is wrong; nothing has been started."""

    reason = "config"


class FormulaError(ConfigError):
    """A formula holds something other than names, numbers, + - * / ** and unary minus."""

    reason = "formula"

    def __init__(self, message: str, position: int | None = None):
        super().__init__(message)
        self.position = position


class SceneError(CogmillError):
    """One scene cannot be made; it gets a `failed` record and the others go on.

    Parameters
    ----------
    message : str
        What was found, what was wanted, and the config key or sheet column to change.
    reason : str
        Stable word for the ledger (`grid_mismatch`, `unreadable`, ...).
    """

    reason = "scene"

    def __init__(self, message: str, reason: str | None = None):
        super().__init__(message)
        if reason:
            self.reason = reason


class DamagedTileError(SceneError):
    """A tile's bytes do not match their checksum or cannot be decoded."""

    reason = "damaged_tile"


class DamagedRecordError(SceneError):
    """A record beside the rasters does not hold what cogmill wrote there."""

    reason = "record_damaged"


class RetryableError(CogmillError):
    """A fault that another attempt can mend: I/O, network, disk full, out of memory."""

    reason = "retryable"

    def __init__(self, message: str, reason: str | None = None):
        super().__init__(message)
        if reason:
            self.reason = reason
