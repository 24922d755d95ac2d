"""What a release publishes besides wheel, sdist and bill of materials: ``make release``."""
