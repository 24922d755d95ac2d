"""Scenarios that run side by side, each of them once, and whose results several tests share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


class Scenarios:
    """Functions that return what a scenario showed; use it as their decorator."""

    def __init__(self):
        self._functions = {}

    def __call__(self, function):
        self._functions[function.__name__] = function
        return function

    @contextmanager
    def running(self, request, argument, at_once):
        """Start what the selected tests of a module name, so many at once; yield what returns a scenario's result."""
        selected = {
            name
            for item in request.session.items
            if item.module is request.module
            for name in item.function.__code__.co_names
        }
        pool = ThreadPoolExecutor(at_once)
        futures = {
            name: pool.submit(function, argument) for name, function in self._functions.items() if name in selected
        }
        try:
            yield lambda scenario: futures[scenario.__name__].result()
        finally:
            pool.shutdown(cancel_futures=True)
