"""Stands in for torchvision, which has no build for processors on a package index.

SGLang imports it for models that see, when it starts; a model of text calls nothing of it.
"""

import sys

from absent_package import stand_in

__version__ = "0.0"  # transformers asks, and then uses nothing of it
stand_in(sys.modules[__name__])
