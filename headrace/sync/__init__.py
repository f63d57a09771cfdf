"""How the work of several learners becomes one run: rounds, staleness, aggregation. Pure: time is told."""
