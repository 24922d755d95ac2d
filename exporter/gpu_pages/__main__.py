"""``python -m exporter.gpu_pages`` prints the reference of GPU exporters."""

from exporter.gpu_pages.reference import reference

if __name__ == "__main__":
    print(reference(), end="")
