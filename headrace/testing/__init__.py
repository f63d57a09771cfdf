"""Help for tests and comparisons: fakes, and loops that the distributed system is held against."""
