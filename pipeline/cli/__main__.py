"""`python -m pipeline.cli`: the same command without its script on PATH."""

import sys

from pipeline.cli.app import main

sys.exit(main())
