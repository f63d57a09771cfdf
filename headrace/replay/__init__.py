"""Replay as pure state: chunks of experience, items over them, one law of sampling. No wires, no stores."""
