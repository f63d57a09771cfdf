"""The Headrace services. Each runs as ``python -P -m services.<name>``; none imports another."""
