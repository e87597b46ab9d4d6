"""`python -m meshcap.cli`, for where the `meshcap` script is not on the path."""

from meshcap.cli import main

main()
