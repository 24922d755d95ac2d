"""What a real card answers, what that costs, and whether the page agrees with NVIDIA's own tools; see ``__main__``."""
