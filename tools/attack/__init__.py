"""Attacks on the program from outside: independent clients, kills, damaged files, hostile peers.

Nothing here shares code with the program. Each protocol is written from its specification.
"""
