"""Stands in for SGLang's compiled kernels, of which no package index has a build for processors.

SGLang imports them by name when it starts, and with `--attention-backend torch_native` calls none.
"""

import sys

from absent_package import stand_in

stand_in(sys.modules[__name__])
