"""One document configures a run: its sections, how it is read and checked, its digest, its documentation."""
