"""`python -m controller` is the `controller` command."""

from __future__ import annotations

import sys

from controller.cli.main import main

sys.exit(main())
