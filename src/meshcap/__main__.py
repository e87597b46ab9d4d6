"""`python -m meshcap` is the same as `meshcap`."""

from meshcap.cli import main

main()
