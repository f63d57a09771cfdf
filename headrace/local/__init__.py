"""The local run: starts the same services as processes on one machine, watches them, and tells the story."""
