"""Telling people who do not watch: what is worth a line, once each, to the addresses they chose.

``addresses`` reads where to; ``notices`` says what, purely; ``post`` sees to once; ``send`` is the
program that sends; ``notifier`` is what a dispatcher calls.
"""
