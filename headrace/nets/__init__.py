"""Policies: features of observations, distributions of actions, networks, and the actors that use them.

Importing the room costs nothing: torch is loaded only where it is used.
"""
