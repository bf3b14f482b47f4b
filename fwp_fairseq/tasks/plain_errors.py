"""Wrong settings end a training with an error in words, not with a traceback."""

import functools

from hydra.errors import CompactHydraException

from fwp_fairseq.records import RecordError


class SettingsError(ValueError, CompactHydraException):
    """Settings that cannot be used. Hydra's commands print the text alone; HYDRA_FULL_ERROR=1 shows all of it."""


def in_plain_words(method):
    """Decorates a task's method that looks at settings: its ValueError or RecordError becomes a SettingsError."""

    @functools.wraps(method)
    def wrapper(*args, **kwargs):
        try:
            return method(*args, **kwargs)
        except (ValueError, RecordError) as error:
            raise SettingsError(str(error)) from error

    return wrapper
