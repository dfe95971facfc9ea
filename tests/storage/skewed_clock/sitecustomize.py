"""Moves the clock of a test process by `TEST_CLOCK_OFFSET` seconds. Python imports this module if its folder is on the path."""

import os
import time

_real = time.time
_offset = float(os.environ.get("TEST_CLOCK_OFFSET", "0"))
time.time = lambda: _real() + _offset
