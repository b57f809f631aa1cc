"""Run the command-line interface with `python -m lockfast`."""

import sys

from lockfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
