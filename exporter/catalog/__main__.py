"""``python -m exporter.catalog`` prints the metric reference."""

from exporter.catalog.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
