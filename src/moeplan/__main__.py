"""Run the command line with `python -m moeplan`."""

from moeplan.cli import main

if __name__ == "__main__":
    main()
