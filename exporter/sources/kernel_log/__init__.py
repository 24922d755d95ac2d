"""The kernel's own log, which names errors of cards that the driver's events leave out."""
