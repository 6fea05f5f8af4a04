"""`python -m lanner.cli`, the same as `lanner`."""

from lanner.cli import main

main()
