"""`python -m fluxguard` is the command line."""

from fluxguard.cli import main

main()
