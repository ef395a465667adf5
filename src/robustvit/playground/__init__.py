"""A page on loopback where pictures are attacked; the server is Python's own, the page one file."""
