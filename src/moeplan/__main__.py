"""Run the command line: `python -m moeplan`, or `moeplan` where it is installed."""

import gc

from moeplan.cli import main as command_line

YOUNG = 50_000  # objects between two collections: starting makes many that live on, and collecting them is in vain


def main() -> None:
    """Run the command line in a process of its own."""
    gc.set_threshold(YOUNG)
    command_line()


if __name__ == "__main__":
    main()
