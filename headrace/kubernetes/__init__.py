"""Training on a cluster from a laptop: the overlay of a configuration, and ``kubectl``."""
