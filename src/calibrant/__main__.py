"""`python -m calibrant`: the same as the `calibrant` command."""

from calibrant.cli import main

main()
