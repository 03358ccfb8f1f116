"""2  Targets: what network, how it is trained, how it is stored and read, how exposed it is."""
