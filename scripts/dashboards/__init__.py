"""The Grafana dashboards, as a program: what each panel shows, in which unit, and what it says."""
