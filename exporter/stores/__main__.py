"""``python -m exporter.stores`` prints the reference of KV-cache stores."""

from exporter.stores.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
