"""``python -m exporter.gateways`` prints the reference of gateways."""

from exporter.gateways.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
