"""``python -m dstransformer``, the same as ``dst``: what launchers start."""

import sys

from dstransformer.cli import main

sys.exit(main())
