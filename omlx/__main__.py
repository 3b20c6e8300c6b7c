"""`python -m omlx` is the `omlx` command."""

import sys

from omlx.cli import main

sys.exit(main())
