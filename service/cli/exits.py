"""Exit codes with a meaning, for those who start and watch our processes."""

import click

# EX_CONFIG of sysexits.h: starting it again does not help (`RestartPreventExitStatus=78`).
EXIT_CONFIG = 78


class Unusable(click.ClickException):
    """The data is of a newer version, or not ours: ends the command with that sentence and `EXIT_CONFIG`."""

    exit_code = EXIT_CONFIG
