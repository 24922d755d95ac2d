"""All input: the driver, engine endpoints, the process table.  Nothing outside this folder opens a socket or a file."""
