"""Whether the tests notice when a line of the package means something else.

A kept list of single-line changes, each with the tests that concern it, most of them drawn by a seed. A tool of its
own: mutmut and cosmic-ray generate their changes anew at each run and keep neither a fixed list nor the tests of each
change, so that a run over this package would take days instead of minutes and its score could not be compared with
the one before.
"""
