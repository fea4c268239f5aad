"""`python -m mainstem` is the `mainstem` command."""

from mainstem.server.cli import main

main()
