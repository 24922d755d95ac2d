"""``python -m exporter.command_line``: the manual page, for ``make generate``."""

from exporter.command_line.manual import page

if __name__ == "__main__":
    print(page(), end="")
