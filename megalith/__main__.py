"""`python -m megalith` does what the command `megalith` does."""

import sys

from megalith.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
