"""``python -m exporter.cli``: the manual page, for ``make generate``."""

from exporter.cli.manual import page

if __name__ == "__main__":
    print(page(), end="")
