"""Pure arithmetic on readings: no clock, no socket, no logger; time comes in as an argument."""
