"""The node's process table: who listens where (``table``), read from /proc (``procfs``), by kind (``kind``)."""
