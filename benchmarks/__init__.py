"""What prints the performance tables: `python benchmarks/NAME.py --help`, or `make bench` for the core ones."""
