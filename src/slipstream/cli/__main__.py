"""`python -m slipstream.cli` is `slipstream`."""

import sys

from slipstream.cli import main

sys.exit(main())
