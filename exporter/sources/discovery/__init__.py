"""Where engines are declared by others: lists of targets in files, Ray's own such file, and pod annotations."""
