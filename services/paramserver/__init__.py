"""Parameter server: owns policy versions, checkpoints and the state of the run.

Promises: versions never fall, none is issued twice, whoever is killed; watchers never get an older one.
State: ``RUN/checkpoints`` (whole versions), ``RUN/paramserver`` (newest number, newest small version).
"""
