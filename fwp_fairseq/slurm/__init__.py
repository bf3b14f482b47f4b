"""Submission of tables and figures to a SLURM cluster; `fwp-slurm` is the command, scripts/lib/*.sh its callers."""


class SlurmError(Exception):
    """Nothing can be submitted or asked; the text says why and what to do."""
