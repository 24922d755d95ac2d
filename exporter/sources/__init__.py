"""All input: the driver, engine endpoints, the process table.

Nothing outside this folder opens an outbound socket or reads a file of the system.
"""
