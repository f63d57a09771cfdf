"""Relay: passes versions on to many watchers, so that the parameter server sends each one only a few times.

Promises: newest wins, versions never fall, nothing is passed on before its hash matched; holds two at most.
State: none; a relay that starts anew asks upstream. Upstream is the parameter server or another relay.
"""
