"""``python -m exporter.engines`` prints the reference of engines."""

from exporter.engines.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
