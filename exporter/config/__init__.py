"""How a configuration is read: YAML to nodes with lines, scalars to values, variables, and every problem at once.

What the keys are stands in ``exporter.config.settings`` alone.
"""
