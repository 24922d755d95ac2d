"""``python -m compose.release``: add the image context, the chart, notes and checksums to the wheel and the sdist.

Exit codes: 0 written, 2 something must be put right first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from compose.release import archives, notes
from compose.release.errors import ReleaseError
from exporter import __version__

OK, REFUSED = 0, 2
ROOT = Path(__file__).parents[2]
MIDDLE = 1577836800  # for a tree without a commit, as in the Makefile


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        _refuse_other_than_the_commit(ROOT)
        since = arguments.since or _newest_tag(ROOT, arguments.tag)
        release(ROOT, arguments.output, tag=arguments.tag, since=since)
    except (ReleaseError, OSError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return REFUSED
    print((arguments.output / "SHA256SUMS").read_text(encoding="utf-8"), end="")
    return OK


def release(root: Path, output: Path, *, tag: str | None, since: str | None) -> None:
    """Write what is missing into ``output``, which has wheel, sdist and bill of materials; raise ReleaseError."""
    if tag not in {None, f"v{__version__}"}:
        raise ReleaseError(f"the tag {tag} is not v{__version__}, which exporter/__init__.py says")
    date, changes = notes.section((root / "CHANGELOG.md").read_text(encoding="utf-8"), __version__)
    if tag is not None and date == "unreleased":
        raise ReleaseError(f"CHANGELOG.md has no date for {__version__}")
    built = (f"shardwatch-{__version__}-py3-none-any.whl", f"shardwatch-{__version__}.tar.gz", "sbom.json")
    missing = [name for name in built if not (output / name).exists()]
    if missing:
        raise ReleaseError(f"{output} lacks {', '.join(missing)}: type `make release`")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", MIDDLE))
    archives.write(output / f"shardwatch-{__version__}-image.tar.gz", archives.image_files(root), epoch)
    archives.write(output / f"shardwatch-{__version__}.tgz", archives.chart_files(root), epoch)
    changed_files = notes.differences(root, since) if since else ""
    text = notes.text(__version__, changes, changed_files, since)
    (output / "NOTES.md").write_text(text, encoding="utf-8")
    (output / "SHA256SUMS").write_text(archives.checksums(output), encoding="utf-8")


def _refuse_other_than_the_commit(root: Path) -> None:
    status = _git(root, "status", "--porcelain")
    if status is None:
        raise ReleaseError("a release is made from a git checkout")
    if status:
        raise ReleaseError("the tree is not what is committed:\n" + status)


def _newest_tag(root: Path, tag: str | None) -> str | None:
    """Return the release before this one, None for the first."""
    exclude = ("--exclude", tag) if tag else ()
    return _git(root, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", *exclude)


def _git(root: Path, *words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)  # noqa: S607
    return done.stdout.strip() if done.returncode == 0 else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compose.release", description="Complete a release in a folder.")
    parser.add_argument("--output", type=Path, default=Path("dist"), metavar="DIR", help="default: %(default)s")
    parser.add_argument(
        "--tag", help="the tag that is released: it must be the version, and the changelog have a date"
    )
    parser.add_argument("--since", metavar="TAG", help="the release to compare with (default: the newest tag v…)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
