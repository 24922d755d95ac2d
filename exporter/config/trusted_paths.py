"""Whether only trusted users can have put a file where it is.

Nothing is imported that the interpreter has not loaded itself: the import path is checked with it.
"""

import os
import stat


def unprotected_directory(path: str, trusted: set[int], bits: int = stat.S_IWGRP | stat.S_IWOTH) -> str | None:
    """Return a directory above ``path`` in which a user who is not in ``trusted`` may put or replace it, or None.

    ``bits`` are the permissions to write that count.
    """
    for start in {os.path.abspath(path), os.path.realpath(path)}:
        directory, sticky = os.path.dirname(start), 0
        while True:
            try:
                status = os.stat(directory)
            except FileNotFoundError:
                sticky = 0  # whoever may write to the directory above may create it
            else:
                if status.st_uid not in trusted or (status.st_mode & bits and not status.st_mode & sticky):
                    return directory
                # In a sticky directory nobody can replace a directory of somebody else, but anybody can add a file.
                sticky = stat.S_ISVTX
            if directory == os.path.dirname(directory):
                break
            directory = os.path.dirname(directory)
    return None
