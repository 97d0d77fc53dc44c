"""`python -m selex` is the command line too."""

from selex.cli import main

main()
